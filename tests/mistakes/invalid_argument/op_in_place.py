"""The operation of an allreduce in place is a function.

raises: InvalidArgument
words: allreduce | op | built-in function sum | op=Sum
remedy: op is one of Average, Sum, Min, Max, Product and Adasum of the module.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce_(np.ones(3, np.float32), op=sum)
