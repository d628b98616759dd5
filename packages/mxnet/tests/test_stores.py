"""Key-value stores: what MXNet calls of them, what they hold, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import ringcore
import ringcore_mxnet as ring
from support.on_ranks import THREE_OVER_TCP, TWO, on
from support.values import distance

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon

CALLED, SILENT = {"broadcast": 2, "pushpull": 6}, {"broadcast": 0, "pushpull": 0}


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize(("name", "calls"), [("dist_ring", CALLED), ("ring", SILENT), ("instance", CALLED)])
def test_with_one_device_mxnet_calls_a_store_whose_name_has_dist_and_an_instance(
    name: str, calls: dict[str, int]
) -> None:
    counted = {"broadcast": 0, "pushpull": 0}

    def counting(what: str) -> Callable[..., Any]:
        call = getattr(ring.Ring, what)

        def count(*args: Any, **options: Any) -> Any:
            counted[what] += 1
            return call(*args, **options)

        return count

    with mock.patch.multiple(ring.Ring, **{what: counting(what) for what in counted}):
        net = gluon.nn.Dense(3, in_units=4)
        net.initialize()
        store = mx.kv.create("ring") if name == "instance" else name
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=store)
        for _ in range(3):
            with autograd.record():
                net(mx.nd.ones((2, 4))).sum().backward()
            trainer.step(2)
    assert counted == calls


@on(TWO, THREE_OVER_TCP)
def test_what_is_pushed_is_added_up_and_what_is_pulled_is_what_is_held() -> None:
    store, me, n = mx.kv.create("ring"), ring.rank(), ring.size()
    total = n * (n + 1) / 2
    value, out = mx.nd.full((3,), me + 1.0), mx.nd.zeros((3,))
    store.pushpull("a", value, out=out)
    assert distance(value, np.full(3, me + 1.0)) == 0.0
    assert distance(out, np.full(3, total)) == 0.0
    store.pushpull("a", value)
    assert distance(value, np.full(3, total)) == 0.0
    store.init("b", mx.nd.full((3,), me + 5.0))
    store.pull("b", out)
    assert distance(out, np.full(3, 5.0)) == 0.0
    store.push("b", [mx.nd.full((3,), me + 1.0), mx.nd.full((3,), me + 1.0)])
    outs = [mx.nd.zeros((3,)), mx.nd.zeros((3,))]
    store.pull("b", outs)
    for one in outs:
        assert distance(one, np.full(3, 2 * total)) == 0.0
    assert store.type == "dist_ring_sync"
    assert store.num_workers == n


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_store_with_an_optimizer_holds_the_weights(dtype: str) -> None:
    """How often and into what one pulls makes no difference."""
    me, n, rate = ring.rank(), ring.size(), 2
    store, keys = mx.kv.create("dist_ring"), ["one", "two"]
    store.init(keys, [mx.nd.full((3,), me + 1.0, dtype=dtype)] * 2)
    store.set_optimizer(mx.optimizer.create("test", rescale_grad=rate, multi_precision=dtype == "float16"))
    outs = [mx.nd.zeros((3,), dtype=dtype) for _ in keys]
    for step in range(4):
        weights = np.full(3, 1.0 + rate * step * n * (n + 1) / 2)
        if step:
            store.push(keys, [mx.nd.full((3,), me + 1.0, dtype=dtype)] * 2)
        for _ in range(2):
            store.pull(keys, out=outs)
            for out in outs:
                assert distance(out, weights) == 0.0, step
            outs = [mx.nd.full((3,), -1.0, dtype=dtype) for _ in keys]
    store.pushpull("one", mx.nd.ones((3,), dtype=dtype), out=outs)
    for out in outs:
        assert distance(out, weights + rate * n) == 0.0


@on(TWO, THREE_OVER_TCP)
def test_what_a_store_refuses() -> None:
    store, rows = mx.kv.create("ring"), mx.nd.sparse.zeros("row_sparse", (2, 2))
    store.init("b", mx.nd.zeros((2,)))
    for told, function in [
        (
            "{'type': 'fp16'}, 'bf16', 'int8'",
            lambda: store.set_gradient_compression({"type": "2bit", "threshold": 0.5}),
        ),
        ("DistributedTrainer", lambda: store.row_sparse_pull("a")),
        ("DistributedTrainer", lambda: store.init("a", rows)),
        (r"call init\('a', value\)", lambda: store.pull("a", mx.nd.zeros((2,)))),
        ("has a value already", lambda: store.init("b", mx.nd.zeros((2,)))),
    ]:
        with pytest.raises(ringcore.InvalidArgument, match=told):
            function()
