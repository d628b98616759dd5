"""A scheduler's worker hosts a rank: what a task of Spark or Dask calls."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ringcore.bootstrap.auth import ConnectionClosedError
from ringcore.bootstrap.sockets import NobodyListensError
from ringcore.environment.hidden import memory_file
from ringcore.launcher import _process
from ringcore.launcher._dialling import dial_launcher, machine
from ringcore.launcher.external.answers import RANK_FAILED
from ringcore.launcher.external.tickets import Ticket

# The driver listens before it hands tickets out: one that does not answer is over, or its host is very busy.
_DIAL_S = 10.0

_of_thread = threading.local()  # The kernel kills a zygote when the thread ends that has started it.


def host_rank(ticket: bytes, call: bytes, environ: Mapping[str, str] | None = None) -> None:
    """Run one rank in a process of its own until the job's end. It is told to the job's driver how that went, not here.

    A second attempt at a ticket, as schedulers make, ends at once: its job goes on, or is over. Where the job is
    elastic and goes on it has another rank, which joins the others; and so has this attempt when its rank has failed.

    Args:
        ticket: From `PlacedJob.ticket`.
        call: `PlacedJob.call`.
        environ: Variables for the rank that only this task knows, such as its GPUs.

    Raises:
        TicketError: Another version of ringcore or Python is here.
        BootstrapError: The driver is not there any more.
    """
    place = Ticket.unpack(ticket)
    while _host_one(place, call, environ or {}):
        pass


def _host_one(place: Ticket, call: bytes, environ: Mapping[str, str]) -> bool:
    """Returns whether there may be another rank for this ticket."""
    try:
        deadline = time.monotonic() + _DIAL_S
        connection, secret = dial_launcher(place.address, place.key, place.rank, deadline, listens=place.elastic)
    except (ConnectionClosedError, NobodyListensError):  # The job is over.
        if place.elastic:
            return False
        raise
    with connection:
        given: dict[str, Any] = {
            "secret": secret,
            "hello": {"machine": machine(), "address": connection.getsockname()[0]},
            "blobs": {"RINGCORE_KEY_FD": place.key, "RINGCORE_CALL_FD": call},
            "environ": dict(environ),
        }
        fd = memory_file("ringcore-given", pickle.dumps(given))
        try:
            zygote = _zygote({**os.environ, **_search_path(), **place.environ}, [connection.fileno(), fd])
        finally:
            os.close(fd)
    # Nobody but the agent has the connection now: the launcher hears of its end at once.
    return zygote.wait() and place.elastic


class _Zygote:
    """The process that agents and ranks are forked from; see `zygote`. It stays for the next job of this thread."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ, self._cwd = dict(environ), os.getcwd()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "ringcore.launcher.external.zygote", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # As every rank has it: an interpreter looks at it when it starts.
                env={**environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
                preexec_fn=_process.die_with_parent(),
            )

    def suits(self, environ: Mapping[str, str]) -> bool:
        """Whether it is there, and has the environment and folder that a new one would have."""
        return self._popen.poll() is None and self._environ == environ and self._cwd == os.getcwd()

    def start(self, descriptors: Sequence[int]) -> None:
        """Have it fork an agent with this connection to the launcher, and what it is given."""
        socket.send_fds(self._line, [b"job"], descriptors)

    def wait(self) -> bool:
        """Wait for the agent's end, and keep this for the next job; what ends the task meanwhile ends the agent.

        Returns:
            Whether its rank has failed, and the launcher has heard so.
        """
        try:
            said = self._line.recv(1)
        except ConnectionResetError:  # Somebody has killed it.
            said = b""
        except BaseException:
            self.close()
            raise
        if said:
            _of_thread.zygote = self
        else:
            self.close()
        return said == RANK_FAILED

    def close(self) -> None:
        """End it, its agent and its rank."""
        self._line.close()
        self._popen.kill()
        self._popen.wait()


def _zygote(environ: Mapping[str, str], descriptors: Sequence[int]) -> _Zygote:
    """The one of the last job if it will do, or a new one, with a job."""
    kept: _Zygote | None = getattr(_of_thread, "zygote", None)
    _of_thread.zygote = None
    if kept is not None:
        if kept.suits(environ):
            with contextlib.suppress(OSError):  # It has been killed this very moment.
                kept.start(descriptors)
                return kept
        kept.close()
    new = _Zygote(environ)
    new.start(descriptors)
    return new


def _search_path() -> dict[str, str]:
    """What the scheduler's worker can import, its rank can."""
    return {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
