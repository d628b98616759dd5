"""Ranks scale by different factors.

raises: MismatchError
words: 'loss' | allreduce | prescale | rank 1 | same factors
remedy: Pass the same prescale_factor and postscale_factor on all ranks; weigh a rank's part by multiplying
    its tensor.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.float32), prescale_factor=1.0 + ring.rank(), name="loss")
