"""A root that is no member of the process set.

raises: InvalidArgument, -
words: broadcast | root_rank 1 | [0]
remedy: root_rank is a rank of the job, and a member of the process set.
"""

import numpy as np
import ringcore as ring

ring.init()
alone = ring.add_process_set([0])
if alone.included():
    ring.broadcast(np.ones(3, np.float32), 1, process_set=alone)
