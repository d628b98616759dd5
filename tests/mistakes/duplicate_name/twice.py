"""A name is used again before its first use is done.

raises: DuplicateNameError, PeerLostError
words: allreduce 'loss' | again before | synchronize
remedy: Synchronize the first one, or give each tensor a name of its own.
"""

import numpy as np
import ringcore as ring

ring.init()
if ring.rank() == 0:
    ring.allreduce_async(np.ones(3, np.float32), name="loss")
    ring.allreduce_async(np.ones(3, np.float32), name="loss")
ring.barrier()
