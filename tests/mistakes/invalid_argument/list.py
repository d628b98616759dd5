"""A list instead of an array.

raises: InvalidArgument
words: allreduce | list | numpy.asarray
remedy: Pass numpy.asarray(x), or a tensor of the framework to its adapter.
"""

import ringcore as ring

ring.init()
ring.allreduce([1.0, 2.0])
