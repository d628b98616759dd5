"""Ranks broadcast an object from different roots.

raises: MismatchError
words: broadcast_object | root 0 | root 1
remedy: Pass the same root_rank on all ranks: not rank().
"""

import ringcore as ring

ring.init()
ring.broadcast_object({"epoch": 3}, ring.rank())
