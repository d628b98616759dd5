"""A process set is removed that was never added.

raises: InvalidArgument
words: [0, 1] | cannot be removed | add_process_set
remedy: remove_process_set takes what add_process_set has returned, once.
"""

import ringcore as ring

ring.init()
ring.remove_process_set(ring.ProcessSet([0, 1]))
