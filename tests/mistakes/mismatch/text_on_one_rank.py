"""One rank reduces text.

raises: InvalidArgument, MismatchError
words: allreduce 'label' | <U5 | float32
remedy: Tensors are numbers. Objects, text among them, are passed by broadcast_object and allgather_object.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.array(["three", "words", "there"]) if ring.rank() == 0 else np.ones(3, np.float32), name="label")
