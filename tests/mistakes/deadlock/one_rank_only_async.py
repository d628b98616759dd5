"""One rank alone submits an operation, while others are under way.

raises: DeadlockError
words: rank 0 in allreduce 'validation' | rank 1 in allreduce 'loss'
remedy: `if rank() == 0:` may stand around printing and saving, not around a collective: all ranks submit it,
    and one uses the result.
"""

import numpy as np
import ringcore as ring

ring.init()
handles = [ring.allreduce_async(np.ones(3, np.float32), name=f"gradient{i}") for i in range(3)]
if ring.rank() == 0:
    handles.insert(0, ring.allreduce_async(np.ones(3, np.float32), name="validation"))
for handle in handles:
    handle.synchronize()
losses = [ring.allreduce_async(np.ones(3, np.float32), name=name) for name in ("loss", "accuracy")]
for handle in losses:
    handle.synchronize()
