"""Gathered rows are of different length.

raises: MismatchError
words: 'predictions' | allgather | [2, 2] | [2, 3] | rank 1 | first dimension
remedy: Only the first dimension of what is gathered may differ; pad the others.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allgather(np.ones((2, 2 + ring.rank()), np.float32), name="predictions")
