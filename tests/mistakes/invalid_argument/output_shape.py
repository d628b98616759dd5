"""An output of another shape.

raises: InvalidArgument
words: 'loss' | float32 [4] | float32 [3] | one shape
remedy: Give input and output one shape.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.float32), out=np.empty(4, np.float32), name="loss")
