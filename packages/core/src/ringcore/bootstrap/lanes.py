"""Connects lanes when the engine first needs them, on a thread of its own.

The lower of two ranks dials, as at the start, and the proof is the same. Both ranks of a lane of data run the same
operation, so that both want it; control may be wanted by one of them only, which asks the lower one to dial.

Where all have been connected for control at the start, the listener that stays open is looked at only while this rank
waits for somebody: whoever else connects to it takes no time from a job that trains, and at most the room of the
acceptor from one that waits. Among many ranks others may ask at any time, and it is always looked at.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from typing import TYPE_CHECKING

from ringcore._errors import BootstrapError, RingcoreError
from ringcore.bootstrap.connector import Connector

if TYPE_CHECKING:
    from ringcore import _native

_log = logging.getLogger("ringcore")

# While connections are made, new wishes are looked for this often.
_TURN_S = 0.005


class LateLanes:
    """Serves one engine until it is stopped.

    Args:
        connector: Connected with all peers; closed by `stop`.
        runtime: Says what it wants, and takes it.
        fds: Gets the descriptors of each lane that the engine has taken, by rank.
        patience_s: After so long a lane that was not connected fails what waits for it.
        listens: Whether others may ask at any time.
    """

    def __init__(
        self,
        connector: Connector,
        runtime: _native.Runtime,
        fds: dict[int, list[int]],
        patience_s: float,
        *,
        listens: bool,
    ) -> None:
        self._connector = connector
        self._runtime = runtime
        self._fds = fds
        self._patience_s = patience_s
        self._listens = listens
        self._awaited: dict[tuple[int, int], float] = {}  # lanes, and until when
        self._attached: set[tuple[int, int]] = set()
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="ringcore-lanes", daemon=True)
        self._thread.start()
        runtime.add_service_thread(self._thread.native_id or 0)

    def stop(self) -> None:
        """Connect nothing more. What the engine has taken stays. Does nothing the second time."""
        if self._stop_write < 0:
            return
        os.close(self._stop_write)
        self._stop_write = -1
        self._thread.join()
        self._connector.finish()
        os.close(self._stop_read)

    def forget(self) -> None:
        """In a forked child: close the copies of what the parent goes on with."""
        self._connector.finish()
        if self._stop_write >= 0:
            os.close(self._stop_read)
            os.close(self._stop_write)
            self._stop_write = -1

    def _serve(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                stop = selector.register(self._stop_read, selectors.EVENT_READ)
                selector.register(self._runtime.lanes_wanted_fd, selectors.EVENT_READ)
                if self._listens:
                    selector.register(self._connector.fileno(), selectors.EVENT_READ)
                self._go_on()  # with what has come meanwhile
                while True:
                    ready = [key for key, _ in selector.select(0 if self._awaited else None)]
                    if stop in ready:
                        return
                    if ready:
                        self._take_wishes()
                    self._go_on()
        except Exception as error:  # What waits for a lane is not to wait for ever.
            kind = "" if isinstance(error, RingcoreError) else f"{type(error).__name__}: "
            self._runtime.fail(f"lanes can no longer be connected: {kind}{error}")

    def _take_wishes(self) -> None:
        for rank, lane in self._runtime.take_wanted_lanes():
            self._want(rank, lane)

    def _want(self, rank: int, lane: int) -> None:
        if (rank, lane) in self._attached or (rank, lane) in self._awaited:
            return
        self._awaited[rank, lane] = time.monotonic() + self._patience_s
        try:
            self._connector.open_lane(rank, lane)
        except BootstrapError as error:  # There is no way.
            self._give_up(rank, str(error))

    def _give_up(self, rank: int, why: str) -> None:
        for awaited in [awaited for awaited in self._awaited if awaited[0] == rank]:
            del self._awaited[awaited]
        self._runtime.give_up_link(rank, f"cannot be connected with any more: {why}")

    def _go_on(self) -> None:
        if not self._awaited and not self._listens:
            return
        self._connector.service(_TURN_S if self._awaited else 0)
        while self._connector.asked:
            self._want(self._connector.asked.pop(), 0)
        for lane in self._connector.lanes:
            self._attached.add((lane.rank, lane.number))
            self._awaited.pop((lane.rank, lane.number), None)
            of_rank = self._fds.setdefault(lane.rank, [])
            of_rank.extend(lane.fds)
            if not self._runtime.attach_lane(lane.rank, lane.number, lane.fds, lane.secrets):
                del of_rank[-len(lane.fds) :]  # The link is closed.
        self._connector.lanes.clear()
        while self._connector.lost:
            self._give_up(*self._connector.lost.popitem())
        now = time.monotonic()
        for (rank, number), deadline in list(self._awaited.items()):
            if now > deadline:
                self._give_up(
                    rank,
                    f"lane {number} between ranks {self._connector.rank} and {rank} was not connected within "
                    f"{self._patience_s:g} s ({self._connector.describe_lane(rank)}); look whether that rank "
                    "is stopped, whether a firewall closes its port, or raise RINGCORE_START_TIMEOUT_S",
                )
