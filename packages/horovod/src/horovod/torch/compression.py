"""What is sent, under Horovod's name."""

from ringcore_torch import Compression

__all__ = ["Compression"]
