"""Sums that are complete with the first contributions: training that waits for nobody.

A rank that has a gradient announces the next sum, and contributes; the others, as soon as they have heard of enough
such ranks, announce it with zeros. So the engine's own order makes the sequence of sums, the same on all ranks, and
whoever is slow takes part in each of them without being waited for. As iSwitch does it in the network's switches
(Li et al. 2019, "Accelerating Distributed Reinforcement Learning with In-Switch Computing"), with its bound on how old
gradients may be.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ringcore._errors import InvalidArgument, ShutdownError
from ringcore._native import Handle
from ringcore.adapter import collectives
from ringcore.adapter.collectives import ReduceOp
from ringcore.job.process_sets import ProcessSet, process_set_id_of
from ringcore.job.state import context

# How long the end of a job waits for an update that is being made.
_END_S = 10.0


@dataclasses.dataclass(frozen=True)
class Word:
    """What a rank says in a round.

    Attributes:
        contributes: It has a gradient that is not too old.
        meets: It waits for all others, and has nothing to contribute until they wait as well.
    """

    contributes: bool = False
    meets: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a round comes to.

    Attributes:
        contributors: Whose gradients are summed up; nobody's: there is no sum in this round.
        met: All ranks wait for each other: they go on from here.
    """

    contributors: tuple[int, ...] = ()
    met: bool = False


class Agreement:
    """What all ranks know: a function of what they have said in the rounds so far.

    Attributes:
        version: Sums so far.
        needed: So many ranks have to have something to say before the others take part in the next round: the
            threshold, or all that do not meet where these are fewer.

    Args:
        ranks: How many there are.
        threshold: A sum has at least so many contributions, or those of all that do not meet.
    """

    def __init__(self, ranks: int, threshold: int) -> None:
        self._threshold = threshold
        self._meeting = [False] * ranks
        self.version = 0
        self.needed = min(threshold, ranks)

    def is_meeting(self, rank: int) -> bool:
        """Whether the others know that the rank meets."""
        return self._meeting[rank]

    def decide(self, words: Sequence[Word]) -> Verdict:
        """The end of a round, from what each rank has said in it.

        Who comes to a meeting says so in a round of its own making, as it may be the last one that the others had to
        wait for; of such a round there may be too few contributions, which are those of the next one then.
        """
        self._meeting = [word.meets for word in words]
        left = self._meeting.count(False)
        if left == 0:
            self._meeting = [False] * len(words)
            self.needed = min(self._threshold, len(words))
            return Verdict(met=True)
        self.needed = min(self._threshold, left)
        contributors = tuple(rank for rank, word in enumerate(words) if word.contributes)
        if len(contributors) < self.needed:
            return Verdict()
        self.version += 1
        return Verdict(contributors)


@dataclasses.dataclass(frozen=True)
class Offer:
    """A gradient of this rank that is in no sum yet.

    Attributes:
        version: Sums that were in the weights which it was made with.
        numbers: What the rank has set for the step: rates and the like.
        touched: By parameter, whether there is a gradient.
    """

    version: int
    numbers: Sequence[float]
    touched: Sequence[bool]


class AsynchronousSums:
    """The sums of one optimizer on this rank, and the thread that takes part in them.

    Attributes:
        agreement: As this rank knows it.
        dropped: Gradients of this rank that were too old.
        oldest: How many sums old the oldest one was that was not.

    Args:
        name: Identifies it on all ranks.
        process_set: Who trains together.
        staleness: A gradient may be in a sum if at most so many sums have come since its weights.
        threshold: A sum is complete with so many contributions.
        count_numbers: Numbers of an `Offer`.
        count_parameters: What an `Offer` has of `touched`.
        take: Called while nobody offers: the offered gradient is what the next sum begins with (True), or zeros
            (False).
        sum_up: Starts the sum, scaled by a factor, and returns what to wait for.
        update: Called in the thread: steps the weights by the sum. Takes the numbers of the first rank of those that
            contributed, and which parameters any of them has a gradient of.
    """

    def __init__(
        self, name: str, process_set: ProcessSet, *, staleness: int, threshold: int, count_numbers: int,
        count_parameters: int, take: Callable[[bool], None], sum_up: Callable[[float], list[Handle]],
        update: Callable[[Sequence[float], Sequence[bool]], None],
    ) -> None:  # fmt: skip
        import numpy as np

        self.dropped = self.oldest = 0
        self._name = name
        self._process_set = process_set
        self._rank, self._ranks = process_set.rank(), process_set.size()
        self._staleness = staleness
        self.agreement = Agreement(self._ranks, threshold)
        self._columns = 2 + count_numbers
        self._said = np.zeros(self._ranks * self._columns + count_parameters, np.float64)
        self._take, self._sum_up, self._update = take, sum_up, update
        self._changed = threading.Condition()  # Guards all that follows, and `agreement`.
        self._offer: Offer | None = None
        self._own = 0  # gradients of this rank that are neither in the weights nor dropped
        self._meets = False
        self._met = False  # all have met, and this rank's program takes the weights
        self._round: Handle | None = None  # what this rank says in it is on the way
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"ringcore-{name}", daemon=True)

    def start(self) -> None:
        """Take part from now on, until the job ends."""
        context().services.append(self)
        self._thread.start()

    def stop(self) -> None:
        """The engine has ended: wait for the thread, which must not be in a framework's code when Python ends."""
        with self._changed:
            self._error = self._error or ShutdownError(
                "ringcore was shut down, and an AsyncOptimizer takes part no more"
            )
            self._changed.notify_all()
        self._thread.join(_END_S)

    def forget(self) -> None:
        """In a forked child: the thread is the parent's."""

    def wait_for_room(self) -> None:
        """Until the last gradient is in a sum, or dropped: there is memory for one that waits."""
        self._wait(lambda: self._offer is None)

    def offer(self, offer: Offer) -> None:
        """Contribute what `take` is going to take, unless it is too old by the time it could be."""
        with self._changed:
            self._raise()
            self._offer = offer
            self._own += 1
            self._speak()

    def wait_for_sums(self) -> None:
        """Until at most `staleness` gradients of this rank are not in the weights, or dropped."""
        self._wait(lambda: self._own <= self._staleness)

    def meet(self, take_weights: Callable[[], None]) -> None:
        """Wait until all ranks have called this and all gradients are in the weights, the same on all ranks.

        Args:
            take_weights: Is called then. Others may be further, but what they begin changes nothing before it returns.
        """
        self._wait(lambda: self._own == 0)
        with self._changed:
            self._raise()
            self._meets = True
            self._speak()
        self._wait(lambda: self._met)
        try:
            take_weights()
        finally:
            with self._changed:
                self._met = False
                self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or condition())
            if not condition():
                self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _has_news(self) -> bool:
        """Whether the others are to hear something of this rank; too old a gradient is none."""
        if self._offer is not None and self.agreement.version - self._offer.version > self._staleness:
            self._offer = None
            self._own -= 1
            self.dropped += 1
            self._changed.notify_all()
        return self._offer is not None or (self._meets and not self.agreement.is_meeting(self._rank))

    def _speak(self) -> None:
        """Take part in the next round, if there is a reason to and this rank has not yet."""
        if self._round is None and self._has_news():
            self._say()

    def _say(self) -> Handle:
        own = self._said[self._rank * self._columns :][: self._columns]
        self._said[:] = 0
        if self._offer is not None:
            own[0] = 1
            own[2:] = self._offer.numbers
            self._said[self._ranks * self._columns :] = self._offer.touched
        own[1] = self._meets and self._offer is None
        said = (self._said,)
        self._round = collectives.allreduce(said, said, self._name, op=ReduceOp.SUM, process_set=self._process_set)
        return self._round

    def _run(self) -> None:
        try:
            while True:
                self._take_part()
        except BaseException as error:  # whatever it is, the program's thread has to raise it
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _take_part(self) -> None:
        """One round."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._met)
            self._raise()
            self._speak()
            others = None if self._round is not None else self._watch()
        if others is not None:
            others.wait()
        with self._changed:
            if self._round is None:
                self._has_news()  # drops what is too old
            said = self._round or self._say()
        said.wait()
        rows = self._said[: self._ranks * self._columns].reshape(self._ranks, self._columns)
        with self._changed:
            verdict = self.agreement.decide([Word(bool(row[0]), bool(row[1])) for row in rows])
            contributes = self._rank in verdict.contributors
            if verdict.contributors:
                self._take(contributes)
            if contributes and self._offer is not None:
                self.oldest = max(self.oldest, self.agreement.version - 1 - self._offer.version)
                self._offer = None
            numbers: list[float] = rows[verdict.contributors[0], 2:].tolist() if verdict.contributors else []
            touched = self._said[self._ranks * self._columns :] > 0
            if verdict.met:
                self._meets, self._met = False, True
            if not verdict.contributors:
                self._round = None
            self._changed.notify_all()
        if not verdict.contributors:
            return
        for handle in self._sum_up(1 / len(verdict.contributors)):
            handle.synchronize()
        self._update(numbers, touched.tolist())
        with self._changed:
            self._own -= int(contributes)
            self._round = None
            self._changed.notify_all()

    def _watch(self) -> Handle:
        return context().runtime.watch(process_set_id_of(self._process_set), self._name, self.agreement.needed)


def check_bounds(staleness: Any, threshold: Any, process_set: ProcessSet) -> int:
    """What an optimizer's `staleness` and `threshold` have to be; None stands for all ranks.

    Raises:
        InvalidArgument: They are something else, or the job is elastic.
    """
    if type(staleness) is not int or staleness < 0:
        raise InvalidArgument(f"staleness is a whole number of updates, from 0, not {staleness!r}")
    ranks = process_set.size()
    needed = ranks if threshold is None else threshold
    if type(needed) is not int or not 1 <= needed <= ranks:
        raise InvalidArgument(f"threshold is a number of ranks, from 1 to {ranks}, not {threshold!r}")
    if context().settings.elastic:
        raise InvalidArgument(
            "asynchronous sums are for jobs whose ranks stay: in an elastic job a rank that comes would have to know "
            "what the others have agreed on; use DistributedOptimizer there, or start the job without --elastic"
        )
    return needed
