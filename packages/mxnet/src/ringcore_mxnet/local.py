"""Gluon trainers whose ranks step on their own, and meet every so many steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np
from ringcore import InvalidArgument, adapter
from ringcore.adapter import ProcessSet, context, global_process_set

from ringcore_mxnet._operations import grouped_allreduce
from ringcore_mxnet.compression import Compression, Compressor
from ringcore_mxnet.optimizer import DistributedOptimizer
from ringcore_mxnet.parameters import check_weights as compare
from ringcore_mxnet.trainer import without_numbers


class LocalSGDTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """`mx.gluon.Trainer` whose ranks step on their own, and average their parameters every so many steps (Stich 2019).

    The optimizer's state stays each rank's own. Every rank makes as many steps.

    Args:
        params: `net.collect_params()`, or a list of parameters; the same on every rank, dense, on one device.
        optimizer: A name or an optimizer of MXNet.
        optimizer_params: Of the optimizer, where it is named.
        every: Steps between two averages.
        prefix: Put before the names of what is sent; tells trainers apart. Without one they are counted.
        process_set: The ranks that train together.
        check_weights: Before the first step, compare a hash of the parameters of all ranks, and raise `MismatchError`
            where they differ.

    Raises:
        InvalidArgument: `every` is below 1, a DistributedOptimizer, which would average gradients as well, or an
            elastic job, which would lose what ranks have since they met.
        MismatchError: In the first step, ranks were given other arguments, or begin with other weights. On every rank.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        *,
        every: int,
        prefix: str | None = None,
        process_set: ProcessSet = global_process_set,
        check_weights: bool = True,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            raise InvalidArgument("ranks step on their own here; pass the optimizer unwrapped")
        if every < 1:
            raise InvalidArgument(f"every is at least 1, not {every}")
        if adapter.is_elastic():
            raise not_in_elastic_jobs(self)
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._ring_every = every
        self._ring_steps = 0
        self._ring_prefix = context().next_name("local") if prefix is None else prefix
        self._ring_set = process_set
        self._ring_unchecked = check_weights
        # Those that decide when ranks meet and what they do there.
        self._ring_arguments: dict[str, object] = {"every": every}
        self._ring_compares_arguments = True

    def _update(self, ignore_stale_grad: bool = False) -> None:
        adapter.check()
        self._compare_arguments()
        self._begin(self._trained())
        super()._update(ignore_stale_grad)
        self._ring_steps += 1
        self._meet(self._trained())

    def synchronize(self) -> None:
        """Average the parameters now: before they are evaluated or written. All ranks call it."""
        self._average(self._trained())

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
        """Before the first step, also of a run that goes on from a state."""
        compares, self._ring_compares_arguments = self._ring_compares_arguments, False
        if compares and self._ring_set.size() > 1:
            name = f"{self._ring_prefix}.arguments"
            adapter.check_arguments(type(self).__name__, self._ring_arguments, self._ring_set, name=name)

    def _begin(self, weights: dict[int, Any]) -> None:
        if not self._ring_unchecked:
            return
        self._ring_unchecked = False
        compare(
            {f"{i}.{without_numbers(self._params[i].name)}": weight for i, weight in weights.items()}, self._ring_set,
            name=f"{self._ring_prefix}.weights",
            remedy="call broadcast_parameters(net.collect_params(), root_rank=0) before the first step",
        )  # fmt: skip

    def _meet(self, weights: dict[int, Any]) -> None:
        if self._ring_steps % self._ring_every == 0:
            self._average(weights)

    def _average(self, weights: dict[int, Any]) -> None:
        held = list(weights.values())
        averages = grouped_allreduce(held, name=f"{self._ring_prefix}.values", process_set=self._ring_set)
        for weight, average in zip(held, averages, strict=True):
            average.copyto(weight)


def not_in_elastic_jobs(trainer: LocalSGDTrainer) -> InvalidArgument:
    """The refusal: what a rank has since the last meeting goes with it, and whoever joins has had no meeting."""
    return InvalidArgument(
        f"an elastic job cannot keep a {type(trainer).__name__}; train it with a DistributedTrainer, or with "
        "ringcore_torch's LocalSGD or DiLoCo"
    )


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

    As in Douillard et al. 2023, and with fragments, of which one after the other takes its turn, as in Douillard et al.
    2025; an outer step is waited for. `save_states` writes the inner optimizer's state to its file, the outer one's and
    where all ranks were the last time to a file of that name and `.outer`: each rank's are its own.

    Args:
        params: See `LocalSGDTrainer`, as for the other options.
        optimizer: The inner one.
        optimizer_params: Of the inner one, where it is named.
        outer: An optimizer of MXNet, such as `mx.optimizer.NAG(learning_rate=0.7, momentum=0.9)`; on every rank the
            same.
        every: Inner steps between two outer steps of a parameter.
        fragments: How many parts of the parameters take turns; at most `every`.
        compression: What is sent of the ways: `Compression.int8`, ...
        options: `prefix`, `process_set`, `check_weights`.

    Raises:
        InvalidArgument: As for `LocalSGDTrainer`; `fragments` does not fit.
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
        compression: type[Compressor] | str = Compression.none,
        **options: Any,
    ) -> None:
        super().__init__(params, optimizer, optimizer_params, every=every, **options)
        if not 1 <= fragments <= every:
            raise InvalidArgument(f"fragments is at least 1 and at most every = {every}, not {fragments}")
        self._ring_outer = mx.optimizer.get_updater(outer)
        self._ring_fragments = fragments
        self._ring_compression = Compression.chosen(compression, who=type(self).__name__)
        self._ring_arguments |= {
            "fragments": fragments, "compression": Compression.name_of(self._ring_compression),
            "outer": _description_of(outer),
        }  # fmt: skip
        self._ring_anchors: dict[int, Any] = {}
        self._ring_met = [0] * fragments  # after which step

    def synchronize(self) -> None:
        """Take now the outer steps that are left: before parameters are evaluated or written. All ranks call it."""
        for number, met in enumerate(self._ring_met):
            if met < self._ring_steps:
                self._step_outer(number, self._trained())

    def _begin(self, weights: dict[int, Any]) -> None:
        super()._begin(weights)
        if not self._ring_anchors:
            self._ring_anchors = {i: weight.copy() for i, weight in weights.items()}

    def _meet(self, weights: dict[int, Any]) -> None:
        for number in range(self._ring_fragments):
            # They take turns, and each is due every so many steps.
            if (self._ring_steps + number * self._ring_every // self._ring_fragments) % self._ring_every == 0:
                self._step_outer(number, weights)

    def _step_outer(self, number: int, weights: dict[int, Any]) -> None:
        """Step a fragment from where all ranks were the last time, by the average of how far each has come."""
        self._ring_met[number] = self._ring_steps
        dealt = adapter.dealt_evenly([weight.size for weight in weights.values()], self._ring_fragments)
        fragment = [list(weights)[index] for index in dealt[number]]
        ways = [self._ring_anchors[i] - weights[i] for i in fragment]
        averages = grouped_allreduce(
            ways, name=f"{self._ring_prefix}.{number}", compression=self._ring_compression, process_set=self._ring_set
        )
        for i, average in zip(fragment, averages, strict=True):
            self._ring_outer(i, average, self._ring_anchors[i])
            self._ring_anchors[i].copyto(weights[i])

    def save_states(self, fname: str) -> None:
        """Write what has been learned besides the parameters."""
        super().save_states(fname)
        states = np.frombuffer(self._ring_outer.get_states(dump_optimizer=False), np.uint8)
        kept = {f"anchor.{i}": anchor for i, anchor in self._ring_anchors.items()}
        kept["states"] = mx.nd.array(states, dtype=np.uint8)
        kept["steps"] = mx.nd.array([self._ring_steps, *self._ring_met], dtype=np.int64)
        mx.nd.save(f"{fname}.outer", kept)

    def load_states(self, fname: str) -> None:
        """Read what `save_states` has written; the parameters are loaded with the net."""
        super().load_states(fname)
        kept = mx.nd.load(f"{fname}.outer")
        self._ring_outer.set_states(kept.pop("states").asnumpy().tobytes())
        self._ring_steps, *self._ring_met = kept.pop("steps").asnumpy().tolist()
        self._ring_anchors = {int(name.partition(".")[2]): anchor for name, anchor in kept.items()}
        self._ring_unchecked = False  # between two meetings each rank has parameters of its own
