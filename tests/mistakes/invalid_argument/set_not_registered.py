"""A process set that was not registered.

raises: InvalidArgument
words: [0, 1] | not registered | add_process_set
remedy: Call add_process_set on every rank first, and pass what it returns.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allreduce(np.ones(3, np.float32), process_set=ring.ProcessSet([0, 1]))
