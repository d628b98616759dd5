"""The compiled ops: loaded into TensorFlow, and connected with the engine."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import tensorflow as tf
from ringcore import adapter

_LIBRARY = Path(__file__).with_name("libringcore_tensorflow.so")


def _load() -> Any:
    ops = tf.load_op_library(str(_LIBRARY))
    if not hasattr(ops, "ringcore_allreduce"):
        raise ImportError(
            f"TensorFlow {tf.__version__} did not take the ops of ringcore-tensorflow, which work with TensorFlow 2.16 "
            "to 2.21; what is missing stands above. Remedy: pip install one of these versions."
        )
    ctypes.CDLL(str(_LIBRARY)).ringcore_tensorflow_connect(ctypes.c_void_p(adapter.capi()))
    return ops


ops = _load()
