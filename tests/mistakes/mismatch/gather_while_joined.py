"""A rank has joined, and another one gathers.

raises: MismatchError, -
words: allgather 'metrics' | rank 1 joined | join
remedy: After join() a rank takes part in allreduces, broadcasts and barriers only: gather before it, or let
    all ranks do equally many steps.
"""

import numpy as np
import ringcore as ring

ring.init()
if ring.rank() == 0:
    try:
        ring.allgather(np.ones(3, np.float32), name="metrics")
    finally:
        ring.join()
ring.join() if ring.rank() == 1 else None
