"""The rank is asked before init().

raises: NotInitializedError
words: not been initialized | init()
remedy: Call init() first; modules that ask for rank() when they are imported are imported after it.
"""

import ringcore as ring

print(f"rank {ring.rank()}")
