"""A group with too few outputs.

raises: InvalidArgument
words: 'layers' | 2 inputs | 1 output
remedy: Pass one output for each tensor of the group.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.grouped_allreduce([np.ones(3, np.float32)] * 2, out=[np.empty(3, np.float32)], name="layers")
