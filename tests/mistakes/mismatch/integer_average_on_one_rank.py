"""One rank averages integers.

raises: MismatchError, InvalidArgument
words: allreduce 'count' | average of int64 | op=Sum
remedy: A count is summed (op=Sum), or converted to a float dtype; the average of integers would have to be
    rounded.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.int64 if ring.rank() == 1 else np.float64), name="count")
