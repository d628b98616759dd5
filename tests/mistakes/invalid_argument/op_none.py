"""The operation is None.

raises: InvalidArgument
words: reducescatter | op is None | Average
remedy: Leave op out for an average, or pass one of Average, Sum, Min, Max, Product and Adasum.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.reducescatter(np.ones((2, 3), np.float32), op=None)
