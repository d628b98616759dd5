"""An array with gaps.

raises: InvalidArgument
words: allreduce 'columns' | [4, 2] | not contiguous | ascontiguousarray
remedy: Pass numpy.ascontiguousarray(x), and use what is returned.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones((4, 4), np.float32)[:, ::2], name="columns")
