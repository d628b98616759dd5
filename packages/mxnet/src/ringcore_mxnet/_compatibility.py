"""MXNet 1.9.1 on the Pythons and numpys of today; imported before MXNet is."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np


def prepare_import() -> None:
    """Make MXNet importable where that takes a word to numpy, and say what to install where it takes more.

    MXNet asks numpy for `np.bool`, which numpy 1.24 to 1.26 has not, and Python for `distutils`, which 3.12 has only
    with setuptools.

    Raises:
        ImportError: MXNet is not installed or cannot work with the installed numpy; tells what to install.
    """
    if "mxnet" in sys.modules:
        return
    if importlib.util.find_spec("mxnet") is None:
        raise ImportError("MXNet is not installed. Remedy: pip install 'ringcore-mxnet[mxnet]'")
    if int(np.__version__.split(".")[0]) > 1:
        raise ImportError(
            f"MXNet 1.9.1 does not work with numpy {np.__version__}. Remedy: pip install 'ringcore-mxnet[mxnet]', "
            "which takes a numpy that it works with (older than 1.24; 1.26.4 on Python 3.12)"
        )
    if sys.version_info >= (3, 12) and importlib.util.find_spec("setuptools") is None:
        raise ImportError("MXNet 1.9.1 needs distutils, which Python has no more. Remedy: pip install setuptools")
    if "bool" not in vars(np):
        vars(np)["bool"] = np.bool_
