"""A tensor has another dtype on one rank.

raises: MismatchError
words: 'loss' | allreduce | float32 [3] | float64 [3] | rank 1 | dtype differs
remedy: Convert the tensor to one dtype on all ranks. Python's numbers become float64 in numpy, and float32
    in frameworks.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.float64 if ring.rank() == 1 else np.float32), name="loss")
