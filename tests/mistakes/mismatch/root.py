"""Ranks broadcast from different roots.

raises: MismatchError
words: 'weights' | broadcast | root 0 | root 1 | same root_rank
remedy: Pass the same root_rank on all ranks: not rank().
"""

import numpy as np
import ringcore as ring

ring.init()
ring.broadcast(np.ones(3, np.float32), ring.rank(), name="weights")
