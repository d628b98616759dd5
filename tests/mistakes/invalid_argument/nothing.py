"""None instead of an array.

raises: InvalidArgument
words: allreduce 'bias' | NoneType
remedy: A gradient that is None has not been computed: leave it out on all ranks, or pass zeros.
"""

import ringcore as ring

ring.init()
ring.allreduce(None, name="bias")
