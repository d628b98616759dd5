"""A group has more tensors on one rank.

raises: MismatchError
words: 'layers' | group of 2 tensors | group of 3 tensors | rank 1
remedy: Submit the same tensors together on all ranks, zeros for those that a rank does not have.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.grouped_allreduce([np.ones(3, np.float32)] * (2 + ring.rank()), name="layers")
