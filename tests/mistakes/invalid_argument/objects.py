"""An array of Python objects.

raises: InvalidArgument
words: allgather | object | float32
remedy: Convert the array to numbers, or pass the objects by allgather_object.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allgather(np.array([{"loss": 1.0}, None]))
