"""A broadcast from rank -1.

raises: InvalidArgument
words: broadcast | root_rank -1 | 0 to 1
remedy: root_rank is a rank of the job: from 0 to size() - 1. The last one is size() - 1.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.broadcast_(np.ones(3, np.float32), root_rank=-1)
