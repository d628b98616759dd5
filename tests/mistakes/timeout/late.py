"""A rank does not come within the limit.

raises: TimeoutError, -
words: allreduce 'loss' | rank 1 did not submit it | RINGCORE_TIMEOUT_S
remedy: Look at the stack of the missing rank, which is reported after RINGCORE_STALL_WARNING_S; raise
    RINGCORE_TIMEOUT_S if a rank may be that slow.
"""

import os
import time

import numpy as np
import ringcore as ring

os.environ["RINGCORE_TIMEOUT_S"] = "0.5"
ring.init()
if ring.rank() == 0:
    ring.allreduce(np.ones(3, np.float32), name="loss")
else:
    time.sleep(2)
