"""The process set of all ranks is removed.

raises: InvalidArgument
words: ProcessSet | cannot be removed | all ranks
remedy: Only what add_process_set has made is removed; shutdown() ends all.
"""

import ringcore as ring

ring.init()
ring.remove_process_set(ring.global_process_set)
