"""A collective after shutdown().

raises: NotInitializedError
words: not been initialized | init()
remedy: Call shutdown() last, or init() again.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.shutdown()
ring.allreduce(np.ones(3, np.float32))
