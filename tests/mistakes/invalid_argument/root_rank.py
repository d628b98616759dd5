"""A broadcast from a rank that is not there.

raises: InvalidArgument
words: broadcast 'weights' | root_rank 5 | 0 to 1
remedy: root_rank is a rank of the job: from 0 to size() - 1.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.broadcast(np.ones(3, np.float32), root_rank=5, name="weights")
