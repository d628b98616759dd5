"""Splits below zero.

raises: InvalidArgument
words: alltoall 'tokens' | splits | [3, -1]
remedy: Splits are numbers of rows, one for each rank; 0 for a rank that gets none.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.alltoall(np.ones((2, 2), np.float32), [3, -1], name="tokens")
