"""Horovod's modules and names on ringcore, so that scripts written for Horovod run as they are."""

from ringcore import __version__

from horovod.runner import run

__all__ = ["__version__", "run"]
