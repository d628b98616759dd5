"""A tensor of a group has another shape on one rank.

raises: MismatchError
words: 'layers[1]' | float32 [3] | float32 [4] | rank 1
remedy: Submit the same tensors in the same order on all ranks.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.grouped_allreduce([np.ones(3, np.float32), np.ones(3 + ring.rank(), np.float32)], name="layers")
