"""An output has not the rows that come.

raises: MismatchError
words: allgather 'rows' | rank 1 | output of | Nothing was written
remedy: An out= for gathered rows has as many as all ranks have together; leave it out where they vary.
"""

import numpy as np
import ringcore as ring

ring.init()
ring.allgather(np.ones((2, 3), np.float32), out=np.empty((4 + ring.rank(), 3), np.float32), name="rows")
