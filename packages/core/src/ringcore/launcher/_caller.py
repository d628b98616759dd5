"""The launcher as another process of Python sees it, `ringcore.run` or the driver of a cluster."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any

from ringcore._closing import Closing
from ringcore._objects import unpickle
from ringcore.launcher import outcomes
from ringcore.launcher._frames import HEADER, FrameReader, Kind
from ringcore.launcher.outcomes import LaunchError, RankError

_READ_BYTES = 1 << 18
_STOP_LIMIT_S = 10.0
_TAIL_CHARACTERS = 4000
_OWN_WORDS = "ringrun: "


class Launcher(Closing):
    """The launcher's process and the socket to it. Without its caller it ends the ranks, and then itself.

    Args:
        argv: Words of ringrun's command line.
        hear: Called with what the ranks print to standard output, in pieces as they come, after it was shown.
        inherit: Descriptors that the launcher has as well.
    """

    def __init__(
        self, argv: Sequence[str], hear: Callable[[str], None] | None = None, inherit: Sequence[int] = ()
    ) -> None:
        self._hear = hear
        self._socket, theirs = socket.socketpair()
        self._said = ""
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "ringcore.launcher.call", str(theirs.fileno()), *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno(), *inherit],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": _with_ringcore(os.environ.get("PYTHONPATH"))},
            )
        self._frames = self._read()

    def send(self, kind: Kind, payload: bytes) -> None:
        """Send a frame."""
        with contextlib.suppress(OSError):  # It has ended already, and says why.
            self._socket.sendall(HEADER.pack(kind, 0, len(payload)) + payload)

    def results(self) -> list[Any]:
        """Wait for the end, and show meanwhile what ranks print.

        Returns:
            What the function returned, in the order of ranks.

        Raises:
            RankError: It raised, or a rank was killed.
            LaunchError: A rank ended without a result.
        """
        data: dict[int, bytes] = {}
        blamed = None
        for kind, rank, payload in self._frames:
            if kind is Kind.RESULT:
                data[rank] = data.get(rank, b"") + payload
            elif kind is Kind.EXIT:
                blamed = rank
        ended = {rank: unpickle(piece) for rank, piece in sorted(data.items()) if _complete(piece)}
        raised = {rank: outcomes.Raised(*value) for rank, (how, value) in ended.items() if how == "raised"}
        if blamed is not None and blamed not in raised:  # It was killed; the exceptions of the others explain nothing.
            words = [line for line in self._said.splitlines() if line.startswith(_OWN_WORDS)]
            raise RankError(blamed, "\n".join(line.removeprefix(_OWN_WORDS) for line in words))
        if raised:
            outcomes.raise_first(raised)
        if self._popen.wait() != 0:
            raise self._failure()
        return [value for _, (_, value) in sorted(ended.items())]

    def abandon(self) -> None:
        """End all ranks, as their scheduler does no more for them; what has ended one first is still told."""
        self.send(Kind.ABANDON, b"")

    def stop(self) -> None:
        """End all ranks; another thread may wait in `results`, which then raises."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all ranks that are left, and the launcher."""
        self._frames.close()
        self._socket.close()
        try:
            self._popen.wait(_STOP_LIMIT_S)
        finally:
            for pipe in (self._popen.stdout, self._popen.stderr):
                if pipe is not None:
                    pipe.close()

    def _read(self) -> Generator[tuple[Kind, int, bytes], None, None]:
        reader = FrameReader()
        with selectors.DefaultSelector() as selector:
            assert self._popen.stdout is not None and self._popen.stderr is not None
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._popen.stdout, selectors.EVENT_READ, sys.stdout)
            selector.register(self._popen.stderr, selectors.EVENT_READ, sys.stderr)
            while selector.get_map():
                for key, _ in selector.select():
                    try:
                        data = os.read(key.fd, _READ_BYTES)
                    except ConnectionResetError:  # It has ended, and did not read all: its last words say why.
                        data = b""
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.data is None:
                        yield from reader.feed(data)
                    else:
                        self._show(key.data, data.decode(errors="replace"))

    def _show(self, stream: Any, text: str) -> None:
        # To Python's own stream, which a notebook shows in the cell.
        stream.write(text)
        stream.flush()
        if stream is not sys.stderr and self._hear is not None:
            self._hear(text)
        if stream is sys.stderr:
            self._said = (self._said + text)[-_TAIL_CHARACTERS:]

    def _failure(self) -> LaunchError:
        return LaunchError(f"the launcher ended with exit code {self._popen.wait()}:\n{self._said.strip()}")


def _with_ringcore(python_path: str | None) -> str:
    """The launcher must find this ringcore, also if only `sys.path` was changed."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return home if not python_path else f"{home}{os.pathsep}{python_path}"


def _complete(data: bytes) -> bool:
    return data.endswith(b".")  # Every pickle does; a rank may have been killed while it wrote.
