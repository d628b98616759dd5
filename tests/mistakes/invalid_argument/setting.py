"""A setting that cannot be read.

raises: InvalidArgument
words: RINGCORE_TIMEOUT_S | 'soon' | number
remedy: RINGCORE_TIMEOUT_S is a number of seconds; `ringcore env` shows all settings.
"""

import os

import ringcore as ring

os.environ["RINGCORE_TIMEOUT_S"] = "soon"
ring.init()
