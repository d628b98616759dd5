"""Chooses by trial how a job's steps are done: what it has measured, all ranks agree on, and a file keeps."""

from __future__ import annotations

import ctypes
import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ringcore import _native
from ringcore._native import Buffer
from ringcore.adapter import kept
from ringcore.adapter.collectives import ReduceOp, allreduce
from ringcore.adapter.trials import Trials
from ringcore.job.lifecycle import after_init
from ringcore.job.process_sets import ProcessSet
from ringcore.job.state import context, is_elastic

_log = logging.getLogger("ringcore")
_FLOAT64: int = _native.DTYPES["float64"]

# Behind the trials ranks look so often, in steps, whether steps take as long as they did then: by so many steps.
_LOOK_EVERY = 200
_RECENT = 21
# Where they take so many times as long, or a part of that, the network or the job is another one.
_CHANGED = 1.5
# What changes so often is not worth trials.
_MOST_TRIALS = 5

Way = TypeVar("Way")
_told: set[tuple[str, str]] = set()


def tell_untuned(what: str, why: str) -> None:
    """Where `RINGCORE_AUTOTUNE` asks for trials, say that there are none, once for each `what` and `why`.

    Args:
        what: Whose gradients are sent as without it.
        why: The reason, as the end of a sentence.
    """
    if context().settings.autotune and (what, why) not in _told:
        _told.add((what, why))
        _log.warning("RINGCORE_AUTOTUNE does nothing for %s: %s", what, why)


class Tuner(Generic[Way]):
    """Tries ways to do a step, one after the other, and goes on with the quickest.

    Every rank makes the same tuners and calls `after_step` behind the same steps, or `begin_step` in each. A rank
    measures by itself; at the end of a round of trials all take the largest of what the ranks have measured, in one
    small allreduce, so that they decide alike. Rank 0 of the process set keeps in a file what was decided. The next job
    of this shape tries only that against the first way, and begins from scratch where the first way is quicker.

    Args:
        name: Identifies what is tuned, on all ranks.
        ways: The first one is what is done without trials. At least one; the same on all ranks.
        use: Does the steps behind this one that way. All ranks call it behind the same step.
        process_set: The ranks that step together; more than one.
        shape: What the best way depends on besides the ranks: sizes and options of the job.
        clock: Tells the time, in seconds.
    """

    def __init__(
        self, name: str, ways: Sequence[Way], use: Callable[[Way], None], *, process_set: ProcessSet, shape: str,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._name = name
        self._ways = list(ways)
        self._use = use
        self._process_set = process_set
        self._shape = shape
        self._clock = clock
        self._since = clock()
        self._in_use = 0
        self._begin()
        after_init(self._begin)

    def _begin(self) -> None:
        """The ranks may be others: nothing is known of them."""
        settings = context().settings
        self._steps = settings.autotune_steps_per_sample
        self._warmup = settings.autotune_warmup_samples * self._steps
        self._joins = context().joins
        self._trials: Trials | None = None
        self._trials_made = 0
        self._tries_kept = False
        self._expected = 0.0  # seconds that a step has taken when it was decided; 0: nobody knows
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._has_begun = False
        self._looks_in = _LOOK_EVERY
        # In an elastic job a step may be done twice, and by other ranks.
        self._over = is_elastic() or self._process_set.size() == 1
        self._switch(0)

    @property
    def way(self) -> Way:
        """How steps are done now."""
        return self._ways[self._in_use]

    @property
    def decided(self) -> bool:
        """Whether trials have come to an end, and nothing is tried at the moment."""
        return self._over or (self._trials is None and self._warmup < 0)

    def after_step(self) -> None:
        """This rank has made a step.

        Raises:
            RingcoreError: At the end of a round: what an allreduce raises.
        """
        seconds = self._clock() - self._since
        if not self._over:
            if context().joins > self._joins:
                self._give_up()
            elif self._trials is not None:
                self._try(self._trials, seconds)
            elif self._warmup >= 0:
                self._warm_up()
            else:
                self._watch(seconds)
        self._since = self._clock()

    def begin_step(self) -> int:
        """This rank has come to the same place of its next step, and so has made the one before; for who sees no end.

        Returns:
            How this step is to be done: the index of a way.

        Raises:
            RingcoreError: See `after_step`.
        """
        if self._has_begun:
            self.after_step()
        else:
            self._has_begun, self._since = True, self._clock()
        return self._in_use

    def _give_up(self) -> None:
        """Ranks have joined, which have missed what the others decided: from here on nothing is tried, on any rank."""
        self._over = True
        self._trials = None
        self._switch(0)
        _log.info("%s: a rank has joined before others, so that nothing is tuned", self._name)

    def _warm_up(self) -> None:
        self._warmup -= 1
        if self._warmup >= 0:
            return
        way, seconds = self._read() if self._process_set.rank() == 0 else (-1, 0.0)
        above, self._expected = self._largest([way + 1, seconds])  # of the first rank: the others have zeros
        found = int(above) - 1
        if found == 0:
            return
        self._tries_kept = found > 0
        self._start([0, found] if self._tries_kept else range(len(self._ways)))

    def _start(self, ways: Sequence[int]) -> None:
        self._trials_made += 1
        self._trials = Trials(ways, self._steps)
        self._go_on(self._trials, 0.0)

    def _try(self, trials: Trials, seconds: float) -> None:
        if not trials.note(seconds):
            return self._switch(trials.way)
        tried = list(trials.left)
        medians = self._largest(trials.medians())
        self._note("round", list(zip(tried, medians, strict=True)))
        trials.end_round(medians)
        return self._go_on(trials, medians[tried.index(trials.left[0])])

    def _go_on(self, trials: Trials, seconds: float) -> None:
        if trials.decided and trials.left == [0] and self._tries_kept:
            self._tries_kept = False
            return self._start(range(len(self._ways)))  # what was the quickest once is not any more
        self._switch(trials.way)
        if trials.decided:
            self._trials, self._expected = None, seconds
            self._recent.clear()
            self._looks_in = _LOOK_EVERY
            self._note("decided", [(trials.way, seconds)])
            if self._process_set.rank() == 0:
                self._keep(trials.way, seconds)
        return None

    def _watch(self, seconds: float) -> None:
        """Look now and then whether steps still take as long as they did."""
        self._recent.append(seconds)
        self._looks_in -= 1
        if self._looks_in > 0 or self._trials_made >= _MOST_TRIALS:
            return
        self._looks_in = _LOOK_EVERY
        now = self._largest([statistics.median(self._recent)])[0]
        if self._expected == 0.0:
            self._expected = now
        elif not 1 / _CHANGED < now / self._expected < _CHANGED:
            self._start(range(len(self._ways)))

    def _switch(self, way: int) -> None:
        if way != self._in_use:
            self._in_use = way
            self._use(self._ways[way])

    def _largest(self, values: Sequence[float]) -> list[float]:
        """Of each number the largest that a rank has."""
        memory = (ctypes.c_double * len(values))(*values)
        buffer = (Buffer(ctypes.addressof(memory), (len(memory),), _FLOAT64, memory),)
        name = f"{self._name}.autotune"
        allreduce(buffer, buffer, name, op=ReduceOp.MAX, process_set=self._process_set, blocking=True)
        return list(memory)

    def _note(self, what: str, ways: Sequence[tuple[int, float]]) -> None:
        """Tell the logger, and the file that the user asks for."""
        if self._process_set.rank() != 0:
            return
        path = context().settings.autotune_log_file
        for way, seconds in ways:
            _log.info("%s: %s: %s, %.6f s a step", self._name, what, self._ways[way], seconds)
        if path is not None:
            lines = [f"{self._name},{what},{self._ways[way]!s},{seconds:.6f}\n" for way, seconds in ways]
            try:
                with open(path, "a", encoding="utf-8") as file:
                    file.write("".join(lines))
            except OSError as error:
                _log.warning("RINGCORE_AUTOTUNE_LOG_FILE: %s cannot be written: %s", path, error.strerror)

    def _key(self) -> str:
        current = context()
        hosts = len({current.host_of[rank] for rank in self._process_set.ranks})
        over = "+".join(sorted(current.runtime.transports()))
        return f"{self._shape}, {self._process_set.size()} ranks on {hosts} hosts over {over}"

    def _read(self) -> tuple[int, float]:
        """Which way was kept, and how long a step took; -1 where none was."""
        try:
            entry = kept.entries(kept.kept_in())[self._key()]
            return list(map(str, self._ways)).index(entry["way"]), float(entry["seconds"])
        except (ValueError, KeyError, TypeError, RuntimeError):  # the last one of who has no home
            return -1, 0.0

    def _keep(self, way: int, seconds: float) -> None:
        entry = {"way": str(self._ways[way]), "seconds": seconds}
        try:
            path = kept.kept_in()
        except RuntimeError as error:  # of who has no home
            _log.info("%s: what was chosen is not kept: %s", self._name, error)
            return
        try:
            kept.add(path, self._key(), entry)
        except OSError as error:
            _log.info("%s: what was chosen is not kept: %s: %s", self._name, path, error.strerror)
