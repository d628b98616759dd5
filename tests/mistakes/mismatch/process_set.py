"""Ranks name different members of a process set.

raises: MismatchError
words: add_process_set | [0] | [1] | rank 1
remedy: Every rank calls add_process_set with the same members, also those that are none.
"""

import ringcore as ring

ring.init()
ring.add_process_set([ring.rank()])
