"""What the ranks of an elastic job return, where it is a call.

It goes to the caller when the job has ended: before, nobody knows who will have been a rank.
"""

from __future__ import annotations

from ringcore.launcher._frames import Kind
from ringcore.launcher._job import RankExit
from ringcore.launcher._summary import Failure
from ringcore.launcher.elastic.ending import Ending
from ringcore.launcher.elastic.places import Place


class Returning(Ending):
    """Keeps the results of those that did their work, and hands them over."""

    _returned: dict[int, bytes]  # By place, what the process there has returned or raised ...
    _finished: list[tuple[int, int, bytes]]  # ... by rank and epoch, what those have that did their work ...
    _raised: list[tuple[RankExit, bytes]]  # ... and by their end, those that failed: their place may have another.
    _cause = b""  # What the one has raised that is to blame.

    def run(self) -> int:  # noqa: D102
        self._returned, self._finished, self._raised = {}, [], []
        code = super().run()
        self._hand_over(code)
        return code

    def _begin(self, place: Place) -> None:
        self._returned.pop(place.number, None)
        super()._begin(place)

    def on_output(self, rank: int, kind: Kind, data: bytes) -> None:  # noqa: D102
        if kind is Kind.RESULT:
            self._returned[rank] = self._returned.get(rank, b"") + data
        else:
            super().on_output(rank, kind, data)

    def on_exit(self, rank: int, how: RankExit) -> None:  # noqa: D102
        process = self._places.all[rank].process
        data = self._returned.pop(rank, b"")
        if how.code != 0:
            self._raised.append((how, data))
        elif process is not None and not process.leaves:
            self._finished.append((process.rank, process.epoch, data))
        super().on_exit(rank, how)

    def _report(self, cause: Failure) -> None:
        self._cause = next((data for how, data in self._raised if how is cause.how), b"")
        if self._cause:
            self._told.add(cause.rank)
        super()._report(cause)

    def _hand_over(self, code: int) -> None:
        """Gives the caller the results in the order of ranks, or what the one has raised that is to blame."""
        if self._given.on_result is None:
            return
        if code == 0:
            ranks = [found for found in self._finished if found[0] >= 0]  # Who was none is one too many.
            for number, (_, _, data) in enumerate(sorted(ranks or self._finished)):
                self._given.on_result(number, data)
        elif self.blamed is not None:
            self._given.on_result(self.blamed, self._cause)
