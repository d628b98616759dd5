"""A reducescatter by Adasum.

raises: InvalidArgument
words: reducescatter 'delta' | Adasum | op=Sum
remedy: Adasum is an allreduce; use op=Sum or op=Average here.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.reducescatter(np.ones((2, 3), np.float32), op=ring.Adasum, name="delta")
