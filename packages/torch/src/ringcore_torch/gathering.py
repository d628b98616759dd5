"""`overlap="forward"` of a sharded optimizer: `step` returns while parameters are gathered, and who reads one waits.

What the next forward needs first is gathered first.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from ringcore import RingcoreError, adapter

from ringcore_torch.flat import FlatParameters, Wait
from ringcore_torch.pending import hide, show
from ringcore_torch.waiting import watch, why_not_now

_log = logging.getLogger("ringcore")


class Gather:
    """The parameters of one row, between `step` and their first use.

    Args:
        flat: The row.
        of: All that are under way.
        wait: Returns when the parameters are here.
    """

    takes_gradients = False  # they have been averaged, in memory of their own

    def __init__(self, flat: FlatParameters, of: ForwardGathers, wait: Wait) -> None:
        self.flat, self._of, self.wait = flat, of, wait

    def settle(self) -> None:
        """Wait for them."""
        self._of.settle_one(self)

    # As for updates: see pending.py.
    settle._torchdynamo_disable = True  # type: ignore[attr-defined]


class ForwardGathers:
    """What one optimizer gathers beside the forward that reads it.

    Args:
        flats: Its parameters.
    """

    def __init__(self, flats: Sequence[FlatParameters]) -> None:
        self._flats = list(flats)  # what is used first stands first, once that is known
        self._used: list[FlatParameters] | None = []  # in the first forward that was seen; None behind it
        self._gathers: list[Gather] = []
        self._has_told = False
        watch(self)

    def start(self) -> None:
        """Gather all parameters, the first to be used first; whoever reads one waits for its row."""
        self._follow_first_forward()
        with self._giving_up_on_errors():
            for place, flat in enumerate(self._flats):
                gather = Gather(flat, self, flat.start_allgather(priority=adapter.priority_of(place)))
                self._gathers.append(gather)
                hide(flat.parameters, gather)
        if reason := why_not_now():
            self.settle()
            if not self._has_told:
                self._has_told = True
                _log.warning('overlap="forward" does nothing in this step, and in others like it: %s', reason)

    def _follow_first_forward(self) -> None:
        if self._used:
            unused = [flat for flat in self._flats if flat not in self._used]
            self._flats, self._used = self._used + unused, None

    @property
    def is_pending(self) -> bool:
        """Whether any parameters are still to come."""
        return bool(self._gathers)

    def settle_one(self, gather: Gather) -> None:
        """Wait for one row."""
        with self._giving_up_on_errors():
            self._finish(gather)
        if self._used is not None:
            self._used.append(gather.flat)

    def settle(self) -> None:
        """Wait for all."""
        with self._giving_up_on_errors():
            for gather in list(self._gathers):
                self._finish(gather)

    def _finish(self, gather: Gather) -> None:
        gather.wait()
        self._gathers.remove(gather)
        show(gather.flat.parameters)

    @contextlib.contextmanager
    def _giving_up_on_errors(self) -> Iterator[None]:
        try:
            yield
        except RingcoreError:
            for gather in self._gathers:
                show(gather.flat.parameters)
            self._gathers.clear()
            raise
