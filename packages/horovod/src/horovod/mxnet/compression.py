"""What is sent, under Horovod's name."""

from ringcore_mxnet import Compression

__all__ = ["Compression"]
