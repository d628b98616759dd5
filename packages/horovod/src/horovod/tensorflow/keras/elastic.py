"""Elastic training of `tf.keras` models: see `horovod.keras.elastic`."""

from horovod.keras.elastic import *  # noqa: F403
from horovod.keras.elastic import __all__  # noqa: F401
