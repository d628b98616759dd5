"""One rank broadcasts from a rank that is not there.

raises: MismatchError, InvalidArgument
words: broadcast 'weights' | root_rank 5 | 0 to 1
remedy: root_rank is a rank of the job: from 0 to size() - 1.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.broadcast(np.ones(3, np.float32), 5 if ring.rank() == 1 else 0, name="weights")
