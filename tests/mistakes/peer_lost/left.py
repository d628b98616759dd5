"""A rank leaves while others go on.

raises: PeerLostError, -
words: allreduce 'loss' | rank 1 | left
remedy: All ranks do equally many steps; where their data differ, join() waits for the others.
"""

import numpy as np
import ringcore as ring

ring.init()
if ring.rank() == 0:
    ring.allreduce(np.ones(3, np.float32), name="loss")
else:
    ring.shutdown()
