"""A job whose ranks something else has started: where they meet, and how a process becomes one of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import TracebackType

from ringcore._closing import Closing
from ringcore.bootstrap import RendezvousServer
from ringcore.bootstrap.auth import KEY_BYTES
from ringcore.bootstrap.keys import drop_key, hold_key
from ringcore.environment.placement import TICKET_JOB
from ringcore.environment.settings import PLACEMENT_VARIABLES
from ringcore.launcher.external.tickets import Ticket, TicketError

# Variables of this process's place. They are set together, so that none of an outer job is left.
_PLACE = (
    *sorted(PLACEMENT_VARIABLES),
    "RINGCORE_JOB_ID",
    "RINGCORE_RENDEZVOUS",
    "RINGCORE_KEY_FD",
    "RINGCORE_KEY_FILE",
)

_seat: Seat | None = None


class Job(Closing):
    """Where the ranks of one job meet; it serves them until it is closed.

    Args:
        size: Number of ranks.
        host: This host's address that the ranks reach; loopback where all of them are here.
        environ: Variables for the ranks, `RINGCORE_*` settings among them.

    Raises:
        BootstrapError: The address cannot be listened on.
    """

    def __init__(self, size: int, *, host: str = "127.0.0.1", environ: Mapping[str, str] | None = None) -> None:
        if size < 1:
            raise ValueError(f"a job has at least one rank, not {size}")
        self.size = size
        self.name = f"{TICKET_JOB}{os.urandom(8).hex()}"
        self._key = os.urandom(KEY_BYTES)
        self._environ = dict(environ or {})
        self._server = RendezvousServer(size, self._key, host=host, job=self.name)

    def ticket(self, rank: int) -> bytes:
        """What the process that is to be this rank gives to `connect`. It holds the job's key."""
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} in a job of {self.size} ranks")
        return Ticket(rank, self.size, self.name, self._server.address, self._key, self._environ).pack()

    def close(self) -> None:
        """Let no more ranks in. Those that are connected to each other stay so."""
        self._server.close()


class Seat:
    """This process's place in a job, as long as it has it."""

    def __init__(self, ticket: Ticket) -> None:
        self.rank = ticket.rank
        self.size = ticket.size
        self._key_fd = hold_key(ticket.key)
        own = {
            "RINGCORE_RANK": str(ticket.rank),
            "RINGCORE_SIZE": str(ticket.size),
            "RINGCORE_JOB_ID": ticket.job,
            "RINGCORE_RENDEZVOUS": ticket.address,
            "RINGCORE_KEY_FD": str(self._key_fd),
        }
        self._before = {name: os.environ.get(name) for name in (*_PLACE, *ticket.environ)}
        _set_variables({**dict.fromkeys(_PLACE), **ticket.environ, **own})

    def close(self) -> None:
        """Leave the job: `ringcore.shutdown()` if need be, and the environment as it was."""
        global _seat
        if _seat is not self:
            return
        lifecycle = sys.modules.get("ringcore.job.lifecycle")
        try:
            if lifecycle is not None:
                lifecycle.shutdown()
        finally:
            _seat = None
            drop_key(self._key_fd)
            _set_variables(self._before)

    def leave_because(self, error: BaseException) -> None:
        """Leave after an exception: ranks that wait for this one learn at once, and which exception it was."""
        lifecycle = sys.modules.get("ringcore.job.lifecycle")
        if lifecycle is not None:
            lifecycle.leave_because(error)
        self.close()

    def __enter__(self) -> Seat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if value is None:
            self.close()
        else:
            self.leave_because(value)


def connect(ticket: bytes) -> Seat:
    """Make this process a rank: `ringcore.init()` finds its place from now on.

    Args:
        ticket: From `Job.ticket`.

    Returns:
        The place; close it, or use it in a `with`, to leave.

    Raises:
        TicketError: This process has a place in a job already, or another version of ringcore.
    """
    global _seat
    place = Ticket.unpack(ticket)
    state = sys.modules.get("ringcore.job.state")
    if _seat is not None or (state is not None and state.is_initialized()):
        taken = "" if _seat is None else f" (rank {_seat.rank} of {_seat.size})"
        raise TicketError(
            f"this process cannot be rank {place.rank} of {place.size}: it is in a job already{taken}. A job inside a "
            "job needs processes of its own; leave the first with shutdown() before the next"
        )
    _seat = Seat(place)
    return _seat


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
