"""A root that is no number.

raises: InvalidArgument
words: broadcast | root_rank | '0'
remedy: root_rank is an int. What comes from the environment is text: int(os.environ[...]).
"""

import numpy as np
import ringcore as ring

ring.init()
ring.broadcast(np.ones(3, np.float32), root_rank="0")
