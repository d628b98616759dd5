"""An operation in place on memory that is read-only.

raises: InvalidArgument
words: allreduce 'image' | read-only | writable copy
remedy: Pass a copy, or use the form without the underscore, which returns a new array.
"""

import numpy as np
import ringcore as ring

ring.init()
image = np.ones(3, np.float32)
image.flags.writeable = False
ring.allreduce_(image, name="image")
