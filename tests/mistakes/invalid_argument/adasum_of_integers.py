"""Adasum of integers.

raises: InvalidArgument
words: allreduce 'delta' | Adasum | float
remedy: Adasum combines gradients: convert the tensor to a float dtype.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.int32), op=ring.Adasum, name="delta")
