"""A scalar of numpy is reduced in place.

raises: InvalidArgument
words: allreduce | numpy.float32 | read-only
remedy: Pass numpy.asarray(x): an array without dimensions, and one that can be written.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce_(np.float32(1.5))
