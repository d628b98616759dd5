"""The operation is given by its name.

raises: InvalidArgument
words: allreduce 'loss' | op | 'sum' | op=Sum
remedy: op is one of Average, Sum, Min, Max, Product and Adasum of the module: op=ring.Sum.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.float32), op="sum", name="loss")
