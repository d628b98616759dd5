"""Ranks call blocking operations in another order.

raises: DeadlockError
words: rank 0 in allreduce 'a' | rank 1 in allreduce 'b' | same order
remedy: Call them in the same order on all ranks, or submit them with the _async forms and synchronize
    afterwards.
"""

import numpy as np
import ringcore as ring

ring.init()
for name in ["a", "b"] if ring.rank() == 0 else ["b", "a"]:
    ring.allreduce(np.ones(3, np.float32), name=name)
