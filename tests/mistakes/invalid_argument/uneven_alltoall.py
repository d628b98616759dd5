"""Rows that cannot be dealt out evenly.

raises: InvalidArgument
words: 'tokens' | 3 rows | 2 ranks | splits
remedy: Pass splits: how many rows go to each rank.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.alltoall(np.ones((3, 2), np.float32), name="tokens")
