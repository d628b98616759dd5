"""A name of 5000 bytes.

raises: InvalidArgument
words: name | 4096 | 5000
remedy: A name has at most 4096 bytes: hash what it is made of.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.float32), name="layer." * 833 + "ab")
