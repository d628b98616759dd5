"""Ranks instead of a process set.

raises: InvalidArgument
words: process_set | [0, 1] | add_process_set
remedy: process_set is what add_process_set returns.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.float32), process_set=[0, 1], name="loss")
