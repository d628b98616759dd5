"""A process set that is made of something else than ranks.

raises: InvalidArgument
words: process set | list of ranks | [0, 2] | 'even'
remedy: Pass the ranks of its members, as a list.
"""

import ringcore as ring

ring.init()
ring.add_process_set("even")
