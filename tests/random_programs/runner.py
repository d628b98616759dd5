"""Runs a program on this rank, each rank in another way, and compares with the oracle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import ringcore
from ringcore import adapter

from random_programs import oracle
from random_programs.program import REDUCING, ROOTED, AddSet, Call, Calls, Join, RemoveSet, Step, draw

_GUARD = 64
_WAYS = ("at once", "waited for", "polled")


class Runner:
    """One program on this rank.

    Attributes:
        failures: What was wrong.
        messages: Of the errors that mistakes had, by operation: every rank must have got the same.
    """

    def __init__(self, seed: int) -> None:
        self.failures: list[str] = []
        self.messages: list[tuple[str, str]] = []
        self._seed = seed
        self._rank = ringcore.rank()
        # Not the same on all ranks: in which way each of them calls.
        self._rng = np.random.default_rng([seed, 1 + self._rank])
        self._sets: list[ringcore.ProcessSet] = []

    def run(self) -> None:
        """All of its steps."""
        for step in draw(self._seed, ringcore.size()):
            self._run_step(step)
        # What somebody has dropped, the others may not have submitted yet, and a rank that leaves now would not do it.
        ringcore.barrier()

    def _run_step(self, step: Step) -> None:
        if isinstance(step, AddSet):
            self._sets.append(ringcore.add_process_set(step.ranks))
        elif isinstance(step, RemoveSet):
            ringcore.remove_process_set(self._sets.pop(step.index))
        elif isinstance(step, Join):
            self._run_join(step)
        else:
            self._run_calls(step)

    def _run_calls(self, step: Calls) -> None:
        shares: list[list[Call]] = [[] for _ in range(step.threads)]
        for call in step.calls:
            if self._rank in call.members:
                shares[self._rng.integers(step.threads)].append(call)
        jobs = [_Share(self, share, np.random.default_rng(self._rng.integers(1 << 31))) for share in shares]
        threads = [threading.Thread(target=job.run) for job in jobs[1:]]
        for thread in threads:
            thread.start()
        jobs[0].run()
        for thread in threads:
            thread.join()

    def _run_join(self, step: Join) -> None:
        calls = step.calls[: step.steps[self._rank]]
        together = int(self._rng.integers(1, 8))  # not the same on all ranks
        for begin in range(0, len(calls), together):
            handles = [self._start_joined(call) for call in calls[begin : begin + together]]
            for number, call in enumerate(calls[begin : begin + together], begin):
                joined = tuple(rank for rank, count in enumerate(step.steps) if count <= number)
                self.compare(call, [ringcore.synchronize(handles[number - begin])], joined)
        last = ringcore.join()
        if step.steps[last] != max(step.steps):
            self.fail(f"rank {last} is told to have joined last, after {step.steps} steps")

    def _start_joined(self, call: Call) -> ringcore.Handle:
        (tensor,) = oracle.inputs(call, self._rank)
        return ringcore.allreduce_async(tensor, **options_of(call, None))

    def set_of(self, call: Call) -> ringcore.ProcessSet | None:
        """Its process set; None: all ranks."""
        return None if call.process_set is None else self._sets[call.process_set]

    def compare(self, call: Call, results: list[np.ndarray], joined: tuple[int, ...] = ()) -> None:
        """Results with what the oracle says."""
        for index, want in enumerate(oracle.expected(call, self._rank, joined)):
            if wrong := oracle.difference(np.asarray(results[index]), want, call):
                self.fail(f"{call}, tensor {index}: {wrong}")

    def fail(self, text: str) -> None:
        """Note what is wrong."""
        self.failures.append(f"seed {self._seed}, rank {self._rank}: {text}")


class _Share:
    """What one thread calls: starts some, runs others at once in everybody's order, then waits in an order of its own.

    Nobody waits for what he is to start only later: that is no deadlock, whatever the others do.
    """

    def __init__(self, runner: Runner, calls: list[Call], rng: np.random.Generator) -> None:
        self._runner = runner
        self._rng = rng
        self._begun = [_Begun(runner, call, rng) for call in calls]

    def run(self) -> None:
        ways = [self._way(one.call) for one in self._begun]
        later = [(one, way) for one, way in zip(self._begun, ways, strict=True) if way != "at once"]
        self._rng.shuffle(later)
        for one, _ in later:
            one.start()
        for one, way in zip(self._begun, ways, strict=True):
            if way == "at once":
                one.finish(one.call_at_once)
        self._rng.shuffle(later)
        for one, way in later:
            if way == "polled":
                while not ringcore.poll(one.handle):
                    pass
            if way == "dropped":
                one.handle = None
            else:
                one.finish(lambda one=one: ringcore.synchronize(one.handle))

    def _way(self, call: Call) -> str:
        return str(self._rng.choice([*_WAYS, "dropped"] if call.may_be_dropped else _WAYS))


class _Begun:
    """One call of this rank."""

    handle: Any = None

    def __init__(self, runner: Runner, call: Call, rng: np.random.Generator) -> None:
        self.call = call
        self._runner = runner
        mistaken = call.mistake is not None and call.mistake.rank == ringcore.rank()
        self._made = oracle.mistaken(call) if mistaken else call
        self._in_place = self._made.verb in ("allreduce", "broadcast") and bool(rng.integers(2))
        self._given = oracle.inputs(self._made, ringcore.rank())
        self._placed = [_place(array, rng) for array in self._given]

    def start(self) -> None:
        try:
            self.handle = self._function("_async")(*self._arguments(), **self._options())
        except ringcore.RingcoreError as error:
            self.handle = ringcore.Handle.of_nothing(None)
            self._note(error)

    def call_at_once(self) -> Any:
        return self._function("")(*self._arguments(), **self._options())

    def finish(self, wait: Callable[[], Any]) -> None:
        """Wait for the result and compare it."""
        try:
            result = wait()
        except ringcore.RingcoreError as error:
            return self._note(error)
        if self.call.mistake is not None:
            return self._runner.fail(f"{self.call} has raised nothing")
        grouped, splits = len(self._placed) > 1, self._made.verb == "alltoall"
        if self.call.verb in ("reduce", "gather") and (result is None) == (self.call.root == ringcore.rank()):
            return self._runner.fail(f"{self.call} has returned {result}")
        results = list(result) if grouped else [result[0]] if splits else [result]
        self._runner.compare(self.call, results)
        for placed, given in zip(self._placed, self._given, strict=True):
            if not placed.is_whole(None if self._in_place else given):
                self._runner.fail(f"{self.call} has changed what it may not")

    def _note(self, error: ringcore.RingcoreError) -> None:
        if self.call.mistake is None or not isinstance(error, ringcore.MismatchError):
            return self._runner.fail(f"{self.call} has raised {type(error).__name__}: {error}")
        if missing := oracle.misses(self.call, str(error)):
            self._runner.fail(f"{self.call}: the error does not name {missing}: {error}")
        self._runner.messages.append((f"{self.call.seed}", str(error)))

    def _function(self, suffix: str) -> Callable[..., Any]:
        grouped = "grouped_" if len(self._placed) > 1 else ""
        return getattr(ringcore, f"{grouped}{self._made.verb}{suffix}{'_' if self._in_place else ''}")

    def _arguments(self) -> list[Any]:
        arrays = [placed.array for placed in self._placed]
        first = arrays if len(arrays) > 1 else arrays[0]
        if self._made.verb == "scatter" and self._made.root == ringcore.rank():
            return [first, self._made.root, list(self._made.splits[0])]
        if self._made.verb in ROOTED:
            return [first, self._made.root]
        if self._made.verb == "alltoall":
            return [first, list(self._made.splits[self._made.members.index(ringcore.rank())])]
        return [first]

    def _options(self) -> dict[str, Any]:
        return options_of(self._made, self._runner.set_of(self.call))


def options_of(call: Call, process_set: ringcore.ProcessSet | None) -> dict[str, Any]:
    """Keywords of a call."""
    options: dict[str, Any] = {"name": call.name}
    if process_set is not None:
        options["process_set"] = process_set
    if call.verb in REDUCING:
        options["op"] = ringcore.ReduceOp[call.op.upper()]
        options["prescale_factor"], options["postscale_factor"] = call.factors
    return options


class _Placed:
    """An array somewhere in larger memory, of which nothing else may change."""

    def __init__(self, memory: memoryview, begin: int, array: np.ndarray) -> None:
        self._bytes = np.frombuffer(memory, np.uint8)
        self._bytes[:] = 0xA5
        self._begin, self._end = begin, begin + array.nbytes
        self.array = np.frombuffer(memory, array.dtype, array.size, begin).reshape(array.shape)
        self.array[...] = array

    def is_whole(self, given: np.ndarray | None) -> bool:
        """Nothing around it has changed, and it itself not either, where it was `given` and is no output."""
        around = (self._bytes[: self._begin] == 0xA5).all() and (self._bytes[self._end :] == 0xA5).all()
        return bool(around) and (given is None or self.array.tobytes() == given.tobytes())


def _place(array: np.ndarray, rng: np.random.Generator) -> _Placed:
    """A copy: in memory of its own, or where the other ranks can reach it."""
    begin = int(rng.integers(_GUARD // array.itemsize)) * array.itemsize
    nbytes = begin + array.nbytes + _GUARD
    registered = adapter.allocate(nbytes) if rng.random() < 0.3 else None
    return _Placed(memoryview(bytearray(nbytes)) if registered is None else registered.view(), begin, array)
