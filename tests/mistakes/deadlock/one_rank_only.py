"""One rank alone calls a collective.

raises: DeadlockError
words: rank 0 in allreduce 'validation' | rank 1 in allreduce 'loss'
remedy: `if rank() == 0:` may stand around printing and saving, not around a collective: all ranks call it,
    and one uses the result.
"""

import numpy as np
import ringcore as ring

ring.init()
if ring.rank() == 0:
    ring.allreduce(np.ones(3, np.float32), name="validation")
ring.allreduce(np.ones(3, np.float32), name="loss")
