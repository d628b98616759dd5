"""Ranks that train are like one process that trains on all their batches: with Gluon, modules, and key-value stores."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import ringcore
import ringcore_mxnet as ring
from ringcore import adapter
from support.on_ranks import THREE_OVER_TCP, TWO, on
from support.values import distance, of, same_everywhere

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon

# Eight steps of float32 sums in another order; gradients and weights are about 1.
ROUNDING = 1e-6
# Gradients of about 1 in 11 bits, eight steps with a learning rate of 0.1 and momentum.
ROUNDING_OF_16_BITS = 8 * 2**-11
BATCH, STEPS = 12, 8  # of all ranks together: 2 and 3 divide it
SGD, ADAM = {"learning_rate": 0.1, "momentum": 0.9}, {"learning_rate": 0.01}


def floats(rank: int, *shape: int) -> Any:
    return of(rank, *shape).astype(np.float32)


def check_weights(alone: list[Any], mine: list[Any], rounding: float = ROUNDING) -> None:
    for expected, own in zip(alone, mine, strict=True):
        assert distance(expected, own) < rounding
    assert same_everywhere([weights.tobytes() for weights in mine])


def net_of(kind: str) -> Any:
    net = gluon.nn.HybridSequential(prefix="")
    with net.name_scope():
        if kind == "images":
            net.add(gluon.nn.Conv2D(4, 3), gluon.nn.Activation("relu"), gluon.nn.Flatten(), gluon.nn.Dense(3))
        else:
            net.add(gluon.nn.Dense(16, activation="tanh"), gluon.nn.Dense(3))
    return net


def data_of(kind: str, step: int) -> tuple[Any, Any]:
    x = floats(1000 + step, BATCH, 2, 6, 6) if kind == "images" else floats(1000 + step, BATCH, 7)
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


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize(
    ("kind", "optimizer", "options", "how"),
    [
        *[("vectors", "sgd", SGD, how) for how in ("plain", "hybrid", "kvstore", "kvstore local", "predivide")],
        *[("vectors", "sgd", SGD, how) for how in ("groups", "fp16")],
        *[("vectors", "adam", ADAM, how) for how in ("plain", "kvstore")],
        *[("images", "sgd", SGD, how) for how in ("plain", "hybrid")],
    ],
)
def test_nets_of_gluon(kind: str, optimizer: str, options: dict[str, Any], how: str) -> None:
    alone, mine = (trained(kind, optimizer, options, way) for way in ("alone", how))
    check_weights(alone, mine, ROUNDING_OF_16_BITS if how == "fp16" else ROUNDING)


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised_gradients_are_near_the_average(kind: str) -> None:
    own, gradients = gradients_of(layer := gluon.nn.Dense(100, in_units=200, use_bias=False))
    trainer = ring.DistributedTrainer(
        layer.collect_params(), "sgd", compression=getattr(ring.Compression, kind)
    )  # fmt: skip
    trainer.allreduce_grads()
    average, most = np.mean(gradients, axis=0), 127 if kind == "int8" else 7
    assert distance(own.asnumpy(), average) < ring.size() * np.abs(gradients).max() * 0.51 / most
    assert same_everywhere([own.asnumpy().tobytes()])


@on(TWO, THREE_OVER_TCP)
def test_a_gradient_of_low_rank_is_sent_as_two_narrow_matrices() -> None:
    """That of one row has rank 1, and the average at most as many as there are ranks: nothing is lost."""
    own, gradients = gradients_of(layer := gluon.nn.Dense(100, in_units=200, use_bias=False))
    exchange = ring.Compression.powersgd(ring.size())
    ring.DistributedTrainer(layer.collect_params(), "sgd", compression=exchange).allreduce_grads()
    assert distance(own.asnumpy(), np.mean(gradients, axis=0)) < 1e-4
    assert same_everywhere([own.asnumpy().tobytes()])
    assert list(exchange.state_dict()) == ["errors", "warmup_steps", "queries"]
    with pytest.raises(ringcore.InvalidArgument, match=r"one after the other; use Compression\.int8"):
        ring.DistributedOptimizer(mx.optimizer.create("sgd"), compression=exchange)


@on(TWO)
def test_gradients_are_summed_where_that_is_asked_for() -> None:
    own, gradients = gradients_of(layer := gluon.nn.Dense(100, in_units=200, use_bias=False))
    ring.DistributedTrainer(layer.collect_params(), "sgd", op=ring.Sum).allreduce_grads()
    assert distance(own.asnumpy(), np.sum(gradients, axis=0)) < 1e-4


@on(TWO)
def test_what_a_trainer_cannot_do_is_refused_when_it_is_made() -> None:
    def trainer(**options: Any) -> Any:
        layer = gluon.nn.Dense(2, in_units=3)
        layer.initialize()
        return ring.DistributedTrainer(layer.collect_params(), "sgd", **options)

    onebit = ring.Compression.onebit()
    refused: list[tuple[str, dict[str, Any]]] = [
        ("op=Adasum combines the steps that ranks have made", {"op": ring.Adasum}),
        ("op=Average or op=Sum, not MAX", {"op": ring.Max}),
        ("predivide_factor divides an average", {"op": ring.Sum, "gradient_predivide_factor": 2.0}),
        (
            "OneBit averages all gradients together; leave out op",
            {"op": ring.Sum, "compression": onebit},
        ),
        ("OneBit .* leave out op, groups", {"groups": 2, "compression": onebit}),
        (
            'OneBit begins when all .* leave out overlap="forward"',
            {"overlap": "forward", "compression": onebit},
        ),
        ('always goes on with the next forward; leave overlap out, or pass "forward"', {"overlap": "backward"}),
        ("overlap is \"forward\", or is left out, not 'sideways'", {"overlap": "sideways"}),
    ]
    for told, options in refused:
        with pytest.raises(ringcore.InvalidArgument, match=told):
            trainer(**options)
    with pytest.raises(ringcore.InvalidArgument, match="op=Adasum combines the steps"):
        ring.DistributedOptimizer(mx.optimizer.create("sgd"), op=ring.Adasum)


@on(TWO)
def test_the_next_forward_begins_while_gradients_are_on_their_way() -> None:
    """As it is asked for, and without: a step returns before the others have come to it."""
    own = [gluon.nn.Dense(2, in_units=3), gluon.nn.Dense(2, in_units=3)]
    trainers = []
    for layer, options in zip(own, ({}, {"overlap": "forward"}), strict=True):
        layer.initialize(mx.init.One())
        trainers.append(ring.DistributedTrainer(layer.collect_params(), "sgd", {"learning_rate": 1.0}, **options))
    for step in range(2):  # in the first one weights are compared
        if step == 1 and ring.rank() == 1:
            ring.allreduce(mx.nd.ones((1,)), name="rank 0 has gone on").wait_to_read()
        for layer, trainer in zip(own, trainers, strict=True):
            with autograd.record():
                loss = layer(mx.nd.ones((1, 3))).sum()
            loss.backward()
            trainer.step(1)
        if step == 1 and ring.rank() == 0:
            ring.allreduce(mx.nd.ones((1,)), name="rank 0 has gone on")
    assert [float(layer.weight.data().asnumpy()[0, 0]) for layer in own] == [-1.0, -1.0]


@on(TWO)
def test_in_an_elastic_job_overlap_is_off_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(adapter, "is_elastic", lambda: True)
    for options in ({}, {"overlap": "forward"}):
        layer = gluon.nn.Dense(2, in_units=3)
        layer.initialize()
        ring.DistributedTrainer(layer.collect_params(), "sgd", **options)
    told = [record.message for record in caplog.records if "overlap" in record.message]
    assert len(told) == 1
    assert 'overlap="forward" is off: in an elastic job' in told[0]


def gradients_of(layer: Any) -> tuple[Any, list[Any]]:
    """That of this rank, where the layer has it, and those of all ranks."""
    layer.initialize(mx.init.Zero())
    pairs = [(floats(rank, 100), floats(50 + rank, 200)) for rank in range(ring.size())]
    factors, row = pairs[ring.rank()]
    with autograd.record():
        loss = (layer(mx.nd.array([row])) * mx.nd.array([factors])).sum()
    loss.backward()
    (parameter,) = layer.collect_params().values()
    return parameter.grad(), [np.outer(one, other) for one, other in pairs]


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


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize(("optimizer", "options"), [("sgd", SGD), ("adam", ADAM)])
@pytest.mark.parametrize("how", ["kvstore", "optimizer"])
def test_modules(optimizer: str, options: dict[str, Any], how: str) -> None:
    check_weights(fitted("alone", optimizer, options), fitted(how, optimizer, options))


@on(TWO, THREE_OVER_TCP)
def test_embeddings_with_row_sparse_gradients() -> None:
    weights = []
    for is_sparse in (False, True):
        net = gluon.nn.Embedding(20, 4, sparse_grad=is_sparse)
        mx.random.seed(3)
        net.initialize(mx.init.Xavier())
        options = {"learning_rate": 0.5, "lazy_update": False}
        trainer = ring.DistributedTrainer(net.collect_params(), "sgd", options)
        for step in range(4):
            words = mx.nd.array(np.random.default_rng([ring.rank(), step]).integers(0, 20, 6))
            with autograd.record():
                (net(words) ** 2).sum().backward()
            trainer.step(6)
        weights.append(net.weight.data().asnumpy())
    check_weights(weights[:1], weights[1:])


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("how", ["plain", "hybrid"])
def test_batch_normalisation_over_batches_of_other_sizes(how: str) -> None:
    me, n = ring.rank(), ring.size()
    sizes = [2 + 2 * rank for rank in range(n)]
    begin = sum(sizes[:me])
    mine = slice(begin, begin + sizes[me])
    results = []
    nets = (gluon.nn.BatchNorm(in_channels=3), slice(None)), (ring.SyncBatchNorm(in_channels=3), mine)
    for net, part in nets:
        net.initialize(mx.init.One())
        if how == "hybrid":
            net.hybridize()
        for step in range(3):
            everything = floats(step, sum(sizes), 3, 5) * 2 + 7
            x = mx.nd.array(everything[part])
            x.attach_grad()
            with autograd.record():
                y = net(x)
                loss = (y * mx.nd.array(floats(50 + step, sum(sizes), 3, 5)[part])).sum()
            loss.backward()
        beta, gamma, mean, variance = (param for _, param in sorted(net.collect_params().items()))
        results.append([y, x.grad, beta.grad(), gamma.grad(), mean.data(), variance.data(), net(x)])
    for i, what in enumerate(("output", "input gradient", "beta", "gamma", "mean", "variance", "inference")):
        whole, own = results[0][i], results[1][i]
        if what in ("output", "input gradient", "inference"):
            whole = whole[mine]
        if what in ("beta", "gamma"):
            own = ring.allreduce(own, op=ring.Sum)
        assert distance(whole, own) < ROUNDING * max(float(np.abs(whole.asnumpy()).max()), 1.0), what


@on(TWO, THREE_OVER_TCP)
def test_parameters_get_the_roots_values_also_when_their_shape_is_known_later_and_only_once() -> None:
    me = ring.rank()
    mx.random.seed(me)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, in_units=5), gluon.nn.Dense(3))
    net.initialize(mx.init.Normal(1))
    ring.broadcast_parameters(net.collect_params(), root_rank=ring.size() - 1)
    x = mx.nd.array(floats(1, 2, 5))
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    assert same_everywhere(net(x).asnumpy().tobytes())
    for name, parameter in net.collect_params().items():
        assert float(np.abs(parameter.grad().asnumpy()).sum()) > 0, name
    net.initialize(mx.init.Normal(1), force_reinit=True)
    assert not same_everywhere(net(x).asnumpy().tobytes())
    arrays = {"a": mx.nd.full((3,), me), "b": mx.nd.full((2,), me)}
    ring.broadcast_parameters(arrays, root_rank=1, prefix="arrays.")
    for array in arrays.values():
        assert set(array.asnumpy()) == {1.0}


@on(TWO, THREE_OVER_TCP)
def test_layers_are_sent_in_the_order_of_the_net() -> None:
    """Which is not that of the layers' names: dense10 comes before dense2."""
    net = gluon.nn.Sequential()
    for _ in range(12):
        net.add(gluon.nn.Dense(1, in_units=1, use_bias=False))
    net.initialize()
    trainer = ring.DistributedTrainer(net.collect_params(), "sgd", broadcast=True)
    for i, layer in enumerate(net):
        layer.weight.grad()[:] = i
    sent: dict[float, int] = {}

    def note(tensors: list[Any], *, priority: int, **options: Any) -> None:
        sent[float(tensors[0].asnumpy().item())] = priority

    with mock.patch("ringcore_mxnet.trainer.grouped_allreduce_", note):
        trainer.allreduce_grads()
    assert [sent[float(i)] for i in range(12)] == [-1 - i for i in range(12)]


@on(TWO, THREE_OVER_TCP)
def test_the_first_layer_is_updated_while_the_last_ones_gradient_is_still_withheld() -> None:
    from ringcore_mxnet import trainer as module

    net = gluon.nn.Sequential()
    net.add(gluon.nn.Dense(1, in_units=1, use_bias=False), gluon.nn.Dense(1, in_units=1, use_bias=False))
    net.initialize()
    trainer = ring.DistributedTrainer(
        net.collect_params(), "sgd", {"momentum": 0.5}, prefix="two layers", broadcast=True
    )
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


@on(TWO, THREE_OVER_TCP)
def test_an_optimizer_is_pickled_with_what_was_set() -> None:
    optimizer = ring.DistributedOptimizer(mx.optimizer.Adam(learning_rate=0.25))
    optimizer.set_learning_rate(0.5)
    copy = pickle.loads(pickle.dumps(optimizer))
    assert copy.learning_rate == 0.5
    assert isinstance(copy, ring.DistributedOptimizer)


@on(TWO, THREE_OVER_TCP)
def test_what_cannot_be_wrapped_says_so() -> None:
    for told, function in {
        "wrap it once": lambda: ring.DistributedOptimizer(ring.DistributedOptimizer(mx.optimizer.SGD())),
        "mx.optimizer.create": lambda: ring.DistributedOptimizer("sgd"),
        "unwrapped": lambda: ring.DistributedTrainer([], ring.DistributedOptimizer(mx.optimizer.SGD())),
        r"net.collect_params\(\)": lambda: ring.broadcast_parameters([mx.nd.zeros((2,))]),
    }.items():
        with pytest.raises(ringcore.InvalidArgument, match=told):
            function()
