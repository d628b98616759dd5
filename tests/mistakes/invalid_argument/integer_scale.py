"""Integers times a fraction.

raises: InvalidArgument
words: 'count' | int64 | prescale_factor of 0.5 | whole factors
remedy: Convert the tensor to a float dtype, or scale the result yourself.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.int64), op=ring.Sum, prescale_factor=0.5, name="count")
