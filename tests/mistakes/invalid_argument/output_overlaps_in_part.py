"""An allreduce into a part of itself and of something else.

raises: InvalidArgument
words: 'values' | share memory | another output, or the tensor itself
remedy: Pass another output, or the tensor itself: what is received would overwrite what is still to be sent.
"""

import numpy as np
import ringcore as ring

ring.init()
values = np.ones(9, np.float32)
ring.allreduce(values[:-1], out=values[1:], name="values")
