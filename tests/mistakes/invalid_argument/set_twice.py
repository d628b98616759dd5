"""A process set that names a rank twice.

raises: InvalidArgument
words: process set | once | [1, 1]
remedy: Name each rank once.
"""

import ringcore as ring

ring.init()
ring.add_process_set([1, 1])
