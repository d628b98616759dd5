"""A job whose ranks are child processes of tasks that a scheduler places: Spark's, Dask's.

The driver has a `PlacedJob`; each task calls `host_rank`. The rank is a process of its own session: what it does to
itself does not harm the scheduler's worker, and it is dead at the latest when that is.
"""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Elasticity:
    """How the ranks of an elastic job may come and go.

    Attributes:
        min_ranks: The job goes on with so many; with fewer it waits for others.
        max_ranks: It takes no more.
        timeout_s: It waits so long.
        reset_limit: Ranks come and go so often; None: without limit.
        cooldown_s: The least and the most that passes before a rank that has failed is replaced; None: 1 and 60.
    """

    min_ranks: int
    max_ranks: int
    timeout_s: float = 600.0
    reset_limit: int | None = None
    cooldown_s: tuple[float, float] | None = None

    def words(self) -> list[str]:
        """As the launcher has it."""
        words = [f"--min-np={self.min_ranks}", f"--max-np={self.max_ranks}", f"--elastic-timeout={self.timeout_s:g}"]
        words += [] if self.reset_limit is None else [f"--reset-limit={self.reset_limit}"]
        return words if self.cooldown_s is None else [*words, "--blacklist-cooldown-range", *map(str, self.cooldown_s)]


class PlacedJob(Closing):
    """A job of child processes that a launcher on this host watches: it shows what they print, and ends them together.

    Args:
        size: Number of ranks, and so of tasks; of an elastic job: so many begin.
        fn: What each rank calls.
        args: The same on each rank.
        kwargs: Likewise.
        host: This host's address that the tasks reach; loopback where all of them are here.
        env: Variables for the ranks, `RINGCORE_*` settings among them.
        start_timeout_s: All tasks must have come after so long.
        verbose: Say what is done.
        hear: Called with what the ranks print, as it comes, while `results` waits.
        elastic: How ranks may come and go; None: they are those that begin. A task whose rank fails brings another
            one, and so does a task that the scheduler starts again.

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
        elastic: Elasticity | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"a job has at least one rank, not {size}")
        self.size = size
        self.tasks = size if elastic is None else elastic.max_ranks
        self.is_elastic = elastic is not None
        self.call = call_of(fn, args, kwargs)  # pass it to `host_rank`
        self._environ = {name: str(value) for name, value in (env or {}).items()}
        words = [f"-np={size}", f"--start-timeout-s={start_timeout_s:g}", *(["--verbose"] if verbose else [])]
        words += [] if elastic is None else elastic.words()
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
        """For the task of this number, from 0, of `tasks`. Ranks are numbered later, host by host."""
        return Ticket(index, self.size, "", self._address, self._key, self._environ, self.is_elastic).pack()

    def results(self) -> list[Any]:
        """Wait for all ranks.

        Returns:
            What the function returned, in the order of ranks.

        Raises:
            RankError: It raised on a rank, or a rank was killed.
            LaunchError: The tasks did not come in time, or one ended without a result.
        """
        return self._launcher.results()

    def abandon(self) -> None:
        """End all ranks as the scheduler has given up a task, from any thread; `results` then raises.

        A scheduler may know that a process has died before this does: if it was one of a rank or its agent, `results`
        still raises the RankError that tells which.
        """
        self._launcher.abandon()

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
