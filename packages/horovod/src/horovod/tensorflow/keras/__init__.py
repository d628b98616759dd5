"""`import horovod.tensorflow.keras as hvd`: Horovod's interface for `tf.keras`, which is Keras 3."""

from horovod.keras import *  # noqa: F403
from horovod.keras import __all__
