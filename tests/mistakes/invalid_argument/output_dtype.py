"""An output of another dtype.

raises: InvalidArgument
words: 'rows' | float64 [4, 2] | float32 [2, 2] | one dtype
remedy: Give input and output one dtype.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allgather(np.ones((2, 2), np.float32), out=np.empty((4, 2), np.float64), name="rows")
