"""A scalar has no rows to deal out.

raises: InvalidArgument
words: 'total' | scalar | dimension
remedy: Pass a tensor of at least one dimension, or use allreduce.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.reducescatter(np.array(1.0), name="total")
