"""Callbacks for ranks that step on their own, each by its own optimizer, and meet every so many steps."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import ringcore
from ringcore import InvalidArgument, RingcoreError, adapter
from ringcore.adapter import ProcessSet, global_process_set

from ringcore_keras.optimizer import is_distributed
from ringcore_keras.options import Compression
from ringcore_keras.variables import broadcast_variables, check_same, synchronize_state

_log = logging.getLogger("ringcore")
_told_of_state = False


class _Meetings(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the steps of `fit`, and lets the ranks meet every so many, and when training ends."""

    def __init__(self, every: int, parts: int, process_set: ProcessSet) -> None:
        super().__init__()
        if every < 1:
            raise InvalidArgument(f"every is at least 1, not {every}")
        self._every = every
        self._count = parts
        self._process_set = process_set
        self._steps = 0
        self._batches = 0
        self._met = [0] * parts  # at which step
        # Those that decide when ranks meet and what they do there.
        self._arguments: dict[str, object] = {"every": every}
        # A state that the next `fit` goes on from, and the one that this `fit` has gone on from.
        self._loaded: Mapping[str, Any] | None = None
        self._resumed: Mapping[str, Any] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Look at the optimizer, and at what the other ranks were given."""
        if is_distributed(self.model.optimizer):
            raise InvalidArgument(
                f"{type(self).__name__} is for ranks that step on their own, but the optimizer is a "
                "DistributedOptimizer; compile the model with the optimizer itself"
            )
        self._compare_arguments()
        self._resumed, self._loaded = self._loaded, None
        if self._resumed is None or adapter.is_elastic():  # whoever joins counts from here, and so do the others
            self._count_anew()
            self._tell_of_state()
        else:
            self._steps, self._met = self._resumed["steps"], list(self._resumed["met"])

    def _count_anew(self) -> None:
        self._steps = 0
        self._met = [0] * self._count

    def _tell_of_state(self) -> None:
        """Once in a process."""
        global _told_of_state
        if self._resumed is not None and not _told_of_state:
            _told_of_state = True
            _log.warning(
                "%s counts steps from 0: in an elastic job ranks that come have not made those of the state that was "
                "loaded; load it into a job with a fixed number of ranks to go on from it",
                type(self).__name__,
            )

    def _compare_arguments(self) -> None:
        """In each `fit`, which may go on from a state. Whoever joins an elastic job would be alone with it."""
        if self._process_set.size() > 1 and not adapter.is_elastic():
            kind = type(self).__name__
            arguments = {**self._arguments, "the loaded state": self._described_state()}
            adapter.check_arguments(kind, arguments, self._process_set, name=f"{kind}.arguments")

    def _described_state(self) -> str | None:
        """Of the state that the next `fit` goes on from: what decides when ranks meet, and what they do first."""
        if self._loaded is None:
            return None
        steps, met = self._loaded["steps"], list(self._loaded["met"])
        return f"after {steps} steps, met at {met}" + (", with anchors" if self._loaded.get("anchors") else "")

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on, besides the model and its optimizer: numbers and arrays, this rank's own.

        In `fit`, from a callback behind this one, or afterwards. Where it is called between two meetings the weights
        are each rank's own as well: keep those of every rank.
        """
        return dict(self._loaded) if self._loaded is not None else {"steps": self._steps, "met": list(self._met)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` in the next `fit`; the model and its optimizer are loaded by themselves.

        In an elastic job ranks count from 0 in each `fit`, and a warning says so once: of the state only what an outer
        optimizer knows is taken over, from the first rank.

        Raises:
            InvalidArgument: It is of another number of fragments.
        """
        if len(state_dict["met"]) != self._count:
            raise InvalidArgument(
                f"the state is of {len(state_dict['met'])} fragments, and here are {self._count}; pass "
                f"fragments={len(state_dict['met'])}"
            )
        self._loaded = dict(state_dict)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keras counts batches from here."""
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count; meet when it is time."""
        before, self._steps = self._steps, self._steps + batch + 1 - self._batches
        self._batches = batch + 1
        for number in range(self._count):
            self._take_turn(number, before)

    def _is_due(self, number: int, before: int, ahead: int = 0) -> bool:
        """Whether a part of the weights had its turn since so many steps, or will have had it in `ahead` steps more."""
        at = number * self._every // self._count + ahead  # they take turns
        return (self._steps + at) // self._every > (before + at) // self._every

    def _take_turn(self, number: int, before: int) -> None:
        if self._is_due(number, before):
            self._meet(number)

    def on_train_end(self, logs: Any = None) -> None:
        """Meet for what ranks have done since."""
        for number in range(self._count):
            if self._met[number] < self._steps:
                self._meet(number)
        self._count_anew()  # as the next `fit` does: so does one of another process, with the state

    def _meet(self, number: int) -> None:
        self._met[number] = self._steps
        variables = self._part(number)
        if variables:
            self.meet(number, variables)

    def _part(self, number: int) -> list[Any]:
        """The variables that meet together, as they are now."""
        synchronize_state(self.model)
        variables = self.model.trainable_variables
        part = adapter.dealt_evenly([math.prod(variable.shape) for variable in variables], self._count)[number]
        return [variables[index] for index in part]

    def meet(self, number: int, variables: list[Any]) -> None:
        """Do what is due for a part of the weights."""
        raise NotImplementedError


class _Averages(_Meetings):
    """Meetings that average how far each rank has come, by which an outer optimizer steps; or without one the weights.

    Args:
        every: See `_Meetings`, as for `parts`.
        compression: What is sent.
        process_set: The ranks that train together.
    """

    _outer: Any = None

    def __init__(self, every: int, parts: int, compression: str, process_set: ProcessSet) -> None:
        super().__init__(every, parts, process_set)
        self._delay, self._alpha = 0, 0.0
        self._compression = ringcore.Compression.chosen(compression, who=type(self).__name__)
        self._arguments["compression"] = ringcore.Compression.name_of(self._compression)
        # By number of the part: gives the averages that its next outer step takes.
        self._ways: dict[int, Callable[[], list[Any]]] = {}
        self._anchors: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on: also `outer`, the outer optimizer's variables, and `anchors`, all ranks' weights.

        Both are in the order of the variables. `ways` are those that are averaged for the next outer steps, by number
        of the fragment; they are waited for. A `LocalSGDCallback` without a compression has none of these.
        """
        if self._loaded is not None or self._outer is None:
            return super().state_dict()
        outer = _values(self._outer.variables) if self._outer.built else []
        anchors = [anchor.copy() for anchor in self._anchors.values()]
        ways = {number: [way.copy() for way in averages()] for number, averages in self._ways.items()}
        return {**super().state_dict(), "outer": outer, "anchors": anchors, "ways": ways}

    def on_train_begin(self, logs: Any = None) -> None:
        """Note where all ranks are."""
        super().on_train_begin(logs)
        self._anchors = {}
        for averages in self._ways.values():  # a `fit` before this one has failed
            with contextlib.suppress(RingcoreError):
                averages()
        self._ways = {}
        if self.model.built:
            self._begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count; meet when it is time. What only the first batch has made is where all ranks are after it."""
        if not self._anchors:
            self._begin()
        super().on_train_batch_end(batch, logs)

    def _take_turn(self, number: int, before: int) -> None:
        if self._is_due(number, before) and number in self._ways:
            self._step_outer(number, self._alpha)
        if self._is_due(number, before, self._delay):
            self._send(number)
            # Keras may tell of several steps at once, and the outer step be one of them.
            if (self._steps + number * self._every // self._count + self._delay) % self._every >= self._delay:
                self._step_outer(number, self._alpha)

    def on_train_end(self, logs: Any = None) -> None:
        """Take the outer steps that are under way, and those for what ranks have done since."""
        for number, met in enumerate(self._met):
            if number in self._ways:
                self._step_outer(number, self._alpha if met < self._steps else 0.0)
        super().on_train_end(logs)

    def meet(self, number: int, variables: list[Any]) -> None:
        """Average now, and wait for it."""
        self._send(number)
        self._step_outer(number, 0.0)

    def _send(self, number: int) -> None:
        """Begin to average how far each rank has come with a fragment."""
        self._met[number] = self._steps
        variables = self._part(number)
        sent = _values(variables)
        if self._outer is not None:
            sent = [self._anchors[variable.path] - value for variable, value in zip(variables, sent, strict=True)]
        name = f"{type(self).__name__}.{number}"
        self._ways[number] = adapter.start_averages(sent, name, self._compression, self._process_set) if sent else list

    def _step_outer(self, number: int, alpha: float) -> None:
        """Step from where all ranks were the last time, by the average of how far each had come."""
        averages = self._ways.pop(number)()
        variables = self._part(number)
        if self._outer is None:
            for variable, average in zip(variables, averages, strict=True):
                variable.assign(average)
            return
        if not variables:
            return
        own = _values(variables) if self._delay and alpha else []
        for variable in variables:
            variable.assign(self._anchors[variable.path])
        self._outer.apply([keras.ops.convert_to_tensor(average) for average in averages], variables)
        self._note(variables)
        for variable, value in zip(variables, own, strict=False):
            anchor = self._anchors[variable.path]
            variable.assign(anchor + (value - anchor) * value.dtype.type(alpha))

    def _begin(self) -> None:
        if self._outer is None:
            return
        synchronize_state(self.model)
        variables = self.model.trainable_variables
        if not self._outer.built:
            self._outer.build(variables)
        anchors = self._take_over(self._resumed, variables) if self._resumed is not None else None
        if adapter.is_elastic():  # When others come, in `fit` anew, each has come somewhere else.
            root = self._process_set.ranks[0]
            broadcast_variables([*variables, *self._outer.variables], root, process_set=self._process_set)
        elif anchors:  # between two meetings each rank has weights of its own
            ways = (self._resumed or {}).get("ways", {})  # a state of an older version has none
            self._ways = {number: partial(list, [way.copy() for way in each]) for number, each in ways.items()}
            self._anchors = dict(zip([variable.path for variable in variables], anchors, strict=True))
            hashes = [adapter.hash_of(anchor.ctypes.data, anchor.nbytes) for anchor in anchors]
            if self._process_set.size() > 1:
                adapter.check_weights(
                    list(self._anchors), hashes, self._process_set, name=f"{type(self).__name__}.anchors",
                    remedy="load what state_dict() gave on all ranks behind the same step",
                )  # fmt: skip
            return
        else:
            check_same(
                variables, self._process_set, name=f"{type(self).__name__}.weights",
                remedy=f"put ring.callbacks.BroadcastGlobalVariablesCallback(0) before {type(self).__name__}",
            )  # fmt: skip
        self._note(variables)

    def _take_over(self, state: Mapping[str, Any], variables: list[Any]) -> list[Any]:
        """Give the outer optimizer the variables of a state, and return its anchors, of which there may be none."""
        if not state.get("anchors"):  # nor where there was no outer optimizer
            return []
        anchors = [np.array(anchor, order="C") for anchor in state["anchors"]]
        for kept, here in ((anchors, variables), (state["outer"], self._outer.variables)):
            if [np.shape(one) for one in kept] != [tuple(one.shape) for one in here]:
                raise InvalidArgument(
                    "load_state_dict was given the state of another model or outer optimizer; make both as they were"
                )
        for variable, value in zip(self._outer.variables, state["outer"], strict=True):
            variable.assign(value)
        return anchors

    def _note(self, variables: list[Any]) -> None:
        self._anchors.update(zip([variable.path for variable in variables], _values(variables), strict=True))


class LocalSGDCallback(_Averages):
    """Ranks step on their own, and average their weights every so many steps and when training ends (Stich 2019).

    Compile the model with an optimizer of Keras itself; its state stays each rank's own. Every rank has as many steps.
    With a compression there is one more copy of the weights: what is sent is how far a rank has come since all had the
    same ones, and `state_dict` has these too.

    Args:
        every: Steps between two averages. Keras tells of steps as often as `steps_per_execution` says.
        compression: What is sent: `Compression.none`, `fp16`, `bf16`, `int8` or `int4`.
        process_set: The ranks that train together.

    Raises:
        InvalidArgument: `every` is below 1; in `fit`, the optimizer is a DistributedOptimizer.
        MismatchError: In `fit`, ranks were given other arguments, or go on from states of other steps, or with a
            compression begin with different weights. On every rank; not in an elastic job.
    """

    def __init__(
        self, every: int, *, compression: str = Compression.none, process_set: ProcessSet = global_process_set
    ) -> None:
        super().__init__(every, 1, compression, process_set)
        if self._compression is not ringcore.Compression.none:
            self._outer = keras.optimizers.SGD(1.0)  # adds the average way to where all ranks were


class DiLoCoCallback(_Averages):
    """Ranks step on their own; every so many steps an outer optimizer steps by their average way.

    As in Douillard et al. 2023, and with fragments, of which one after the other takes its turn, and a delay, in which
    ranks go on while their ways are averaged, as in Douillard et al. 2025. When training ends, all take the outer steps
    that are left. Compile the model with an optimizer of Keras itself; its state stays each rank's own. Every rank has
    as many steps. `state_dict` has what the outer optimizer knows, and where all ranks were the last time.

    Args:
        outer: An optimizer of Keras, such as `keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)`; on every rank
            the same.
        every: Steps between two outer steps of a weight. Keras tells of steps as often as `steps_per_execution` says.
        fragments: How many parts of the weights take turns; at most `every`.
        delay: Steps that ranks make while a way is averaged, the last of them that of the outer step; 0: the outer step
            is waited for.
        alpha: The share that a rank's own weights, which went on for `delay` steps, keep in what it has after an outer
            step; 0: these steps are forgotten.
        compression: What is sent of the ways: `Compression.none`, `fp16`, `bf16`, `int8` or `int4`.
        process_set: The ranks that train together.

    Raises:
        InvalidArgument: `every`, `fragments`, `delay` or `alpha` do not fit; in `fit`, the optimizer is a
            DistributedOptimizer.
        MismatchError: In `fit`, ranks were given other arguments, go on from states of other steps, or begin with
            different weights. On every rank. In an elastic job arguments are not compared, and ranks begin with the
            weights of the first one, whenever others have come or gone.
    """

    def __init__(
        self, outer: Any, every: int, *, fragments: int = 1, delay: int = 0, alpha: float = 0.5,
        compression: str = Compression.none, process_set: ProcessSet = global_process_set,
    ) -> None:  # fmt: skip
        super().__init__(every, fragments, compression, process_set)
        adapter.check_outer_steps(every, fragments, delay, alpha)
        self._delay, self._alpha = delay, alpha
        self._outer = keras.optimizers.get(outer)
        config = {key: value for key, value in self._outer.get_config().items() if key != "name"}  # Keras counts names
        self._arguments |= {
            "fragments": fragments, "delay": delay, "alpha": alpha,
            "outer": f"{type(self._outer).__name__} {config}",
        }  # fmt: skip


def _values(variables: Any) -> list[Any]:
    """Copies: on some backends the array shows the variable's own memory."""
    return [np.array(keras.ops.convert_to_numpy(variable), order="C") for variable in variables]
