"""Ranks wait in different process sets, while a thread of theirs waits, too.

raises: DeadlockError
words: in allreduce 'all' (rank 1 did not submit it) | rank 1 in allreduce 'some' of process set
remedy: Call the operations of different process sets in the same order on all ranks that are in several of them.
"""

import threading

import numpy as np
import ringcore as ring

ring.init()
some = ring.add_process_set([0, 1])


def wait_for(handle: ring.Handle) -> None:
    try:
        handle.synchronize()
    except ring.DeadlockError:
        print("the thread is told as well")


if ring.rank() == 0:
    extra = ring.allreduce_async(np.ones(3, np.float32), name="extra")
    threading.Thread(target=wait_for, args=(extra,)).start()
for name, process_set in [("all", ring.global_process_set), ("some", some)][:: 1 if ring.rank() == 0 else -1]:
    ring.allreduce(np.ones(3, np.float32), name=name, process_set=process_set)
