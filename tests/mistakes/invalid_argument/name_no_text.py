"""A name that is a number.

raises: InvalidArgument
words: allreduce | name | 7 | str
remedy: A name is text: name=str(7), or leave it out.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.float32), name=7)
