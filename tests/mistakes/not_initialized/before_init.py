"""A collective before init().

raises: NotInitializedError
words: not been initialized | init()
remedy: Call init() at the start of the script, before anything else of ringcore.
"""

import numpy as np
import ringcore as ring

ring.allreduce(np.ones(3, np.float32))
