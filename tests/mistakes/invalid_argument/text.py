"""An array of text.

raises: InvalidArgument
words: allreduce 'label' | <U3 | float32
remedy: Tensors are numbers. Objects, text among them, are passed by broadcast_object and allgather_object.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.array(["one", "two"]), name="label")
