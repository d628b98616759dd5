"""An empty name.

raises: InvalidArgument
words: name | 1 to 4096 | 0
remedy: Leave name out, and the order of the calls identifies the operation.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.float32), name="")
