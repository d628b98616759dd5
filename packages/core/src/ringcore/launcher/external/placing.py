"""A job whose ranks are child processes of tasks that a scheduler places: Spark's, Dask's.

The driver has a `PlacedJob`; each task calls `host_rank`. The rank is a process of its own session: what it does to
itself does not harm the scheduler's worker, and it is dead at the latest when that is.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ringcore._closing import Closing
from ringcore.bootstrap.auth import AGENT, Hello, authenticate, until_let_in
from ringcore.bootstrap.sockets import dial
from ringcore.launcher import _options, _process
from ringcore.launcher._caller import Launcher
from ringcore.launcher._frames import Kind
from ringcore.launcher.agent import memory_file
from ringcore.launcher.api import call_of
from ringcore.launcher.external.tickets import Ticket

# The driver waits for the agents: one that it does not answer at once is late, or the job is over.
_DIAL_S = 5.0


class PlacedJob(Closing):
    """A job of child processes that a launcher on this host watches: it shows what they print, and ends them together.

    Args:
        size: Number of ranks, and so of tasks.
        fn: What each rank calls.
        args: The same on each rank.
        kwargs: Likewise.
        host: This host's address that the tasks reach; loopback where all of them are here.
        env: Variables for the ranks, `RINGCORE_*` settings among them.
        start_timeout_s: All tasks must have come after so long.
        verbose: Say what is done.
        hear: Called with what the ranks print, as it comes, while `results` waits.

    Raises:
        TypeError: The function or its arguments cannot be pickled.
        LaunchError: The address cannot be listened on.
    """

    def __init__(
        self,
        size: int,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        host: str = "127.0.0.1",
        env: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
        verbose: bool = False,
        hear: Callable[[str], None] | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"a job has at least one rank, not {size}")
        self.size = size
        self.call = call_of(fn, args, kwargs)  # pass it to `host_rank`
        self._environ = {name: str(value) for name, value in (env or {}).items()}
        words = [f"-np={size}", f"--start-timeout-s={start_timeout_s:g}", *(["--verbose"] if verbose else [])]
        words += ["-m", "ringcore.launcher.worker"]
        _options.parse(words, {})
        self._launcher = Launcher(words, hear)
        try:
            self._launcher.send(Kind.PLACE, json.dumps({"bind": host}).encode())
            hello = self._launcher.hello()
        except BaseException:
            self._launcher.close()
            raise
        self._address, self._key = hello["address"], bytes.fromhex(hello["key"])

    def ticket(self, index: int) -> bytes:
        """For the task of this number, from 0. Ranks are numbered later, host by host."""
        return Ticket(index, self.size, "", self._address, self._key, self._environ).pack()

    def results(self) -> list[Any]:
        """Wait for all ranks.

        Returns:
            What the function returned, in the order of ranks.

        Raises:
            RankError: It raised on a rank, or a rank was killed.
            LaunchError: The tasks did not come in time, or one ended without a result.
        """
        return self._launcher.results()

    def stop(self) -> None:
        """End all ranks, from any thread; `results` then raises."""
        self._launcher.stop()

    def close(self) -> None:
        """End what is left."""
        self._launcher.close()


def host_rank(ticket: bytes, call: bytes, environ: Mapping[str, str] | None = None) -> None:
    """Run one rank in a child process until the job's end. It is told to the job's driver how that went, not here.

    A second attempt at a ticket, as schedulers make, ends at once: its job goes on, or is over.

    Args:
        ticket: From `PlacedJob.ticket`.
        call: `PlacedJob.call`.
        environ: Variables for the rank that only this task knows, such as its GPUs.

    Raises:
        TicketError: Another version of ringcore or Python is here.
        BootstrapError: The driver is not there any more.
    """
    place = Ticket.unpack(ticket)
    deadline = time.monotonic() + _DIAL_S

    def enter() -> tuple[socket.socket, bytes]:
        connection = dial(place.address, deadline)
        try:
            secret = authenticate(connection, place.key, Hello(AGENT, 0, place.rank, 0), deadline)
        except BaseException:
            connection.close()
            raise
        return connection, secret

    connection, secret = until_let_in(enter, deadline)
    with connection:
        connection.setblocking(True)
        given = {
            "secret": secret,
            "hello": {"machine": _machine(), "address": connection.getsockname()[0]},
            "blobs": {"RINGCORE_KEY_FD": place.key, "RINGCORE_CALL_FD": call},
        }
        fd = memory_file("ringcore-given", pickle.dumps(given))
        try:
            agent = subprocess.Popen(
                [sys.executable, "-m", "ringcore.launcher.agent", str(fd)],
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                pass_fds=[fd],
                env={**os.environ, **_search_path(), **place.environ, **(environ or {})},
                start_new_session=True,
                preexec_fn=_process.die_with_parent(),
            )
        finally:
            os.close(fd)
    try:
        agent.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            agent.kill()
        agent.wait()


def _search_path() -> dict[str, str]:
    """What the scheduler's worker can import, its rank can."""
    return {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}


def _machine() -> str:
    """The same for tasks that can share memory and devices: on one kernel, and in one container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"
