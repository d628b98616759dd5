"""What is sent, under Horovod's name."""

from ringcore_tensorflow import Compression

__all__ = ["Compression"]
