"""An object from a rank that is not there.

raises: InvalidArgument
words: broadcast_object | root_rank 2 | 0 to 1
remedy: root_rank is a rank of the job: from 0 to size() - 1.
"""

import ringcore as ring

ring.init()
ring.broadcast_object({"epoch": 3}, ring.size())
