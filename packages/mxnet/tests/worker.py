"""Cases for test_mxnet.py: each runs on every rank."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import ringcore
import ringcore_mxnet as ring  # first: it helps the import of MXNet

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon
from mxnet.base import _LIB

CASES: dict[str, Callable[[], dict[str, Any]]] = {}
BATCH, STEPS = 12, 8  # of all ranks together: 2 and 3 divide it


def case(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CASES[function.__name__] = function
    return function


def of(rank: int, *shape: int) -> Any:
    return np.random.default_rng([rank, *shape]).standard_normal(shape).astype(np.float32)


def same_everywhere(value: Any) -> bool:
    values = ring.allgather_object(value)
    return all(other == values[0] for other in values)


def distance(one: Any, other: Any) -> float:
    one, other = (x.asnumpy() if isinstance(x, mx.nd.NDArray) else np.asarray(x) for x in (one, other))
    assert one.shape == other.shape, (one.shape, other.shape)
    return float(np.abs(one - other).max(initial=0))


def is_foreign(array: Any) -> bool:
    """Whether an array lies in a layout of oneDNN now."""
    array.wait_to_read()
    ask = _LIB["_ZNK5mxnet7NDArray5Chunk8IsMKLDNNEv"]
    ask.restype, ask.argtypes = ctypes.c_bool, [ctypes.c_void_p]
    return bool(ask(ctypes.cast(array.handle.value, ctypes.POINTER(ctypes.c_void_p))[0]))


@case
def layouts() -> dict[str, Any]:
    """What a convolution leaves in a layout of oneDNN, in place and not, while others read it; views of it as well."""
    me, n = ring.rank(), ring.size()
    x, weight = mx.nd.array(of(me, 2, 8, 12, 12)), mx.nd.array(of(99, 16, 8, 3, 3))

    def convolved() -> Any:
        return mx.nd.Convolution(x, weight, no_bias=True, kernel=(3, 3), num_filter=16)

    expected = ring.allreduce(mx.nd.array(convolved().asnumpy()), op=ring.Sum).asnumpy()
    own = convolved().asnumpy()
    found: dict[str, Any] = {"foreign": is_foreign(convolved())}
    out = convolved()
    before, result, after = out * 1.0, ring.allreduce(out, op=ring.Sum), out * 2.0
    found["read"] = max(distance(before, own), distance(result, expected), distance(after, own * 2))
    found["in place"] = distance(ring.allreduce_(convolved(), op=ring.Sum), expected)
    found["slice"] = distance(ring.allreduce(convolved()[1:2], op=ring.Sum), expected[1:2])
    out = convolved()
    ring.allreduce_(out[0:1], op=ring.Sum)
    found["slice in place"] = distance(out, np.concatenate([expected[:1], own[1:]]))
    found["reshaped"] = distance(ring.allreduce_(convolved().reshape((-1,)), op=ring.Sum), expected.reshape(-1))
    found["gathered"] = distance(ring.allgather(convolved())[me * 2 : me * 2 + 2], own)
    found["scattered"] = distance(ring.broadcast(convolved(), n - 1), ring.allgather(convolved())[-2:])
    return found


@case
def views() -> dict[str, Any]:
    """Several parts of one array in one operation, the same array twice, an array that dies before it is reduced."""
    me, n = ring.rank(), ring.size()
    total = n * (n + 1) / 2
    whole = mx.nd.full((6, 4), me + 1.0)
    ring.grouped_allreduce_([whole[0:2], whole[3:5]], op=ring.Sum)
    rows = np.array([total, total, me + 1, total, total, me + 1], np.float32)
    found = {"parts": distance(whole, np.repeat(rows, 4).reshape(6, 4))}
    one = mx.nd.full((5,), me + 1.0)
    twice = ring.grouped_allreduce([one, one], op=ring.Sum)
    found["twice"] = max(distance(array, np.full(5, total)) for array in twice)
    slow = mx.nd.array(of(me, 300, 300))
    for _ in range(5):
        slow = mx.nd.dot(slow, slow) * 1e-2
    # Signs, whose sums are exact: what the first one is packed with, and so in which order it is summed, is open.
    signs = mx.nd.sign(slow)
    reduced = ring.allreduce(signs, op=ring.Sum)
    expected = ring.allreduce(mx.nd.array(signs.asnumpy()), op=ring.Sum)
    found["in flight"] = distance(reduced, expected)
    for step in range(50):
        ring.allreduce_(mx.nd.full((1000,), 1.0), name=f"forgotten {step}")
    kept = [ring.allreduce(mx.nd.full((1000,), me + 1.0), op=ring.Sum) for _ in range(50)]
    found["kept"] = max(distance(array, np.full(1000, total)) for array in kept)
    return found


@case
def programs() -> dict[str, Any]:
    """A thousand random programs of computations, updates in place and collectives, with and without waits."""
    wrong = []
    for number in range(1000 if ring.size() == 2 else 200):
        if number % 100 == 0:
            ring.barrier()
        # The engine remembers names: the programs share theirs.
        results = [run_program(number, waits) for waits in (True, False)]
        if any(distance(a, b) != 0 for a, b in zip(*results, strict=True)):
            wrong.append(number)
    return {"wrong": wrong}


def run_program(number: int, waits: bool) -> list[Any]:
    """The same steps on every rank, on other values."""
    me = ring.rank()
    choose = np.random.default_rng(number)
    arrays = [mx.nd.array(of(me + 10 * i, 6, 4)) for i in range(4)]

    def wait() -> None:
        if waits:
            mx.nd.waitall()

    for step in range(8):
        kind = int(choose.integers(9))
        a, b = (arrays[i] for i in choose.choice(4, 2, replace=False))
        name = f"program {step}"
        if kind == 0:
            a[:] = mx.nd.dot(mx.nd.softmax(a), b, transpose_b=True).slice_axis(axis=1, begin=0, end=4)
        elif kind == 1:
            a += 0.5 * b
        elif kind == 2:
            a[1:3] = b[2:4] * 2
        elif kind == 3:
            ring.allreduce_(a, name=name, priority=-step)
        elif kind == 4:
            b[:] = ring.allreduce(a, op=ring.Max, name=name)
        elif kind == 5:
            ring.grouped_allreduce_([a[0:2], b], name=name)
        elif kind == 6:
            ring.broadcast_(a, step % ring.size(), name=name)
        elif kind == 7:
            ring.allreduce_(b[2:5], op=ring.Sum, name=name, prescale_factor=0.25)
        else:
            a[:] = mx.nd.tanh(a - ring.broadcast(b, 0, name=name))
        wait()
    mx.nd.waitall()
    return [array.asnumpy() for array in arrays]


# ---- Training ----


def net_of(kind: str) -> Any:
    net = gluon.nn.HybridSequential(prefix="")
    with net.name_scope():
        if kind == "images":
            net.add(gluon.nn.Conv2D(4, 3), gluon.nn.Activation("relu"), gluon.nn.Flatten(), gluon.nn.Dense(3))
        else:
            net.add(gluon.nn.Dense(16, activation="tanh"), gluon.nn.Dense(3))
    return net


def data_of(kind: str, step: int) -> tuple[Any, Any]:
    x = of(1000 + step, BATCH, 2, 6, 6) if kind == "images" else of(1000 + step, BATCH, 7)
    return x, np.random.default_rng(step).integers(0, 3, BATCH).astype(np.float32)


def trained(kind: str, optimizer: str, options: dict[str, Any], how: str) -> list[Any]:
    """The weights after some steps; "alone": with all ranks' batches in one."""
    me, n = (0, 1) if how == "alone" else (ring.rank(), ring.size())
    mx.random.seed(7 if how == "alone" else 7 + me)
    net = net_of(kind)
    net.initialize(mx.init.Xavier())
    if how == "hybrid":
        net.hybridize(static_alloc=True)
    params = net.collect_params()
    if how != "alone":
        # Its shapes are not known yet. Gluon asks a store for rank 0's weights only when the first step has gradients.
        ring.broadcast_parameters(params)
    if how == "alone":
        trainer = gluon.Trainer(params, optimizer, options, kvstore=None)
    elif how.startswith("kvstore"):
        local = {"update_on_kvstore": False} if how.endswith("local") else {}
        trainer = gluon.Trainer(params, optimizer, options, kvstore="dist_ring", **local)
    else:
        given = {"predivide": {"gradient_predivide_factor": 2.0}, "groups": {"groups": 2},
                 "fp16": {"compression": ring.Compression.fp16}}  # fmt: skip
        trainer = ring.DistributedTrainer(params, optimizer, options, **given.get(how, {}))
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(STEPS):
        x, y = (mx.nd.array(part[me::n]) for part in data_of(kind, step))
        with autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step(BATCH if how == "alone" or how.startswith("kvstore") else BATCH // n)
    return [param.data().asnumpy() for param in params.values()]


@case
def training() -> dict[str, Any]:
    found = {}
    sgd, adam = {"learning_rate": 0.1, "momentum": 0.9}, {"learning_rate": 0.01}
    jobs = [
        ("vectors", "sgd", sgd, how)
        for how in ("plain", "hybrid", "kvstore", "kvstore local", "predivide", "groups", "fp16")
    ]
    jobs += [("vectors", "adam", adam, how) for how in ("plain", "kvstore")]
    jobs += [("images", "sgd", sgd, how) for how in ("plain", "hybrid")]
    for kind, optimizer, options, how in jobs:
        alone = trained(kind, optimizer, options, "alone")
        mine = trained(kind, optimizer, options, how)
        difference = max(distance(a, b) for a, b in zip(alone, mine, strict=True))
        found[f"{kind} {optimizer} {how}"] = [difference, same_everywhere([w.tobytes() for w in mine])]
    return found


def symbol() -> Any:
    hidden = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="hidden"), act_type="tanh")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="out"), name="softmax")


def fitted(how: str, optimizer: str, options: dict[str, Any]) -> list[Any]:
    me, n = (0, 1) if how == "alone" else (ring.rank(), ring.size())
    x, y = (np.concatenate([data_of("vectors", step)[i][me::n] for step in range(STEPS)]) for i in (0, 1))
    batches = mx.io.NDArrayIter(x, y, BATCH // n)
    module = mx.mod.Module(symbol())
    module.bind(batches.provide_data, batches.provide_label)
    mx.random.seed(7 if how in ("alone", "optimizer") else 7 + me)
    module.init_params(mx.init.Xavier())
    kvstore = None
    made: Any = optimizer
    if how == "kvstore":
        kvstore = "dist_ring"
    elif how == "optimizer":
        arguments, auxiliary = module.get_params()
        ring.broadcast_parameters(arguments)
        ring.broadcast_parameters(auxiliary)
        module.set_params(arguments, auxiliary)
        made = ring.DistributedOptimizer(mx.optimizer.create(optimizer, rescale_grad=n / BATCH, **options))
    module.fit(
        batches, num_epoch=2, kvstore=kvstore, optimizer=made, optimizer_params=options, eval_metric="acc",
        force_init=False,
    )  # fmt: skip
    return [array.asnumpy() for _, array in sorted(module.get_params()[0].items())]


@case
def modules() -> dict[str, Any]:
    found = {}
    for optimizer, options in (("sgd", {"learning_rate": 0.1, "momentum": 0.9}), ("adam", {"learning_rate": 0.01})):
        alone = fitted("alone", optimizer, options)
        for how in ("kvstore", "optimizer"):
            mine = fitted(how, optimizer, options)
            difference = max(distance(a, b) for a, b in zip(alone, mine, strict=True))
            found[f"{optimizer} {how}"] = [difference, same_everywhere([w.tobytes() for w in mine])]
    return found


@case
def stores() -> dict[str, Any]:
    """MXNet calls a store whose name has "dist", and no other, where there is one device."""
    calls: dict[str, dict[str, int]] = {}
    for name in ("dist_ring", "ring", "instance"):
        counted = calls[name] = {"broadcast": 0, "pushpull": 0}

        def counting(what: str, call: Callable[..., Any], counted: dict[str, int] = counted) -> Callable[..., Any]:
            def count(*args: Any, **options: Any) -> Any:
                counted[what] += 1
                return call(*args, **options)

            return count

        originals = {what: getattr(ring.Ring, what) for what in counted}
        for what, call in originals.items():
            setattr(ring.Ring, what, counting(what, call))
        net = gluon.nn.Dense(3, in_units=4)
        net.initialize()
        store = mx.kv.create("ring") if name == "instance" else name
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=store)
        for _ in range(3):
            with autograd.record():
                net(mx.nd.ones((2, 4))).sum().backward()
            trainer.step(2)
        for what, call in originals.items():
            setattr(ring.Ring, what, call)
    store, me, n = mx.kv.create("ring"), ring.rank(), ring.size()
    total = n * (n + 1) / 2
    value, out = mx.nd.full((3,), me + 1.0), mx.nd.zeros((3,))
    store.pushpull("a", value, out=out)
    results = [distance(value, np.full(3, me + 1.0)), distance(out, np.full(3, total))]
    store.pushpull("a", value)
    results.append(distance(value, np.full(3, total)))
    store.init("b", mx.nd.full((3,), me + 5.0))
    store.pull("b", out)
    results.append(distance(out, np.full(3, 5.0)))
    store.push("b", [mx.nd.full((3,), me + 1.0), mx.nd.full((3,), me + 1.0)])
    outs = [mx.nd.zeros((3,)), mx.nd.zeros((3,))]
    store.pull("b", outs)
    results += [distance(one, np.full(3, 2 * total)) for one in outs]
    return {"calls": calls, "results": results, "type": store.type, "workers": store.num_workers}


@case
def stored_weights() -> dict[str, Any]:
    """A store with an optimizer holds the weights: how often and into what one pulls makes no difference."""
    me, n, rate = ring.rank(), ring.size(), 2
    found: dict[str, Any] = {}
    for dtype in ("float32", "float16"):
        store = mx.kv.create("dist_ring")
        keys = ["one", "two"]
        store.init(keys, [mx.nd.full((3,), me + 1.0, dtype=dtype)] * 2)
        store.set_optimizer(mx.optimizer.create("test", rescale_grad=rate, multi_precision=dtype == "float16"))
        seen, outs = [], [mx.nd.zeros((3,), dtype=dtype) for _ in keys]
        for step in range(4):
            if step:
                store.push(keys, [mx.nd.full((3,), me + 1.0, dtype=dtype)] * 2)
            for _ in range(2):
                store.pull(keys, out=outs)
                seen += [out.asnumpy().tolist() for out in outs]
                outs = [mx.nd.full((3,), -1.0, dtype=dtype) for _ in keys]
        found[dtype] = seen == [[1.0 + rate * step * n * (n + 1) / 2] * 3 for step in range(4) for _ in range(4)]
        store.pushpull("one", mx.nd.ones((3,), dtype=dtype), out=outs)
        found[f"{dtype} pushpull"] = all(np.array_equal(out.asnumpy(), np.add(seen[-1], rate * n)) for out in outs)
    return found


@case
def rows() -> dict[str, Any]:
    """Row-sparse arrays, and gradients of embeddings against dense ones."""
    me, n = ring.rank(), ring.size()
    dense = np.zeros((10, 3), np.float32)
    dense[[me, 5]] = of(me, 2, 3)
    sparse = ring.allreduce(mx.nd.array(dense).tostype("row_sparse"), op=ring.Sum)
    expected = ring.allreduce(mx.nd.array(dense), op=ring.Sum)
    empty = ring.allreduce(mx.nd.sparse.zeros("row_sparse", (4, 2)), op=ring.Average)
    found: dict[str, Any] = {
        "sum": distance(sparse, expected),
        "stype": sparse.stype,
        "empty": distance(empty, np.zeros((4, 2))),
    }
    weights = []
    for is_sparse in (False, True):
        net = gluon.nn.Embedding(20, 4, sparse_grad=is_sparse)
        mx.random.seed(3)
        net.initialize(mx.init.Xavier())
        options = {"learning_rate": 0.5, "lazy_update": False}
        trainer = ring.DistributedTrainer(net.collect_params(), "sgd", options)
        for step in range(4):
            words = mx.nd.array(np.random.default_rng([me, step]).integers(0, 20, 6))
            with autograd.record():
                (net(words) ** 2).sum().backward()
            trainer.step(6)
        weights.append(net.weight.data().asnumpy())
    found["embedding"] = distance(*weights)
    found["same"] = same_everywhere(weights[1].tobytes())
    return {**found, "n": n}


@case
def batch_norm() -> dict[str, Any]:
    """Against BatchNorm on the batches of all ranks together; hybridized too; ranks have batches of other sizes."""
    me, n = ring.rank(), ring.size()
    sizes = [2 + 2 * rank for rank in range(n)]
    begin = sum(sizes[:me])
    mine = slice(begin, begin + sizes[me])
    found = {}
    for how in ("plain", "hybrid"):
        whole, own = gluon.nn.BatchNorm(in_channels=3), ring.SyncBatchNorm(in_channels=3)
        results = []
        for net, part in ((whole, slice(None)), (own, mine)):
            net.initialize(mx.init.One())
            if how == "hybrid":
                net.hybridize()
            for step in range(3):
                everything = of(step, sum(sizes), 3, 5) * 2 + 7
                x = mx.nd.array(everything[part])
                x.attach_grad()
                with autograd.record():
                    y = net(x)
                    loss = (y * mx.nd.array(of(50 + step, sum(sizes), 3, 5)[part])).sum()
                loss.backward()
            beta, gamma, mean, variance = (param for _, param in sorted(net.collect_params().items()))
            results.append([y, x.grad, beta.grad(), gamma.grad(), mean.data(), variance.data(), net(x)])
        for i, what in enumerate(("output", "input gradient", "beta", "gamma", "mean", "variance", "inference")):
            a, b = results[0][i], results[1][i]
            if what in ("output", "input gradient", "inference"):
                a = a[mine]
            if what in ("beta", "gamma"):
                b = ring.allreduce(b, op=ring.Sum)
            found[f"{how} {what}"] = distance(a, b) / max(float(np.abs(a.asnumpy()).max()), 1.0)
    return found


@case
def start() -> dict[str, Any]:
    """Parameters of known and of unknown shape, and arrays, get the root's values; only once."""
    me = ring.rank()
    mx.random.seed(me)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, in_units=5), gluon.nn.Dense(3))
    net.initialize(mx.init.Normal(1))
    ring.broadcast_parameters(net.collect_params(), root_rank=ring.size() - 1)
    x = mx.nd.array(of(1, 2, 5))
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    found = {"deferred": same_everywhere(net(x).asnumpy().tobytes())}
    found["gradient"] = all(float(np.abs(p.grad().asnumpy()).sum()) > 0 for p in net.collect_params().values())
    net.initialize(mx.init.Normal(1), force_reinit=True)
    found["once"] = not same_everywhere(net(x).asnumpy().tobytes())
    arrays = {"a": mx.nd.full((3,), me), "b": mx.nd.full((2,), me)}
    ring.broadcast_parameters(arrays, root_rank=1, prefix="arrays.")
    found["arrays"] = all(set(array.asnumpy()) == {1.0} for array in arrays.values())
    return found


@case
def mistakes() -> dict[str, Any]:
    me, n = ring.rank(), ring.size()
    found: dict[str, str] = {}

    def attempt(what: str, function: Callable[[], Any]) -> None:
        try:
            function()
            mx.nd.waitall()
            found[what] = ""
        except Exception as error:
            typed = isinstance(error, ring.as_ringcore_error(error).__class__)
            found[what] = f"{type(error).__name__}: {error}" + ("" if typed else " (not typed)")

    attempt("shapes", lambda: ring.allreduce(mx.nd.zeros((2 + me,)), name="shapes"))
    attempt("shapes, waited for", lambda: ring.allreduce_(mx.nd.zeros((2 + me,)), name="shapes").asnumpy())
    attempt("afterwards", lambda: ring.allreduce(mx.nd.zeros((2,)), name="afterwards").asnumpy())
    attempt("integers", lambda: ring.allreduce(mx.nd.array([1, 2], dtype="int32")))
    attempt("no array", lambda: ring.allreduce([1.0]))
    attempt("csr", lambda: ring.allreduce(mx.nd.sparse.zeros("csr", (2, 2))))
    attempt("root", lambda: ring.broadcast(mx.nd.zeros((2,)), 99))
    attempt("splits", lambda: ring.alltoall(mx.nd.zeros((3,)), [1] * n + [7]))
    attempt("splits of one", lambda: ring.alltoall(mx.nd.zeros((n,)), [1] * n if me else [n] * n))
    attempt("uneven", lambda: ring.alltoall(mx.nd.zeros((n + 1,))))
    attempt("other tails", lambda: ring.allgather(mx.nd.zeros((2, 2 + me)), name="tails"))
    attempt("wrapped twice", lambda: ring.DistributedOptimizer(ring.DistributedOptimizer(mx.optimizer.SGD())))
    attempt("no optimizer", lambda: ring.DistributedOptimizer("sgd"))
    attempt("trainer", lambda: ring.DistributedTrainer([], ring.DistributedOptimizer(mx.optimizer.SGD())))
    attempt("parameters", lambda: ring.broadcast_parameters([mx.nd.zeros((2,))]))
    attempt("compression", lambda: mx.kv.create("ring").set_gradient_compression({"type": "2bit", "threshold": 0.5}))
    store, rows_of_two = mx.kv.create("ring"), mx.nd.sparse.zeros("row_sparse", (2, 2))
    attempt("sparse weights", lambda: store.row_sparse_pull("a"))
    attempt("sparse weights stored", lambda: store.init("a", rows_of_two))
    attempt("not stored", lambda: store.pull("a", mx.nd.zeros((2,))))
    store.init("b", mx.nd.zeros((2,)))
    attempt("stored twice", lambda: store.init("b", mx.nd.zeros((2,))))
    return found


def priorities_of_layers() -> list[int]:
    """In the order of the net, which is not that of the layers' names: dense10 comes before dense2."""
    net = gluon.nn.Sequential()
    for _ in range(12):
        net.add(gluon.nn.Dense(1, in_units=1, use_bias=False))
    net.initialize()
    trainer = ring.DistributedTrainer(net.collect_params(), "sgd")
    for i, layer in enumerate(net):
        layer.weight.grad()[:] = i
    sent: dict[float, int] = {}

    def note(tensors: list[Any], *, priority: int, **options: Any) -> None:
        sent[float(tensors[0].asnumpy().item())] = priority

    with mock.patch("ringcore_mxnet.trainer.grouped_allreduce_", note):
        trainer.allreduce_grads()
    return [sent[float(i)] for i in range(12)]


def first_layer_waits_for_no_other() -> bool:
    """The first layer is updated while the gradient of the last one has not been submitted by rank 1."""
    from ringcore_mxnet import trainer as module

    net = gluon.nn.Sequential()
    net.add(gluon.nn.Dense(1, in_units=1, use_bias=False), gluon.nn.Dense(1, in_units=1, use_bias=False))
    net.initialize()
    trainer = ring.DistributedTrainer(net.collect_params(), "sgd", {"momentum": 0.5}, prefix="two layers")
    with autograd.record():
        loss = net(mx.nd.ones((1, 1)))
    loss.backward()
    send = module.grouped_allreduce_
    withheld: list[Callable[[], Any]] = []

    def send_first(tensors: list[Any], **options: Any) -> None:
        if ring.rank() == 1 and options["priority"] < -1:
            withheld.append(lambda: send(tensors, **options))
        else:
            send(tensors, **options)

    with mock.patch.object(module, "grouped_allreduce_", send_first):
        trainer.step(1)
    net[0].weight.data().wait_to_read()
    ringcore.barrier()  # not before all ranks have seen that; that of ringcore_mxnet waits for all arrays
    for call in withheld:
        call()
    mx.nd.waitall()
    return True


@case
def the_rest() -> dict[str, Any]:
    """Uneven loops, objects, Adasum, priorities, a fork in between, copies of optimizers."""
    import pickle

    me, n = ring.rank(), ring.size()
    found: dict[str, Any] = {}
    for step in range(me + 1):
        ring.allreduce(mx.nd.ones((4,)), op=ring.Sum, name=f"uneven {step}")
    found["last"] = ring.join() == n - 1
    found["adasum"] = distance(ring.allreduce(mx.nd.full((3,), 2.0), op=ring.Adasum), np.full(3, 2.0)) < 1e-6
    urgent = [ring.allreduce(mx.nd.full((100,), 1.0), op=ring.Sum, priority=p, name=f"p{p}") for p in (-2, 0, 5)]
    found["priorities"] = max(distance(array, np.full(100, n)) for array in urgent) == 0.0
    found["first layers first"] = priorities_of_layers() == [-1 - i for i in range(12)]
    found["first layer alone"] = first_layer_waits_for_no_other()
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(of(1, 40, 3)), batch_size=10, num_workers=1)
    under_way = [ring.allreduce(mx.nd.ones((10000,)), op=ring.Sum, name=f"fork {i}") for i in range(20)]
    found["loader"] = sum(len(ring.allreduce(batch)) for batch in data) == 40
    found["fork"] = max(distance(array, np.full(10000, n)) for array in under_way) == 0.0
    optimizer = ring.DistributedOptimizer(mx.optimizer.Adam(learning_rate=0.25))
    optimizer.set_learning_rate(0.5)
    copy = pickle.loads(pickle.dumps(optimizer))
    found["copy"] = (copy.learning_rate, type(copy).__name__) == (0.5, "DistributedOptimizer")
    return found


@case
def lost() -> dict[str, Any]:
    """Rank 1 is killed while arrays of the others wait in MXNet's engine; afterwards the process starts anew."""
    import signal

    ring.allreduce(mx.nd.ones((3,))).wait_to_read()
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize()
    trainer = ring.DistributedTrainer(net.collect_params(), "sgd")
    if ring.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    waiting = [ring.allreduce_(mx.nd.ones((1000,)), name=f"w{i}") for i in range(100)]
    results = [array * 2 for array in waiting]
    found = {}

    def attempt(what: str, function: Callable[[], Any]) -> None:
        try:
            function()
            found[what] = ""
        except ConnectionError as error:
            found[what] = f"{type(error).__name__}: {error}"

    attempt("asnumpy", results[50].asnumpy)
    attempt("waitall", mx.nd.waitall)
    with autograd.record():
        net(mx.nd.ones((1, 2))).sum().backward()
    attempt("step", lambda: trainer.step(1))
    ring.shutdown()
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    ring.init()
    found["again"] = ring.allreduce(mx.nd.ones((3,))).asnumpy().tolist()
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    ring.init()
    rank = ring.rank()
    for name in sys.argv[2:]:
        (folder / f"{name}.{rank}.json").write_text(json.dumps(CASES[name]()))
        ring.is_initialized() and name != "lost" and ring.barrier()
