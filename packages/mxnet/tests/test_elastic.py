"""Elastic training of MXNet: a rank is killed, the other goes on with its net and trainer, and another joins."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ranks
from support.elastic_adapters import check_recovery

HEAD = """
import ringcore_mxnet as ring
import mxnet as mx
from ringcore_mxnet import elastic
"""
SETUP = """
mx.random.seed(os.getpid())
net = mx.gluon.nn.Dense(1, in_units=2)
net.initialize(mx.init.Normal())
trainer = ring.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.01})
state = elastic.MXNetState(net, trainer, step=0)

def step(state):
    with mx.autograd.record():
        loss = net(mx.nd.ones((4, 2))).sum()
    loss.backward()
    trainer.step(4)

def weights(state):
    return net.weight.data().asnumpy().ravel().tolist()
"""

# What Module has: an optimizer that updates weights one by one.
OPTIMIZER = """
mx.random.seed(os.getpid())
net = mx.gluon.nn.Dense(1, in_units=2)
net.initialize(mx.init.Normal())
optimizer = ring.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.01))
update = mx.optimizer.get_updater(optimizer)
state = elastic.MXNetState(net, None, step=0)

def step(state):
    with mx.autograd.record():
        loss = net(mx.nd.ones((4, 2))).sum()
    loss.backward()
    for i, param in enumerate(net.collect_params().values()):
        update(i, param.grad(), param.data())
    mx.nd.waitall()

def weights(state):
    return net.weight.data().asnumpy().ravel().tolist()
"""


@pytest.mark.long
def test_an_optimizer_takes_another_rank_in(tmp_path: Path) -> None:
    check_recovery(tmp_path, HEAD, OPTIMIZER)


def test_one_rank_goes_on_without_the_other_and_takes_another_in(tmp_path: Path) -> None:
    check_recovery(tmp_path, HEAD, SETUP)


AVERAGES = 'ring.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.01})'
MEETS = 'ring.LocalSGDTrainer(net.collect_params(), "adam", {"learning_rate": 0.01}, every=1)'
# Each rank takes the outer steps for itself: weights stay equal where a newcomer has the outer momentum of the others,
# and with a delay the ways that are under way.
STEPS_OUTER = """ring.DiLoCoTrainer(
    net.collect_params(), "adam", {"learning_rate": 0.01}, outer=mx.optimizer.NAG(learning_rate=0.7, momentum=0.9),
    every=EVERY, delay=DELAY, alpha=0.0,
)"""


# Between two meetings ranks have weights of their own, and share where all were the last time, what the outer optimizer
# has learned, and the ways that are under way.
WEIGHTS = """def weights(state):
    return net.weight.data().asnumpy().ravel().tolist()
"""
SHARED = """def weights(state):
    progress = trainer.progress()
    ways = [way for each in progress["ways"].values() for way in each]
    numbers = [value for part in (*progress["anchors"].values(), *ways) for value in part.ravel().tolist()]
    return [*numbers, *progress["outer"], *progress["met"]]
"""


@pytest.mark.parametrize(
    ("way", "goes_on_from"),
    [
        pytest.param(MEETS.replace("every=1", 'every=3, compression="bf16"'), 5, id="local"),
        pytest.param(STEPS_OUTER.replace("EVERY", "3").replace("DELAY", "0"), 5, id="diloco"),
        # The sixth step is one in which ranks meet, and with the delay one whose averages have come.
        pytest.param(STEPS_OUTER.replace("EVERY", "3").replace("DELAY", "2"), 6, id="delayed", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_comes_between_two_outer_steps_shares_what_all_share(
    way: str, goes_on_from: int, tmp_path: Path
) -> None:
    assert AVERAGES in SETUP and WEIGHTS in SETUP
    script = SETUP.replace(AVERAGES, way).replace(WEIGHTS, SHARED)
    check_recovery(tmp_path, HEAD, script, goes_on_from=goes_on_from)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(MEETS, id="local"),
        pytest.param(STEPS_OUTER.replace("EVERY", "1").replace("DELAY", "0"), id="diloco", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_comes_has_what_ranks_know_that_step_on_their_own(way: str, tmp_path: Path) -> None:
    assert AVERAGES in SETUP
    check_recovery(tmp_path, HEAD, SETUP.replace(AVERAGES, way))


def gets_what_has_no_values_yet(has_begun: bool) -> list[float]:
    import mxnet as mx
    import ringcore
    from ringcore.job.process_sets import process_set_for_a_while
    from ringcore_mxnet import elastic

    ringcore.init()
    mx.random.seed(ringcore.rank())
    net = mx.gluon.nn.Dense(2)
    net.initialize(mx.init.Normal())
    state = elastic.MXNetState(net, step=0)
    if not has_begun:
        state.sync()
    elif ringcore.rank() < 2:
        net(mx.nd.ones((1, 3)))
    with process_set_for_a_while([0, 2]) as process_set:  # As if rank 2 had joined the others since.
        state.sync_among = process_set
        state.sync()
    net(mx.nd.ones((1, 3)))
    return [float(value) for value in net.weight.data().asnumpy().ravel()]


def begins_with_another_net_on_rank_1() -> str:
    import mxnet as mx
    import ringcore
    from ringcore_mxnet import elastic

    ringcore.init()
    net = mx.gluon.nn.Dense(2, use_bias=ringcore.rank() == 0)
    net.initialize()
    try:
        elastic.run(lambda _: None)(elastic.MXNetState(net, step=0))
    except ringcore.RingcoreError as error:
        return str(error)
    return ""


def test_the_first_parameter_that_is_missing_is_named(tmp_path: Path) -> None:
    first, second = ranks.run(begins_with_another_net_on_rank_1, 2, tmp_path)
    assert "the state of rank 1 is not that of rank 0: it has no net: dense0_bias, which is a parameter of f" in second
    assert "rank 1" in first, "for the others it is a lost rank"


@pytest.mark.long
@pytest.mark.parametrize("has_begun", [False, True])
def test_who_joins_has_the_values_that_the_first_batch_gives_all(has_begun: bool, tmp_path: Path) -> None:
    first, second, newcomer = ranks.run(gets_what_has_no_values_yet, 3, tmp_path, has_begun)
    assert len(first) == 6 and newcomer == first
    assert (second == first) != has_begun
