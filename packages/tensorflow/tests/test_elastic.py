"""Elastic training of TensorFlow: a rank is killed, the other goes on with its variables, and another joins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import ringcore
import ringcore_keras.elastic
from ringcore_tensorflow import elastic
from support.elastic_adapters import check_recovery

HEAD = """
import ringcore_tensorflow as ring
import tensorflow as tf
from ringcore_tensorflow import elastic
"""
SETUP = """
tf.random.set_seed(os.getpid())
weight = tf.Variable(tf.random.normal((3,)))
state = elastic.TensorFlowState([weight], step=0)

@tf.function
def update():
    with ring.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum((weight - 1) ** 2)
    (gradient,) = tape.gradient(loss, [weight])
    weight.assign_sub(0.01 * gradient)

def step(state):
    update()

def weights(state):
    return weight.numpy().tolist()
"""


def test_one_rank_goes_on_without_the_other_and_takes_another_in(tmp_path: Path) -> None:
    check_recovery(tmp_path, HEAD, SETUP, TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow")


def test_horovods_names_are_there() -> None:
    assert elastic.HorovodInternalError is ringcore.RingcoreError
    assert elastic.TensorFlowKerasState is ringcore_keras.elastic.TensorFlowKerasState
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        elastic.Nothing  # noqa: B018


def test_a_name_of_keras_says_which_distribution_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ringcore_keras.elastic", None)
    with pytest.raises(AttributeError, match=r"ringcore_keras\.elastic\. Remedy: pip install ringcore-keras"):
        elastic.TensorFlowKerasState  # noqa: B018
