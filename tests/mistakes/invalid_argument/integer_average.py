"""An average of integers.

raises: InvalidArgument
words: 'steps' | average of int64 | op=Sum
remedy: Use op=Sum and divide, or convert the tensor to a float dtype. Horovod cuts towards zero; here you
    choose.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.int64), name="steps")
