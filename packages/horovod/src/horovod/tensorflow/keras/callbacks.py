"""Horovod's callbacks for `tf.keras`."""

from horovod.keras.callbacks import *  # noqa: F403
from horovod.keras.callbacks import __all__  # noqa: F401
