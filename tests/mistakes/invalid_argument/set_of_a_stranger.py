"""A process set with a rank that is not there.

raises: InvalidArgument
words: process set | 0 to 1 | [0, 2]
remedy: Members are ranks of the job: from 0 to size() - 1.
"""

import ringcore as ring

ring.init()
ring.add_process_set([0, 2])
