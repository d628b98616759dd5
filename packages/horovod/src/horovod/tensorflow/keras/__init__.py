"""`import horovod.tensorflow.keras as hvd`: Horovod's interface for `tf.keras`, which is Keras 3."""

from ringcore.adapter import import_framework as _import_framework

_import_framework("ringcore_keras", "horovod.tensorflow.keras", {"ringcore_keras": "'ringcore-horovod[keras]'"})

from horovod.keras import *  # noqa: F403
from horovod.keras import __all__
