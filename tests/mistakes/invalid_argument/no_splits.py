"""Splits for nobody.

raises: InvalidArgument
words: alltoall 'tokens' | splits | one for each rank
remedy: Pass one number for each rank, or None to divide evenly.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.alltoall(np.ones((2, 2), np.float32), [], name="tokens")
