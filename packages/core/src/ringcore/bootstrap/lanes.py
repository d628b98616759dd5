"""Connects lanes when the engine first needs them, on a thread of its own.

The lower of two ranks dials, as at the start, and the proof is the same. Both ranks of a lane of data run the same
operation, so that both want it; control may be wanted by one of them only, which asks the lower one to dial.

Where all have been connected for control at the start, the listener that stays open is looked at only while this rank
waits for somebody: whoever else connects to it takes no time from a job that trains, and at most the room of the
acceptor from one that waits. Among many ranks others may ask at any time, and it is always looked at.

Whoever joins a job that runs has met its members in a meeting of their own: each meeting has a connector.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringcore._errors import BootstrapError, RingcoreError
from ringcore.bootstrap.connector import Connector, Lane

if TYPE_CHECKING:
    from ringcore import _native

_log = logging.getLogger("ringcore")

# While connections are made, new wishes are looked for this often; and while nothing waits for them, this.
_TURN_S = 0.005
_IDLE_TURN_S = 0.1


@dataclass(eq=False)
class _Meeting:
    """Those whom this process has met together.

    Attributes:
        connector: Connects with them; it counts them from 0.
        places: What the engine calls each.
        listens: Whether others may ask at any time.
        awaited: Lanes: until when, and whether something may wait for them; else nothing happens then.
    """

    connector: Connector
    places: Mapping[int, int]
    listens: bool
    awaited: dict[tuple[int, int], tuple[float, bool]] = field(default_factory=dict)

    def is_urgent(self) -> bool:
        """Whether something waits."""
        return any(is_needed for _, is_needed in self.awaited.values())


class LateLanes:
    """Serves one engine until it is stopped.

    Args:
        runtime: Says what it wants, and takes it.
        fds: Gets the descriptors of each lane that the engine has taken, by place.
        patience_s: After so long a lane that was not connected fails what waits for it.
        rank: This rank's number by now, for errors.
    """

    def __init__(
        self, runtime: _native.Runtime, fds: dict[int, list[int]], patience_s: float, rank: Callable[[], int]
    ) -> None:
        self._runtime = runtime
        self._fds = fds
        self._patience_s = patience_s
        self._rank = rank
        self._meetings: list[_Meeting] = []
        self._meeting_of: dict[int, tuple[_Meeting, int]] = {}  # by place; and its number there
        self._attached: set[tuple[int, int]] = set()  # places and lanes
        self._new: queue.SimpleQueue[_Meeting | int] = queue.SimpleQueue()  # and places of those who have gone
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="ringcore-lanes", daemon=True)
        self._thread.start()
        runtime.add_service_thread(self._thread.native_id or 0)

    def serve(self, connector: Connector, places: Mapping[int, int], *, listens: bool = False) -> None:
        """From here on connect with these, too.

        Args:
            connector: Connected with all of them; closed in the end.
            places: Of its peers, what the engine calls each.
            listens: Whether others may ask at any time.
        """
        self._new.put(_Meeting(connector, places, listens))
        os.write(self._stop_write, b"!")

    def part_with(self, places: Iterable[int]) -> None:
        """These have gone, and nothing is connected with them any more."""
        for place in places:
            self._new.put(place)
        os.write(self._stop_write, b"!")

    def stop(self) -> None:
        """Connect nothing more. What the engine has taken stays. Does nothing the second time."""
        if self._stop_write < 0:
            return
        os.close(self._stop_write)
        self._stop_write = -1
        self._thread.join()
        self._finish()
        os.close(self._stop_read)

    def forget(self) -> None:
        """In a forked child: close the copies of what the parent goes on with."""
        self._finish()
        if self._stop_write >= 0:
            os.close(self._stop_read)
            os.close(self._stop_write)
            self._stop_write = -1

    def _finish(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                new = self._new.get_nowait()
                if isinstance(new, _Meeting):
                    new.connector.finish()
        for meeting in self._meetings:
            meeting.connector.finish()
        self._meetings.clear()

    def _serve(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                told = selector.register(self._stop_read, selectors.EVENT_READ)
                ready = [told]
                while told not in ready or os.read(self._stop_read, 4096):
                    # In this order: whom the engine wishes for was met before.
                    wishes = self._runtime.take_wanted_lanes()
                    self._take_new(selector)
                    self._take_wishes(wishes)
                    for meeting in list(self._meetings):
                        self._go_on(meeting)
                    ready = [key for key, _ in selector.select(self._nap_s())]
        except Exception as error:  # What waits for a lane is not to wait for ever.
            kind = "" if isinstance(error, RingcoreError) else f"{type(error).__name__}: "
            self._runtime.fail(f"rank {self._rank()} can no longer connect lanes: {kind}{error}")

    def _nap_s(self) -> float | None:
        if any(meeting.is_urgent() for meeting in self._meetings):
            return 0
        return _IDLE_TURN_S if any(meeting.awaited for meeting in self._meetings) else None

    def _take_new(self, selector: selectors.BaseSelector) -> None:
        if not self._meetings and self._runtime.lanes_wanted_fd not in selector.get_map():
            selector.register(self._runtime.lanes_wanted_fd, selectors.EVENT_READ)
        with contextlib.suppress(queue.Empty):
            while True:
                new = self._new.get_nowait()
                if isinstance(new, _Meeting):
                    self._meetings.append(new)
                    self._meeting_of.update({place: (new, number) for number, place in new.places.items()})
                    if new.listens:
                        selector.register(new.connector.fileno(), selectors.EVENT_READ)
                else:
                    self._part_with(new, selector)

    def _part_with(self, place: int, selector: selectors.BaseSelector) -> None:
        meeting, number = self._meeting_of.pop(place, (None, 0))
        if meeting is None:
            return
        for awaited in [awaited for awaited in meeting.awaited if awaited[0] == number]:
            del meeting.awaited[awaited]
        meeting.connector.gone.add(number)
        if not any(other is meeting for other, _ in self._meeting_of.values()):
            if meeting.listens:
                selector.unregister(meeting.connector.fileno())
            self._meetings.remove(meeting)
            meeting.connector.finish()

    def _take_wishes(self, wishes: Iterable[tuple[int, int]]) -> None:
        for place, lane in wishes:
            meeting, number = self._meeting_of.get(place, (None, 0))
            if meeting is not None:  # Whoever has gone needs none.
                self._want(meeting, number, lane)

    def _want(self, meeting: _Meeting, number: int, lane: int) -> None:
        if (meeting.places[number], lane) in self._attached:
            return
        is_known = (number, lane) in meeting.awaited  # For another operation, which may have ended.
        meeting.awaited[number, lane] = time.monotonic() + self._patience_s, True
        if is_known:
            return
        try:
            meeting.connector.open_lane(number, lane)
        except BootstrapError as error:  # There is no way.
            self._give_up(meeting, number, str(error))

    def _give_up(self, meeting: _Meeting, number: int, why: str) -> None:
        for awaited in [awaited for awaited in meeting.awaited if awaited[0] == number]:
            del meeting.awaited[awaited]
        self._runtime.give_up_link(meeting.places[number], f"cannot be connected with any more: {why}")

    def _go_on(self, meeting: _Meeting) -> None:
        if not meeting.awaited and not meeting.listens:
            return
        connector = meeting.connector
        connector.service(_TURN_S if meeting.is_urgent() else 0)
        while connector.asked:
            self._want(meeting, connector.asked.pop(), 0)
        for lane in connector.lanes:
            self._attach(meeting, lane)
        connector.lanes.clear()
        while connector.lost:
            self._give_up(meeting, *connector.lost.popitem())
        now = time.monotonic()
        for (number, wanted), (deadline, was_needed) in list(meeting.awaited.items()):
            if now <= deadline:
                continue
            place = meeting.places[number]
            is_needed = self._runtime.needs_lane(place, wanted)
            if not (was_needed and is_needed):
                # The operation has ended without it, as a rank was lost, or has not come to it yet.
                meeting.awaited[number, wanted] = now + self._patience_s, is_needed
            else:
                self._give_up(
                    meeting,
                    number,
                    f"lane {wanted} between this rank and rank {place} was not connected within "
                    f"{self._patience_s:g} s ({connector.describe_lane(number)}); look whether that rank "
                    "is stopped, whether a firewall closes its port, or raise RINGCORE_START_TIMEOUT_S",
                )

    def _attach(self, meeting: _Meeting, lane: Lane) -> None:
        place = meeting.places[lane.rank]
        self._attached.add((place, lane.number))
        meeting.awaited.pop((lane.rank, lane.number), None)
        of_place = self._fds.setdefault(place, [])
        of_place.extend(lane.fds)
        if not self._runtime.attach_lane(place, lane.number, lane.fds, lane.secrets):
            del of_place[-len(lane.fds) :]  # The link is closed.
