"""A transport that does not exist.

raises: InvalidArgument
words: RINGCORE_TRANSPORT | 'infiniband' | shm | tcp
remedy: RINGCORE_TRANSPORT is one of those that the message names; leave it out, and each pair of ranks
    takes the best.
"""

import os

import ringcore as ring

os.environ["RINGCORE_TRANSPORT"] = "infiniband"
ring.init()
