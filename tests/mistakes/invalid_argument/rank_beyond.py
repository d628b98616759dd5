"""A rank that the job has no place for.

raises: InvalidArgument
words: rank 7 | not one of 2 | launcher's variables
remedy: The launcher sets RANK from 0 to WORLD_SIZE - 1; a script that sets them itself must not start more
    ranks than it says.
"""

import os

import ringcore as ring

os.environ["RANK"] = "7"
ring.init()
