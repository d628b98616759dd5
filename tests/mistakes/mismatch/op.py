"""Ranks reduce by different operations.

raises: MismatchError
words: 'loss' | allreduce | sum | max | rank 1 | same op
remedy: Pass the same op on all ranks.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.float32), op=ring.Max if ring.rank() == 1 else ring.Sum, name="loss")
