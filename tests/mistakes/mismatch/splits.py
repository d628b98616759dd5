"""A rank's splits do not add up to its rows.

raises: MismatchError
words: alltoall 'tokens' | split | rank 1
remedy: The splits of a rank are as many as there are ranks, and add up to the rows of its tensor.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.alltoall(np.ones((2, 3), np.float32), [1, 1 + ring.rank()], name="tokens")
