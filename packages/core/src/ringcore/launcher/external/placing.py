"""A job whose ranks are child processes of tasks that a scheduler places: Spark's, Dask's.

The driver has a `PlacedJob`; each task calls `host_rank`. The rank is a process of its own session: what it does to
itself does not harm the scheduler's worker, and it is dead at the latest when that is.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringcore._closing import Closing
from ringcore._errors import BootstrapError
from ringcore.bootstrap.auth import KEY_BYTES
from ringcore.bootstrap.sockets import format_address, listen_tcp
from ringcore.launcher import _options
from ringcore.launcher._caller import Launcher
from ringcore.launcher._frames import Kind
from ringcore.launcher.api import call_of
from ringcore.launcher.external.tickets import Ticket
from ringcore.launcher.outcomes import LaunchError


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
        self._key = os.urandom(KEY_BYTES)
        # The launcher takes its time to start: the tasks may come meanwhile.
        with _listen(host) as listener:
            self._address = f"tcp:{format_address(listener.getsockname())}"
            self._launcher = Launcher(words, hear, inherit=[listener.fileno()])
            place = {"bind": host, "listener": listener.fileno(), "key": self._key.hex()}
        self._launcher.send(Kind.PLACE, json.dumps(place).encode())

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


def _listen(host: str) -> socket.socket:
    try:
        return listen_tcp(host)
    except BootstrapError as error:
        raise LaunchError(str(error)) from None
