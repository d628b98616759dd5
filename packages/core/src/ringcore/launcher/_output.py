"""What ranks print: whole lines with the rank before them on the console, and raw bytes in log files."""

from __future__ import annotations

import dataclasses
import errno
import os
import select
import time
from collections.abc import Callable, Iterable, Mapping

from ringcore.launcher._frames import Kind

_STREAM_NAMES = {Kind.STDOUT: "stdout", Kind.STDERR: "stderr"}
# Readable on dark and on light: cyan, green, yellow, magenta, blue, red.
_COLOURS = (36, 32, 33, 35, 34, 31)
_ERASE_LINE = b"\r\x1b[K"
# A line without an end is passed on in pieces of this size.
_LINE_BYTES = 1 << 20
_TAIL_BYTES = 1 << 15


class ConsoleClosed(Exception):
    """Nobody reads the launcher's output any more: `ringrun ... | head`, or a closed terminal."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """What goes where.

    Attributes:
        log_dir: Directory for rank.N/stdout and rank.N/stderr; `None`: no files.
        shows: Whether a rank's stream goes to the console.
        timestamps: Put the time before each line.
    """

    log_dir: str | None = None
    shows: Callable[[int, Kind], bool] = lambda _rank, _kind: True
    timestamps: bool = False


class _Console:
    """One of the launcher's own two streams."""

    def __init__(self, fd: int, environ: Mapping[str, str]) -> None:
        self._fd = fd
        self.terminal = os.isatty(fd)
        self.coloured = self.terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self.muted = False
        self._unfinished = False  # The cursor stands behind a progress bar.

    def write_lines(self, lines: list[tuple[bytes, bytes]]) -> None:
        """Writes (prefix, line) pairs; a line that ends in a carriage return will be overwritten."""
        pieces = []
        for prefix, line in lines:
            if self._unfinished:
                pieces.append(_ERASE_LINE)
            self._unfinished = self.terminal and line.endswith(b"\r")
            pieces += [prefix, line]
        self.write(b"".join(pieces))

    def write(self, data: bytes) -> None:
        view = memoryview(b"" if self.muted else data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                # Someone who shares the terminal has made it non-blocking.
                select.select([], [self._fd], [])
            except OSError as error:
                raise ConsoleClosed(error.errno or errno.EIO) from None


class Output:
    """Takes what ranks print, and writes it where the user wants it."""

    def __init__(self, options: OutputOptions, environ: Mapping[str, str]) -> None:
        """Write to this process's standard output and standard error.

        Args:
            options: What goes where.
            environ: Read for NO_COLOR and TERM.
        """
        self._options = options
        self._consoles = {Kind.STDOUT: _Console(1, environ), Kind.STDERR: _Console(2, environ)}
        self._partial: dict[tuple[int, Kind], bytes] = {}
        self._files: dict[tuple[int, Kind], int] = {}
        self._tails: dict[int, bytes] = {}

    def feed(self, rank: int, kind: Kind, data: bytes) -> None:
        """Take a piece of what a rank printed.

        Raises:
            ConsoleClosed: Nobody reads the console.
        """
        if kind is Kind.STDERR:
            self._tails[rank] = (self._tails.get(rank, b"") + data)[-_TAIL_BYTES:]
        self._log(rank, kind, data)
        if self._options.shows(rank, kind):
            data = self._partial.pop((rank, kind), b"") + data
            lines, rest = _split(data, self._consoles[kind].terminal)
            if rest:
                self._partial[rank, kind] = rest
            self._show(rank, kind, lines)

    def end(self, rank: int) -> None:
        """Write what a rank left unfinished: a last line without an end."""
        for kind in _STREAM_NAMES:
            rest = self._partial.pop((rank, kind), b"")
            if rest:
                self._show(rank, kind, [rest + b"\n"])

    def tail(self, rank: int) -> str:
        """The last 32 KiB that a rank wrote to its standard error."""
        return self._tails.get(rank, b"").decode(errors="replace")

    def say(self, text: str) -> None:
        """Write a message of the launcher itself to standard error."""
        self._consoles[Kind.STDERR].write_lines([(b"", text.encode(errors="replace") + b"\n")])

    def mute(self) -> None:
        """Write no more to the console; log files go on."""
        for console in self._consoles.values():
            console.muted = True

    def close(self) -> None:
        """Close the log files."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _show(self, rank: int, kind: Kind, lines: list[bytes]) -> None:
        console = self._consoles[kind]
        if lines:
            prefix = self._prefix(rank, kind, console.coloured)
            console.write_lines([(prefix, line) for line in lines])

    def _prefix(self, rank: int, kind: Kind, coloured: bool) -> bytes:
        text = f"[{rank}]<{_STREAM_NAMES[kind]}>"
        if coloured:
            text = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m"
        if self._options.timestamps:
            now = time.time()
            clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
            text = f"{clock}.{int(now * 1000) % 1000:03d} {text}"
        return text.encode() + b" "

    def _log(self, rank: int, kind: Kind, data: bytes) -> None:
        fd = self._files.get((rank, kind))
        view = memoryview(data if fd is not None else b"")
        while view and fd is not None:
            try:
                view = view[os.write(fd, view) :]
            except OSError as error:  # A full disk is no reason to end a training run.
                os.close(self._files.pop((rank, kind)))
                self.say(f"ringrun: rank {rank}'s log file ends here: {error.strerror}")
                return

    def create_logs(self, ranks: Iterable[int]) -> None:
        """Make the log files of all ranks, so that a directory that cannot be written is found at once.

        Raises:
            OSError: A file cannot be made.
        """
        if self._options.log_dir is not None:
            for rank in ranks:
                for kind, name in _STREAM_NAMES.items():
                    self._files[rank, kind] = _open_log(self._options.log_dir, rank, name)


def _open_log(directory: str, rank: int, name: str) -> int:
    folder = os.path.join(directory, f"rank.{rank}")
    os.makedirs(folder, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.open(os.path.join(folder, name), flags, 0o666)


def _split(data: bytes, at_returns: bool) -> tuple[list[bytes], bytes]:
    """Cuts off the complete lines: at newlines, and on a terminal at a progress bar's carriage returns."""
    if at_returns:
        lines = data.splitlines(keepends=True)  # Of bytes: at \n, \r and \r\n, and nowhere else.
    else:
        lines = [line + b"\n" for line in data.split(b"\n")]
        lines[-1] = lines[-1][:-1]
    # A carriage return at the very end may be the first half of "\r\n", so that it waits as well.
    rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
    if len(rest) >= _LINE_BYTES:
        lines.append(rest + b"\n")
        rest = b""
    return lines, rest
