"""A collective in a process set of other ranks.

raises: -, InvalidArgument
words: allreduce 'loss' | rank 1 | [0] | included()
remedy: Only members call: if process_set.included().
"""

import numpy as np
import ringcore as ring

ring.init()
alone = ring.add_process_set([0])
ring.allreduce(np.ones(3, np.float32), process_set=alone, name="loss")
