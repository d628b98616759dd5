"""One name stands for different collectives.

raises: MismatchError
words: 'state' | allreduce | broadcast | rank 1 | different names
remedy: Give different operations different names, and call them in the same order on all ranks.
"""

import numpy as np
import ringcore as ring

ring.init()
if ring.rank() == 1:
    ring.broadcast(np.ones(3, np.float32), 0, name="state")
ring.allreduce(np.ones(3, np.float32), name="state")
