"""How the two jobs of a data service tell each other what they have started, and that it is over."""

from __future__ import annotations

import logging
import secrets
from types import TracebackType

from ringcore import RingcoreError
from ringcore.bootstrap.board import Guest

_log = logging.getLogger("ringcore")
_SHUTDOWN = "shutdown"
# Workers stop within this, or will not.
_STOP_S = 10.0


class ComputeClient:
    """A connection of a process of either job. What it has registered is so as long as it is connected.

    Args:
        address: Where the jobs meet.
        key: The key for that.
        timeout: Seconds to wait for what others register.
        verbose: Say what is done.

    Raises:
        RingcoreError: Nobody answers there, or the key is another one.
    """

    def __init__(self, address: str, key: bytes, timeout: float, *, verbose: bool = False) -> None:
        self._timeout = timeout
        self._level = logging.WARNING if verbose else logging.DEBUG
        self._guest = Guest(address, key, timeout)

    def __enter__(self) -> ComputeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect."""
        self._guest.close()

    def register_dispatcher(self, dispatcher_id: int, address: str) -> None:
        """Tell where a dispatcher is."""
        _log.log(self._level, "data service: dispatcher %d is at %s", dispatcher_id, address)
        self._guest.post(_dispatcher(dispatcher_id), address)

    def unregister_dispatcher(self, dispatcher_id: int) -> None:
        """Tell that a dispatcher is about to stop, and wait until its workers have: without it they would hang."""
        self._guest.withdraw(_dispatcher(dispatcher_id))
        self._guest.watch(_workers(dispatcher_id), lambda posted: not posted, _STOP_S)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float | None = None) -> str:
        """Wait for a dispatcher; returns where it is."""
        name = _dispatcher(dispatcher_id)
        limit_s = self._timeout if timeout is None else timeout
        found = self._guest.watch(name, lambda posted: name in posted, limit_s)
        if name not in found:
            raise RingcoreError(
                f"the data service has no dispatcher {dispatcher_id} after {limit_s:g} s; is the job that it is to be "
                "in running? compute_worker --timeout gives it longer"
            )
        return found[name]

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Tell that a dispatcher has this worker."""
        _log.log(self._level, "data service: worker %d is at dispatcher %d", worker_id, dispatcher_id)
        self._guest.post(f"{_workers(dispatcher_id)}{worker_id}")

    def unregister_worker(self, dispatcher_id: int, worker_id: int) -> None:
        """Tell that a worker has stopped."""
        self._guest.withdraw(f"{_workers(dispatcher_id)}{worker_id}")

    def wait_for_dispatcher_worker_registration(
        self, dispatcher_id: int, workers: int = 1, timeout: float | None = None
    ) -> None:
        """Wait until a dispatcher has so many workers."""
        limit_s = self._timeout if timeout is None else timeout
        found = self._guest.watch(_workers(dispatcher_id), lambda posted: len(posted) >= workers, limit_s)
        if len(found) < workers:
            raise RingcoreError(
                f"dispatcher {dispatcher_id} of the data service has {len(found)} of {workers} workers after "
                f"{limit_s:g} s; look at what the compute job printed. compute_worker --timeout gives it longer"
            )

    def register_reader(self, dispatcher_id: int) -> None:
        """Tell that this process reads from a dispatcher, until it is closed."""
        self._guest.post(f"{_readers(dispatcher_id)}{secrets.token_hex(8)}")

    def wait_for_readers(self, dispatcher_id: int) -> None:
        """Wait until nobody reads from a dispatcher any more."""
        self._guest.watch(_readers(dispatcher_id), lambda posted: not posted)

    def shutdown(self) -> None:
        """End the compute job, and disconnect."""
        _log.log(self._level, "data service: the compute job is told to end")
        self._guest.post(_SHUTDOWN, lasting=True)
        self.close()

    def wait_for_end_of_dispatcher(self, dispatcher_id: int) -> None:
        """Wait until a dispatcher is about to stop, or has gone, or the compute job is told to end."""
        name = _dispatcher(dispatcher_id)
        self._guest.watch("", lambda posted: _SHUTDOWN in posted or name not in posted)

    def wait_for_shutdown(self, timeout: float | None = None) -> None:
        """Wait until the compute job is told to end.

        Args:
            timeout: Seconds to wait; `None`: as long as for what others register.

        Raises:
            RingcoreError: Nobody has told it to.
        """
        limit_s = self._timeout if timeout is None else timeout
        if not self._guest.watch(_SHUTDOWN, lambda posted: _SHUTDOWN in posted, limit_s):
            raise RingcoreError(
                f"a dispatcher of the data service has gone {limit_s:g} s ago, and nobody has told the compute job to "
                "end: the training has failed, or has not called compute_client().shutdown()"
            )


def _dispatcher(dispatcher_id: int) -> str:
    return f"dispatcher/{dispatcher_id}"


def _workers(dispatcher_id: int) -> str:
    return f"worker/{dispatcher_id}/"


def _readers(dispatcher_id: int) -> str:
    return f"reader/{dispatcher_id}/"
