"""Ranks that step on their own in `fit`, and meet now and then."""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import keras
import pytest
import ringcore
import ringcore_keras as ring
from ringcore import adapter
from ringcore_keras.variables import synchronize_state
from support.on_keras import BATCH, ROUNDING, TWO, arrays, compiled, data, difference, digest, model, same_everywhere
from support.on_ranks import on


def sgd(rate: float = 0.1, **options: Any) -> Any:
    return keras.optimizers.SGD(rate, **options)


def trained(net: Any, batches: int, *callbacks: Any, epochs: int = 1) -> Any:
    """On batches of this rank's own."""
    x, y = ring.shard(data(ring.size() * batches * BATCH))
    net.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
    return net


@on(*TWO)
@pytest.mark.parametrize("way", ["local", "diloco"])
def test_meeting_at_each_step_is_training_together(way: str) -> None:
    meets = ring.callbacks.LocalSGDCallback(1) if way == "local" else ring.callbacks.DiLoCoCallback(sgd(1.0), 1)
    net = trained(compiled(model(), sgd()), 10, meets)
    together = trained(compiled(model(), ring.DistributedOptimizer(sgd())), 10)
    assert difference(net, together) < ROUNDING < difference(model(), together)
    assert same_everywhere(digest(net.weights))


@on(*TWO)
@pytest.mark.parametrize("compression", ["fp16", "int8"])
def test_what_is_sent_of_an_average_is_how_far_ranks_have_come(compression: str) -> None:
    nets = []
    for sent in ("none", compression):
        net = compiled(model(), sgd())
        net.trainable_variables[-1].assign([100.0, 100.0, 100.0])
        meets = ring.callbacks.LocalSGDCallback(3, compression=sent)
        nets.append(trained(net, 7, meets))
        assert same_everywhere(digest(net.weights))
        assert bool(meets.state_dict().get("anchors")) == (sent != "none")
    # What is rounded is the way, and not the weights of 100; inside a host nothing is quantised.
    assert difference(*nets) < (2e-3 if compression == "fp16" else 2e-5)
    assert compression != "fp16" or difference(*nets) > 1e-7


class Differs(keras.callbacks.Callback):
    """After which steps ranks have different values of each variable."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[bool]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found.append([not same_everywhere(digest([one])) for one in self.model.trainable_variables])


@on(*TWO)
def test_fragments_take_turns_and_training_ends_with_the_same_weights() -> None:
    differs = Differs()
    meets = ring.callbacks.DiLoCoCallback(sgd(1.0), 4, fragments=2, compression=ring.Compression.int8)
    net = trained(compiled(model(), sgd()), 3, meets, differs, epochs=3)
    # The first variable is larger than all others.
    turns = {2: [True] + [False] * 3, 0: [False] + [True] * 3}
    assert differs.found == [turns.get(number % 4, [True] * 4) for number in range(1, 10)]
    assert same_everywhere(digest(net.weights))


@on(*TWO)
def test_the_outer_optimizer_steps_by_the_average_way() -> None:
    net = trained(compiled(model(), sgd()), 6, ring.callbacks.DiLoCoCallback(sgd(0.7, momentum=0.9, nesterov=True), 3))
    reference, outer = compiled(model(), sgd()), sgd(0.7, momentum=0.9, nesterov=True)
    x, y = ring.shard(data(ring.size() * 6 * BATCH))
    for rows in (slice(0, 3 * BATCH), slice(3 * BATCH, 6 * BATCH)):
        anchors = arrays(reference.trainable_variables)
        reference.fit(x[rows], y[rows], batch_size=BATCH, shuffle=False, verbose=0)
        ways = [anchor - own for anchor, own in zip(anchors, arrays(reference.trainable_variables), strict=True)]
        for variable, anchor in zip(reference.trainable_variables, anchors, strict=True):
            variable.assign(anchor)
        averages = [keras.ops.convert_to_tensor(ringcore.allreduce(way)) for way in ways]
        outer.apply(averages, reference.trainable_variables)
    assert difference(net, reference) < ROUNDING


@on(*TWO)
@pytest.mark.parametrize(("delay", "alpha", "compression"), [(1, 0.25, "none"), (2, 0.0, "bf16")])
def test_outer_steps_are_taken_later_by_the_ways_of_before(delay: int, alpha: float, compression: str) -> None:
    """And what is left when training ends."""
    meets = ring.callbacks.DiLoCoCallback(
        sgd(0.7, momentum=0.9, nesterov=True), 4, delay=delay, alpha=alpha, compression=compression
    )
    net = trained(compiled(model(), sgd()), 10, meets)
    reference, outer = compiled(model(), sgd()), sgd(0.7, momentum=0.9, nesterov=True)
    variables = reference.trainable_variables
    shared = arrays(variables)
    x, y = ring.shard(data(ring.size() * 10 * BATCH))
    averages: list[Any] = []

    def send() -> None:
        ways = [one - own for one, own in zip(shared, arrays(variables), strict=True)]
        averages[:] = ringcore.grouped_allreduce(ways, compression=compression)

    def step_outer(share: float) -> None:
        own = arrays(variables)
        for variable, one in zip(variables, shared, strict=True):
            variable.assign(one)
        outer.apply([keras.ops.convert_to_tensor(average) for average in averages], variables)
        shared[:] = arrays(variables)
        for variable, one, value in zip(variables, shared, own, strict=True):
            variable.assign(one + share * (value - one))

    for number in range(1, 11):
        rows = slice((number - 1) * BATCH, number * BATCH)
        reference.fit(x[rows], y[rows], batch_size=BATCH, shuffle=False, verbose=0)
        if (number + delay) % 4 == 0:
            send()
        if number % 4 == 0:
            step_outer(alpha)
    if delay == 2:  # sent after the last step
        step_outer(0.0)
    else:
        send()
        step_outer(0.0)
    assert difference(net, reference) < ROUNDING
    assert same_everywhere(digest(net.weights))


class TakesTurns(keras.callbacks.Callback):
    """Rank 1 makes its second step when rank 0 has made its third one."""

    def __init__(self, pipe: Path) -> None:
        super().__init__()
        self._pipe = pipe

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if ring.rank() == 1 and batch == 1:
            self._pipe.read_bytes()  # ends when rank 0 has opened and closed it

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if ring.rank() == 0 and batch == 2:
            self._pipe.write_bytes(b"")


@on(*TWO)
def test_nobody_waits_while_ways_are_averaged(shared_folder: Path) -> None:
    pipe = shared_folder / "pipe"
    with contextlib.suppress(FileExistsError):
        os.mkfifo(pipe)
    meets = ring.callbacks.DiLoCoCallback(sgd(1.0), 4, delay=2)
    net = trained(compiled(model(), sgd()), 4, meets, TakesTurns(pipe))
    assert same_everywhere(digest(net.weights))


@on(*TWO)
def test_steps_that_keras_tells_of_at_once_meet_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the way is sent, the outer step is taken, or both, or one and then the other."""
    taken: list[Any] = []
    meets = ring.callbacks.DiLoCoCallback(sgd(1.0), 10, delay=3)
    monkeypatch.setattr(meets, "_part", lambda _number: [])
    monkeypatch.setattr(meets, "_send", lambda number: meets._ways.update({number: list}) or taken.append("send"))
    monkeypatch.setattr(meets, "_step_outer", lambda number, _: meets._ways.pop(number) and taken.append("step"))
    monkeypatch.setattr(meets, "_anchors", {"a": 0})
    for last, expected in {
        6: [], 7: ["send"], 9: [], 19: ["step", "send"], 20: ["step"], 30: ["send", "step"], 39: ["send"],
    }.items():  # fmt: skip
        meets.on_train_batch_end(last - 1)
        assert taken == expected, last
        taken.clear()


@on(*TWO)
def test_arguments_that_differ_are_told_before_the_first_step() -> None:
    own = ring.rank()
    made = {
        r"LocalSGDCallback with different arguments: every is 2 on ranks \[0\] and 3 on ranks \[1\]\. Remedy": (
            ring.callbacks.LocalSGDCallback(2 + own)
        ),
        r"DiLoCoCallback .*every is 4.* and 6.*; compression is none on ranks \[0\] and bf16 on ranks \[1\]; "
        r"fragments is 1.* and 2.*; outer is SGD .*0\.5.*0\.75": (
            ring.callbacks.DiLoCoCallback(
                sgd(0.5 + 0.25 * own), 4 + 2 * own, fragments=1 + own, compression=["none", "bf16"][own]
            )
        ),
    }
    net = compiled(model(), sgd())
    before = digest(net.weights)
    for told, callback in made.items():
        with pytest.raises(ringcore.MismatchError, match=told):
            trained(net, 1, callback)
    assert digest(net.weights) == before


@on(*TWO)
def test_optimizers_of_the_same_arguments_are_the_same_whatever_their_names_are() -> None:
    for _ in range(ring.rank()):
        sgd()
    outer = sgd(keras.optimizers.schedules.ExponentialDecay(0.7, 5, 0.9), momentum=0.9, name=f"outer_{ring.rank()}")
    net = compiled(model(), sgd())
    callback = ring.callbacks.DiLoCoCallback(outer, 2)
    for _ in range(2):
        trained(net, 3, callback)
    assert same_everywhere(digest(net.weights))


@on(*TWO)
def test_ranks_of_an_elastic_job_compare_no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever joins would be alone with it."""
    monkeypatch.setattr(adapter, "is_elastic", lambda: True)
    monkeypatch.setattr(adapter, "check_arguments", None)
    trained(compiled(model(), sgd()), 2, ring.callbacks.LocalSGDCallback(2))


@on(*TWO)
def test_ranks_of_an_elastic_job_count_anew_and_say_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(adapter, "is_elastic", lambda: True)
    meets = ring.callbacks.LocalSGDCallback(3)
    counted = Counted(meets)
    net = compiled(model(), sgd())
    for _ in range(2):
        meets.load_state_dict({"steps": 2, "met": [0]})
        trained(net, 1, meets, counted)
    assert counted.found == [1, 1]
    told = [record.message for record in caplog.records if record.name == "ringcore"]
    assert len(told) == 1
    assert "LocalSGDCallback counts steps from 0" in told[0]


class Counted(keras.callbacks.Callback):
    """How many steps a callback knows of after each batch."""

    def __init__(self, meets: Any) -> None:
        super().__init__()
        self.meets = meets
        self.found: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found.append(self.meets.state_dict()["steps"])


class Keeps(keras.callbacks.Callback):
    """What a run needs that goes on from the end of the first epoch."""

    def __init__(self, meets: Any) -> None:
        super().__init__()
        self.meets = meets
        self.kept: list[tuple[Any, Any, bytes]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        synchronize_state(self.model)
        net, optimizer = arrays(self.model.weights), arrays(self.model.optimizer.variables)
        self.kept.append((net, optimizer, pickle.dumps(self.meets.state_dict())))


@on(*TWO)
@pytest.mark.parametrize(
    ("way", "fragments", "delay"), [("local", 1, 0), ("diloco", 1, 0), ("diloco", 2, 0), ("diloco", 2, 2)]
)
def test_a_run_that_goes_on_from_a_state_gets_the_weights_of_one_that_was_not_stopped(
    way: str, fragments: int, delay: int
) -> None:
    """It was stopped between two meetings, when each rank had weights of its own."""

    def meeting() -> Any:
        if way == "local":
            return ring.callbacks.LocalSGDCallback(4)
        outer = sgd(0.7, momentum=0.9, nesterov=True)
        return ring.callbacks.DiLoCoCallback(outer, 4, fragments=fragments, delay=delay)

    def inner() -> Any:
        return keras.optimizers.Adam(0.01)

    keeps = Keeps(meeting())
    whole = trained(compiled(model(), inner()), 7, keeps.meets, keeps, epochs=3)
    for done, (weights, slots, state) in enumerate(keeps.kept[:2], start=1):
        keras.utils.clear_session()
        net = compiled(model(), inner())
        net.optimizer.build(net.trainable_variables)
        for variable, value in zip([*net.weights, *net.optimizer.variables], [*weights, *slots], strict=True):
            variable.assign(value)
        meets = meeting()
        meets.load_state_dict(pickle.loads(state))
        assert pickle.dumps(meets.state_dict()) == state
        x, y = ring.shard(data(ring.size() * 7 * BATCH))
        net.fit(
            x, y, batch_size=BATCH, initial_epoch=done, epochs=3, shuffle=False, verbose=0, callbacks=[meets]
        )  # fmt: skip
        assert digest(net.weights) == digest(whole.weights)


@on(*TWO)
@pytest.mark.parametrize("way", ["local", "diloco"])
def test_ranks_that_do_not_all_go_on_from_a_state_are_told_before_the_first_step(way: str) -> None:
    """A node has lost its file. In a later `fit` of a callback that has compared its arguments, too."""
    meets = ring.callbacks.LocalSGDCallback(4) if way == "local" else ring.callbacks.DiLoCoCallback(sgd(0.7), 4)
    net = trained(compiled(model(), sgd()), 6, meets)
    keeps = Keeps(meets)
    trained(net, 6, meets, keeps)
    before = digest(net.weights)
    if ring.rank() == 0:
        meets.load_state_dict(pickle.loads(keeps.kept[0][2]))
    told = r"the loaded state is after 6 steps, met at \[4\].* on ranks \[0\] and None on ranks \[1\]"
    with pytest.raises(ringcore.MismatchError, match=told):
        trained(net, 1, meets)
    assert digest(net.weights) == before


@on(*TWO)
def test_a_state_that_does_not_fit_is_refused() -> None:
    meets = ring.callbacks.DiLoCoCallback(sgd(0.7, momentum=0.9), 4, fragments=2)
    trained(compiled(model(), sgd()), 5, meets)
    state = meets.state_dict()
    with pytest.raises(ringcore.InvalidArgument, match="the state is of 2 fragments, and here are 1"):
        ring.callbacks.DiLoCoCallback(sgd(), 4).load_state_dict(state)
    other = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    for outer, net in ((sgd(0.7, momentum=0.9), other), (sgd(0.7), model())):
        again = ring.callbacks.DiLoCoCallback(outer, 4, fragments=2)
        again.load_state_dict(state)
        with pytest.raises(ringcore.InvalidArgument, match="state of another model or outer optimizer"):
            trained(compiled(net, sgd()), 1, again)


@on(*TWO)
def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ringcore.InvalidArgument, match="every is at least 1"):
        ring.callbacks.LocalSGDCallback(0)
    with pytest.raises(ringcore.InvalidArgument, match="at most every = 2"):
        ring.callbacks.DiLoCoCallback(sgd(), 2, fragments=3)
    with pytest.raises(ringcore.InvalidArgument, match="below every = 2, not 2"):
        ring.callbacks.DiLoCoCallback(sgd(), 2, delay=2)
    with pytest.raises(ringcore.InvalidArgument, match="alpha is from 0 to 1, not 2"):
        ring.callbacks.DiLoCoCallback(sgd(), 2, delay=1, alpha=2)
    with pytest.raises(ringcore.InvalidArgument, match="compile the model with the optimizer itself"):
        trained(compiled(model(), ring.DistributedOptimizer(sgd())), 1, ring.callbacks.LocalSGDCallback(2))
    keras.utils.set_random_seed(ring.rank())
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    with pytest.raises(ringcore.MismatchError, match="BroadcastGlobalVariablesCallback"):
        trained(compiled(net, sgd()), 1, ring.callbacks.DiLoCoCallback(sgd(), 2))
