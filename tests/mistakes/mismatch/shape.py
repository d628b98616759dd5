"""A tensor has another shape on one rank.

raises: MismatchError
words: 'gradients' | allreduce | float32 [3] | float32 [4] | rank 1 | shape differs
remedy: Give the tensor one shape on all ranks: batches of different length are padded, or reduced before.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3 + ring.rank(), np.float32), name="gradients")
