"""Key-value stores whose optimizer is on servers: the same weights as where the ranks hold it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import ringcore
import ringcore_mxnet as ring
from support.on_ranks import TWO, Start, on
from support.values import distance

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon

ONE_SERVER = Start(2, servers=1)
TWO_SERVERS = Start(3, "tcp", servers=2)

WAYS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.1, "wd": 0.01},
    "momentum": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
    "adam": {"learning_rate": 0.01, "wd": 0.1, "epsilon": 1e-3},
}


def trained(store: str, way: str) -> list[np.ndarray[Any, Any]]:
    """The weights behind some steps, of which the second half has another rate."""
    mx.random.seed(0)
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Uniform(1))
    name = "sgd" if way == "momentum" else way
    trainer = gluon.Trainer(
        net.collect_params(), name, copy.deepcopy(WAYS[way]), kvstore=store, update_on_kvstore=True
    )  # fmt: skip
    for step in range(6):
        if step == 3:
            trainer.set_learning_rate(0.05)
        generator = np.random.default_rng(10 * step + ring.rank())
        with autograd.record():
            loss = (net(mx.nd.array(generator.normal(size=(2, 4)))) ** 2).sum()
        loss.backward()
        trainer.step(2 * ring.size())
    return [param.data().asnumpy() for param in net.collect_params().values()]


@on(ONE_SERVER, TWO_SERVERS)
@pytest.mark.parametrize("way", WAYS)
def test_servers_update_as_ranks_do(way: str) -> None:
    for served, plain in zip(trained("dist_ring_servers", way), trained("dist_ring", way), strict=True):
        assert np.abs(served - plain).max() < 1e-5


@on(ONE_SERVER, TWO_SERVERS)
def test_an_asynchronous_store_has_each_gradient_once() -> None:
    store = mx.kv.create("dist_ring_servers_async")
    assert (store.type, ring.ServedRing().type) == ("dist_ring_servers_async", "dist_ring_servers_sync")
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.5, rescale_grad=0.5))
    store.init("w", mx.nd.zeros((2, 3)))
    out = mx.nd.zeros((2, 3))
    for step in range(5):
        store.pushpull("w", mx.nd.ones((2, 3)), out=out)
        assert (out.asnumpy() <= -0.25 * (step + 1)).all()
    store.synchronize()
    store.pull("w", out)
    assert distance(out, np.full((2, 3), -0.25 * 5 * ring.size())) == 0.0


@on(ONE_SERVER)
def test_what_a_store_with_servers_refuses() -> None:
    store = ring.ServedRing()
    store.init("a", mx.nd.zeros((2,)))
    for told, function in [
        ("servers do not know RMSProp; use Adam, SGD", lambda: store.set_optimizer(mx.optimizer.RMSProp())),
        ("servers do not clip", lambda: store.set_optimizer(mx.optimizer.SGD(clip_gradient=1.0))),
        ("call set_optimizer", lambda: store.push("a", mx.nd.zeros((2,)))),
        ("pass out=", lambda: store.pushpull("a", mx.nd.zeros((2,)))),
        ("has no file", lambda: store.save_optimizer_states("x")),
    ]:
        with pytest.raises(ringcore.InvalidArgument, match=told):
            function()


@on(TWO)
def test_a_job_without_servers_says_so() -> None:
    with pytest.raises(ringcore.InvalidArgument, match="start it with ringrun --servers N"):
        mx.kv.create("dist_ring_servers")
