"""A number instead of an array.

raises: InvalidArgument
words: allreduce 'loss' | float | numpy.asarray
remedy: Pass numpy.asarray(x), and take the result by float(result).
"""

import ringcore as ring

ring.init()
ring.allreduce(1.5, name="loss")
