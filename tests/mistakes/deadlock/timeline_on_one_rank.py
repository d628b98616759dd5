"""One rank alone starts a timeline.

raises: DeadlockError
words: rank 0 in barrier 'start_timeline | rank 1 in allreduce 'loss'
remedy: All ranks call start_timeline and stop_timeline, with the same path; rank 0 writes the file.
"""

import numpy as np
import ringcore as ring

ring.init()
if ring.rank() == 0:
    ring.start_timeline("trace.json")
ring.allreduce(np.ones(3, np.float32), name="loss")
