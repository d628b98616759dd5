"""Gluon trainers whose ranks step on their own, and meet every so many steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import mxnet as mx
import numpy as np
from ringcore import InvalidArgument, RingcoreError, adapter
from ringcore.adapter import ProcessSet, context, global_process_set

from ringcore_mxnet._operations import grouped_allreduce
from ringcore_mxnet.compression import Compression, Compressor
from ringcore_mxnet.optimizer import DistributedOptimizer
from ringcore_mxnet.parameters import check_weights as compare
from ringcore_mxnet.trainer import without_numbers


class LocalSGDTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """`mx.gluon.Trainer` whose ranks step on their own, and average their parameters every so many steps (Stich 2019).

    The optimizer's state stays each rank's own. Every rank makes as many steps. With a compression there is one more
    copy of the parameters: what is sent is how far a rank has come since all had the same ones, and `save_states`
    writes these to a file of its name and `.outer`.

    Args:
        params: `net.collect_params()`, or a list of parameters; the same on every rank, dense, on one device.
        optimizer: A name or an optimizer of MXNet.
        optimizer_params: Of the optimizer, where it is named.
        every: Steps between two averages.
        compression: What is sent: `Compression.int8`, ...
        prefix: Put before the names of what is sent; tells trainers apart. Without one they are counted.
        process_set: The ranks that train together.
        check_weights: Before the first step, compare a hash of the parameters of all ranks, and raise `MismatchError`
            where they differ.

    Raises:
        InvalidArgument: `every` is below 1, or a DistributedOptimizer, which would average gradients as well.
        MismatchError: In the first step, ranks were given other arguments, begin with other weights, or have not all
            loaded a state; when they meet, one has loaded another since. On every rank.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        *,
        every: int,
        compression: type[Compressor] | str = Compression.none,
        prefix: str | None = None,
        process_set: ProcessSet = global_process_set,
        check_weights: bool = True,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            raise InvalidArgument("ranks step on their own here; pass the optimizer unwrapped")
        if every < 1:
            raise InvalidArgument(f"every is at least 1, not {every}")
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._ring_every = every
        self._ring_steps = 0
        self._ring_prefix = context().next_name("local") if prefix is None else prefix
        self._ring_set = process_set
        self._ring_checks_weights = check_weights
        # Those that decide when ranks meet and what they do there.
        self._ring_compression = Compression.chosen(compression, who=type(self).__name__)
        self._ring_arguments: dict[str, object] = {
            "every": every, "compression": Compression.name_of(self._ring_compression),
        }  # fmt: skip
        self._ring_compares_arguments = True
        self._ring_loads = 0  # states that were loaded since it was made
        self._ring_meetings = 0  # that have begun since then
        # Without an outer optimizer ranks average the parameters themselves. That of rate 1 adds the average way to
        # where all ranks were, which loses less when it is rounded.
        is_whole = self._ring_compression is Compression.none
        self._ring_outer: Any = None if is_whole else mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=1.0))
        self._ring_fragments, self._ring_delay, self._ring_alpha = 1, 0, 0.0
        self._ring_anchors: dict[int, Any] = {}
        # By number of the fragment: the averages that its next outer step takes, for which MXNet's engine may still
        # wait, and what raises where ranks have sent theirs behind different steps.
        self._ring_ways: dict[int, list[Any]] = {}
        self._ring_met_checks: dict[int, Callable[[], None]] = {}
        self._ring_met = [0]  # after which step a fragment's way was sent

    def _update(self, ignore_stale_grad: bool = False) -> None:
        adapter.check()
        self._compare_arguments()
        self._begin(self._trained())
        super()._update(ignore_stale_grad)
        self._ring_steps += 1
        self._meet(self._trained())

    def synchronize(self) -> None:
        """Average the parameters now: before they are evaluated or written. All ranks call it."""
        weights = self._trained()
        self._send(0, weights)
        self._step_outer(0, weights, 0.0)

    def _trained(self) -> dict[int, Any]:
        """The weights by their number."""
        found = {}
        for i, param in enumerate(self._params):
            if param.grad_req == "null":
                continue
            weight, *others = param.list_data()
            if others or weight.stype != "default":
                raise InvalidArgument(f"'{param.name}' is not a dense parameter on one device")
            found[i] = weight
        return found

    def _compare_arguments(self) -> None:
        """Before the first step, also of a run that goes on from a state.

        In an elastic job whoever joins has the others' steps, and compares with them where they have made none; what
        one has loaded the others take over.
        """
        compares, self._ring_compares_arguments = self._ring_compares_arguments, False
        if adapter.is_elastic():
            compares = self._ring_steps == 0
        if compares and self._ring_set.size() > 1:
            loaded = f"after {self._ring_steps} steps" if self._ring_loads and not adapter.is_elastic() else None
            adapter.check_arguments(
                type(self).__name__, {**self._ring_arguments, "the loaded state": loaded}, self._ring_set,
                name=f"{self._ring_prefix}.arguments",
            )  # fmt: skip

    def _start_check(self, names: int, *, blocking: bool) -> Callable[[], None]:
        """Begin to look whether the others meet after the same step; one may have loaded a state since it began.

        Args:
            names: So many of these looks may be under way at once. They are told apart by their order, as ranks that
                are at different steps meet for different fragments.
            blocking: The caller waits at once.
        """
        if self._ring_set.size() == 1 or adapter.is_elastic():  # there whoever joins has the others' steps
            return lambda: None
        self._ring_meetings += 1
        return adapter.start_progress_check(
            type(self).__name__, self._ring_steps, self._ring_loads, self._ring_set,
            name=f"{self._ring_prefix}.met.{self._ring_meetings % names}", blocking=blocking,
        )  # fmt: skip

    def _begin(self, weights: dict[int, Any]) -> None:
        """The next step is about to be made. Later than the first one each rank has weights of its own."""
        # The states of a LocalSGDTrainer without a compression say nothing of steps.
        if self._ring_checks_weights and self._ring_steps == 0 and self._ring_set.size() > 1:
            compare(
                {f"{i}.{without_numbers(self._params[i].name)}": weight for i, weight in weights.items()},
                self._ring_set, name=f"{self._ring_prefix}.weights",
                remedy="call broadcast_parameters(net.collect_params(), root_rank=0) before the first step",
            )  # fmt: skip
        if self._ring_outer is not None and not self._ring_anchors:
            self._ring_anchors = {i: weight.copy() for i, weight in weights.items()}

    def _meet(self, weights: dict[int, Any]) -> None:
        for number in range(self._ring_fragments):
            # They take turns, and each is due every so many steps.
            phase = self._ring_steps + number * self._ring_every // self._ring_fragments
            if (phase + self._ring_delay) % self._ring_every == 0:
                self._send(number, weights)
            if phase % self._ring_every == 0 and number in self._ring_ways:  # not where it was synchronized since
                self._step_outer(number, weights, self._ring_alpha)

    def _fragment(self, number: int, weights: dict[int, Any]) -> list[int]:
        dealt = adapter.dealt_evenly([weight.size for weight in weights.values()], self._ring_fragments)
        return [list(weights)[index] for index in dealt[number]]

    def _send(self, number: int, weights: dict[int, Any]) -> None:
        """Begin to average how far each rank has come with a fragment, or its weights where that is not noted."""
        check = self._start_check(self._ring_fragments + 1, blocking=self._ring_delay == 0)
        if self._ring_delay == 0:
            check()
        else:
            self._ring_met_checks[number] = check
        self._ring_met[number] = self._ring_steps
        places = self._fragment(number, weights)
        if self._ring_anchors:
            sent, compression = [self._ring_anchors[i] - weights[i] for i in places], self._ring_compression
        else:  # also before the first step, where nobody has come anywhere
            sent, compression = [weights[i] for i in places], Compression.none
        self._ring_ways[number] = grouped_allreduce(
            sent, name=f"{self._ring_prefix}.{number}", compression=compression, process_set=self._ring_set
        )

    def _step_outer(self, number: int, weights: dict[int, Any], alpha: float) -> None:
        """Step a fragment from where all ranks were the last time, by the average of how far each had come.

        Or take over the average of the weights, where these were sent.
        """
        if check := self._ring_met_checks.pop(number, None):
            check()
        averages = self._ring_ways.pop(number)
        _await(averages)
        for i, average in zip(self._fragment(number, weights), averages, strict=True):
            if not self._ring_anchors:
                average.copyto(weights[i])
                continue
            anchor, weight = self._ring_anchors[i], weights[i]
            self._ring_outer(i, average, anchor)
            own = anchor + (weight - anchor) * alpha if self._ring_delay and alpha else anchor
            own.copyto(weight)

    def save_states(self, fname: str) -> None:
        """Write what has been learned besides the parameters."""
        super().save_states(fname)
        if self._ring_outer is None:
            return
        states = np.frombuffer(self._ring_outer.get_states(dump_optimizer=False), np.uint8)
        kept = {f"anchor.{i}": anchor for i, anchor in self._ring_anchors.items()}
        for number, ways in self._ring_ways.items():
            kept |= {f"way.{number}.{place}": way for place, way in enumerate(ways)}
        kept["states"] = mx.nd.array(states, dtype=np.uint8)
        kept["steps"] = mx.nd.array([self._ring_steps, *self._ring_met], dtype=np.int64)
        mx.nd.save(f"{fname}.outer", kept)

    def load_states(self, fname: str) -> None:
        """Read what `save_states` has written; the parameters are loaded with the net."""
        super().load_states(fname)
        self._ring_loads += 1
        if self._ring_outer is None:
            return
        self._await_sent()
        kept = mx.nd.load(f"{fname}.outer")
        self._ring_outer.set_states(kept.pop("states").asnumpy().tobytes())
        self._ring_steps, *self._ring_met = kept.pop("steps").asnumpy().tolist()
        self._ring_anchors, self._ring_ways, self._ring_met_checks = {}, {}, {}
        for name, array in kept.items():
            what, number, *place = name.split(".")
            if what == "anchor":
                self._ring_anchors[int(number)] = array
            else:  # in the order of their places, as they were written
                self._ring_ways.setdefault(int(number), []).append((int(place[0]), array))
        self._ring_ways = {
            number: [way for _, way in sorted(ways, key=lambda each: each[0])]
            for number, ways in self._ring_ways.items()
        }

    def _await_sent(self) -> None:
        """Wait for what is under way and nobody needs: the next one of its name may be sent when it has arrived."""
        for ways in self._ring_ways.values():
            for way in ways:
                with contextlib.suppress(RingcoreError):
                    way.wait_to_read()

    def progress(self) -> dict[str, Any]:
        """What an elastic state keeps beside the inner optimizer's state: numbers, bytes and numpy's arrays."""
        if self._ring_outer is None:
            return {"steps": self._ring_steps}
        return {
            "steps": self._ring_steps, "met": list(self._ring_met),
            "outer": self._ring_outer.get_states(dump_optimizer=False),
            "counted": _counted(self._ring_outer.optimizer),
            "anchors": {i: anchor.asnumpy() for i, anchor in self._ring_anchors.items()},
            "ways": {number: [way.asnumpy() for way in ways] for number, ways in self._ring_ways.items()},
        }  # fmt: skip

    def take_over(self, progress: Mapping[str, Any]) -> None:
        """Go on from a `progress`, perhaps of another rank."""
        self._ring_steps = progress["steps"]
        if self._ring_outer is None:
            return
        self._ring_met = list(progress["met"])
        self._ring_outer.set_states(progress["outer"])
        counts, self._ring_outer.optimizer.num_update = progress["counted"]
        self._ring_outer.optimizer._index_update_count.clear()
        self._ring_outer.optimizer._index_update_count.update(counts)
        self._ring_anchors = {i: mx.nd.array(value, dtype=value.dtype) for i, value in progress["anchors"].items()}
        self._ring_ways = {
            number: [mx.nd.array(way, dtype=way.dtype) for way in ways] for number, ways in progress["ways"].items()
        }
        self._ring_met_checks = {}


def _await(averages: list[Any]) -> None:
    """In an elastic job: until they are here. Weights are not touched where that fails, and the step ends in an error.

    What they are made of stays until then: they are made again when a rank is lost.
    """
    if adapter.is_elastic():
        for average in averages:
            average.wait_to_read()
        adapter.followed()  # the averages are those of these ranks


def _description_of(optimizer: Any) -> str:
    """What it was made with, as far as these are numbers and names; not what it has counted since."""
    if isinstance(optimizer, str):
        return optimizer
    scheduler = getattr(optimizer, "lr_scheduler", None)
    given = {**_settings_of(optimizer), **({type(scheduler).__name__: _settings_of(scheduler)} if scheduler else {})}
    return f"{type(optimizer).__name__} {given}"


def _settings_of(made: Any) -> dict[str, Any]:
    counted = ("num_update", "begin_num_update", "count", "aggregate_num")
    return {
        name: value
        for name, value in sorted(vars(made).items())
        if isinstance(value, bool | int | float | str) and name not in counted and not name.startswith("_")
    }


class DiLoCoTrainer(LocalSGDTrainer):
    """Ranks step on their own; every so many steps an outer optimizer steps by their average way.

    As in Douillard et al. 2023, and with fragments, of which one after the other takes its turn, and a delay, in which
    ranks go on while their ways are averaged, as in Douillard et al. 2025. `save_states` writes the inner optimizer's
    state to its file, the outer one's and where all ranks were the last time to a file of that name and `.outer`: each
    rank's are its own.

    Args:
        params: See `LocalSGDTrainer`, as for the other options.
        optimizer: The inner one.
        optimizer_params: Of the inner one, where it is named.
        outer: An optimizer of MXNet, such as `mx.optimizer.NAG(learning_rate=0.7, momentum=0.9)`; on every rank the
            same.
        every: Inner steps between two outer steps of a parameter.
        fragments: How many parts of the parameters take turns; at most `every`.
        delay: Inner steps that ranks make while a way is averaged, the last of them that of the outer step; 0: the next
            forward waits for the outer step.
        alpha: The share that a rank's own parameters, which went on for `delay` steps, keep in what it has after an
            outer step; 0: these steps are forgotten.
        compression: What is sent of the ways: `Compression.int8`, ...
        options: `prefix`, `process_set`, `check_weights`.

    Raises:
        InvalidArgument: As for `LocalSGDTrainer`; `fragments`, `delay` or `alpha` do not fit.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        *,
        outer: Any,
        every: int,
        fragments: int = 1,
        delay: int = 0,
        alpha: float = 0.5,
        compression: type[Compressor] | str = Compression.none,
        **options: Any,
    ) -> None:
        super().__init__(params, optimizer, optimizer_params, every=every, compression=compression, **options)
        adapter.check_outer_steps(every, fragments, delay, alpha)
        self._ring_delay, self._ring_alpha = delay, alpha
        self._ring_outer = mx.optimizer.get_updater(outer)
        self._ring_fragments = fragments
        self._ring_arguments |= {
            "fragments": fragments, "delay": delay, "alpha": alpha, "outer": _description_of(outer),
        }  # fmt: skip
        self._ring_met = [0] * fragments

    def synchronize(self) -> None:
        """Take now the outer steps that are left: before parameters are evaluated or written. All ranks call it."""
        weights = self._trained()
        for number, met in enumerate(self._ring_met):
            if number in self._ring_ways:
                self._step_outer(number, weights, self._ring_alpha if met < self._ring_steps else 0.0)
            if met < self._ring_steps:
                self._send(number, weights)
                self._step_outer(number, weights, 0.0)


def _counted(optimizer: Any) -> tuple[dict[Any, int], int]:
    """How often it has updated what: Adam's corrections and schedules go by that."""
    return dict(optimizer._index_update_count), optimizer.num_update
