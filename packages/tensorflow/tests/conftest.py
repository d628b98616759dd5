"""Fixtures of the tests of the TensorFlow adapter."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import pytest
from support.on_ranks import IN_A_RANK, pytest_pyfunc_call, pytest_runtest_logreport, shared_folder, start

os.environ.update(TF_ENABLE_ONEDNN_OPTS="0", KERAS_BACKEND="tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

with warnings.catch_warnings():  # what TensorFlow imports is not ours
    warnings.simplefilter("ignore")
    import ringcore_tensorflow as ring
    import tensorflow as tf

__all__ = ["pytest_pyfunc_call", "pytest_runtest_logreport", "shared_folder", "start"]


@pytest.fixture(scope="session", autouse=True)
def job() -> Iterator[None]:
    """In a rank: its job, with one thread for all that is under way."""
    if IN_A_RANK:
        tf.config.threading.set_inter_op_parallelism_threads(1)
        ring.init()
    yield
    if IN_A_RANK:
        ring.shutdown()
