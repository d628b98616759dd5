"""What ranks print: whole lines with the rank before them on the console, and raw bytes in log files."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping

from ringcore.launcher._frames import Kind
from ringcore.launcher._last_words import LastWords
from ringcore.launcher._loop import Loop
from ringcore.launcher._writer import Writer

_STREAM_NAMES = {Kind.STDOUT: "stdout", Kind.STDERR: "stderr"}
_CONSOLE_NAMES = {1: "standard output", 2: "standard error"}
# Readable on dark and on light: cyan, green, yellow, magenta, blue, red.
_COLOURS = (36, 32, 33, 35, 34, 31)
_ERASE_LINE = b"\r\x1b[K"
# A line without an end is passed on in pieces of this size.
_LINE_BYTES = 1 << 20
_TAIL_BYTES = 1 << 15
# A rank that still runs so long after a traceback has caught the exception; many that end at a time take longer.
_LAST_WORDS_S = 2.0
_LAST_WORDS_A_RANK_S = 0.25
_LAST_WORDS_LIMIT_S = 20.0
# Who is in a hurry waits no longer for a reader of what was printed.
_UNREAD_S = 1.0
_EXIT_LOST = 1


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """What goes where.

    Attributes:
        log_dir: Directory for rank.N/stdout and rank.N/stderr; `None`: no files.
        shows: Whether a rank's stream goes to the console.
        timestamps: Put the time before each line.
        ranks: How many the job has.
    """

    log_dir: str | None = None
    shows: Callable[[int, Kind], bool] = lambda _rank, _kind: True
    timestamps: bool = False
    ranks: int = 1

    @property
    def last_words_s(self) -> float:
        """For how long what follows a traceback may be a rank's last words."""
        return min(_LAST_WORDS_S + _LAST_WORDS_A_RANK_S * self.ranks, _LAST_WORDS_LIMIT_S)


class _Console:
    """One of the launcher's own two streams."""

    def __init__(self, fd: int, writer: Writer, environ: Mapping[str, str]) -> None:
        self._fd = fd
        self.writer = writer
        self.terminal = os.isatty(fd)
        self.coloured = self.terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._unfinished = False  # The cursor stands behind a progress bar.
        self._dropped_bytes = 0

    def write_lines(self, lines: list[tuple[bytes, bytes]]) -> None:
        """Writes (prefix, line) pairs; a line that ends in a carriage return will be overwritten."""
        pieces = []
        for prefix, line in lines:
            if self._unfinished:
                pieces.append(_ERASE_LINE)
            self._unfinished = self.terminal and line.endswith(b"\r")
            pieces += [prefix, line]
        self.writer.write(self._fd, b"".join(pieces))

    def write_or_drop(self, lines: list[tuple[bytes, bytes]]) -> None:
        """The same, but drops them where too much is unwritten already."""
        if self.writer.full:
            self._dropped_bytes += sum(len(prefix) + len(line) for prefix, line in lines)
        else:
            self.tell_dropped()
            self.write_lines(lines)

    def tell_dropped(self) -> None:
        """Says how much was dropped, once there is room for it."""
        if self._dropped_bytes and not self.writer.full:
            text = f"ringrun: {self._dropped_bytes} bytes are missing here: nobody read them\n"
            self._dropped_bytes = 0
            self.write_lines([(b"", text.encode())])

    @property
    def idle(self) -> bool:
        """Whether everything was written, and nothing is left to be told."""
        return self.writer.idle and not self._dropped_bytes

    def abandon(self) -> None:
        """Write nothing more."""
        self.writer.abandon()
        self._dropped_bytes = 0


class Output:
    """Takes what ranks print, and writes it where the user wants it.

    Nothing here waits. What is not written yet is kept up to some MiB; then `on_hold` tells which streams of the ranks
    should be left unread, so that the ranks wait in their writes, and nobody else does.
    """

    def __init__(self, loop: Loop, options: OutputOptions, environ: Mapping[str, str]) -> None:
        """Write to this process's standard output and standard error.

        Args:
            loop: Calls back.
            options: What goes where.
            environ: Read for NO_COLOR and TERM.
        """
        self._options = options
        self._loop = loop
        self._last_words = LastWords()
        new_writer = functools.partial(Writer, loop, self._on_error, self._on_change)
        out = new_writer()
        # On a terminal the lines of both come in the order in which they were printed.
        err = out if _is_same_file(1, 2) else new_writer()
        self._consoles = {Kind.STDOUT: _Console(1, out, environ), Kind.STDERR: _Console(2, err, environ)}
        self._log_writer = new_writer()
        self._held: frozenset[Kind] = frozenset()
        self._hurried = False
        self.lost: str | None = None  # What could not be written, and why.
        self.on_hold: Callable[[frozenset[Kind]], None] = lambda _kinds: None
        self.on_reader_gone: Callable[[], None] = lambda: None
        self._partial: dict[tuple[int, Kind], bytes] = {}
        self._files: dict[tuple[int, Kind], int] = {}
        self._tails: dict[int, bytes] = {}

    def feed(self, rank: int, kind: Kind, data: bytes) -> None:
        """Take a piece of what a rank printed."""
        if kind is Kind.STDERR:
            self._tails[rank] = (self._tails.get(rank, b"") + data)[-_TAIL_BYTES:]
        if (rank, kind) in self._files and not (self._hurried and self._log_writer.full):
            self._log_writer.write(self._files[rank, kind], data)
        if self._options.shows(rank, kind):
            data = self._partial.pop((rank, kind), b"") + data
            lines, rest = _split(data, self._consoles[kind].terminal)
            if rest:
                self._partial[rank, kind] = rest
            self._show(rank, kind, lines)
        self._on_change()

    def begin(self, rank: int) -> None:
        """A new process is this rank: what the one before it said is not its own."""
        self._tails.pop(rank, None)

    def end(self, rank: int) -> None:
        """Write what a rank left unfinished: a last line without an end."""
        for kind in _STREAM_NAMES:
            rest = self._partial.pop((rank, kind), b"")
            if rest:
                self._show(rank, kind, [rest + b"\n"])

    def release(self, *ranks: int) -> None:
        """Show what was held back of ranks: theirs were no last words, or nobody tells of them."""
        for rank in ranks:
            self._write(rank, Kind.STDERR, self._last_words.release(rank))

    def held(self) -> list[tuple[int, bytes]]:
        """By rank, the last words that are held back from the console."""
        return list(self._last_words.all())

    def has_shown(self, rank: int) -> bool:
        """Whether all that a rank wrote to its standard error is on the console."""
        return self._options.shows(rank, Kind.STDERR) and not self._last_words.holds(rank)

    def tail(self, rank: int) -> str:
        """The last 32 KiB that a rank wrote to its standard error."""
        return self._tails.get(rank, b"").decode(errors="replace")

    def say(self, text: str) -> None:
        """Write a message of the launcher itself to standard error."""
        self._consoles[Kind.STDERR].write_lines([(b"", text.encode(errors="replace") + b"\n")])

    @property
    def idle(self) -> bool:
        """Whether everything was written."""
        return self._log_writer.idle and all(console.idle for console in self._consoles.values())

    def abandon_soon(self) -> None:
        """Give readers one second more, and write nothing after it."""
        self._loop.call_later(_UNREAD_S, self.abandon)

    def write_out(self, code: Callable[[], int], ended_well: str) -> int:
        """Wait until everything is written, at the end of this process.

        Args:
            code: Its exit code, as far as that is known: a signal may come while this waits.
            ended_well: What to say of a job whose exit code would be 0, though something that was printed is lost.

        Returns:
            The exit code; not 0 where something is lost.
        """
        self._await_idle()
        if code() != 0 or self.lost is None:
            return code()
        self.say(f"{ended_well}; the exit code is {_EXIT_LOST} as {self.lost}")
        self._await_idle()
        return code() or _EXIT_LOST

    def _await_idle(self) -> None:
        while not self.idle:
            self._loop.run_once()

    def hurry(self) -> None:
        """The ranks are to end: they wait for no reader any more, and what is too much is dropped with a count."""
        self._hurried = True
        self._on_change()

    def abandon(self) -> None:
        """Write nothing more, nowhere."""
        self.abandon_console()
        self._log_writer.abandon()

    def abandon_console(self) -> None:
        """Write nothing more but log files."""
        for console in self._consoles.values():
            console.abandon()

    def _show(self, rank: int, kind: Kind, lines: list[bytes]) -> None:
        if kind is Kind.STDERR:
            held = self._last_words.holds(rank)
            lines = self._last_words.take(rank, lines)
            if not held and self._last_words.holds(rank):
                seconds = self._options.last_words_s
                self._loop.call_later(seconds, lambda: None if self._hurried else self.release(rank))
        self._write(rank, kind, lines)

    def _write(self, rank: int, kind: Kind, lines: list[bytes]) -> None:
        console = self._consoles[kind]
        if lines:
            prefix = self._prefix(rank, kind, console.coloured)
            write = console.write_or_drop if self._hurried else console.write_lines
            write([(prefix, line) for line in lines])

    def _prefix(self, rank: int, kind: Kind, coloured: bool) -> bytes:
        text = f"[{rank}]<{_STREAM_NAMES[kind]}>"
        if coloured:
            text = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m"
        if self._options.timestamps:
            now = time.time()
            clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
            text = f"{clock}.{int(now * 1000) % 1000:03d} {text}"
        return text.encode() + b" "

    def _on_change(self) -> None:
        for console in self._consoles.values():
            console.tell_dropped()
        congested = {kind for kind, console in self._consoles.items() if console.writer.congested}
        if self._log_writer.congested:
            congested.update(_STREAM_NAMES)
        held = frozenset[Kind]() if self._hurried else frozenset(congested)
        if held != self._held:
            self._held = held
            self.on_hold(held)

    def _on_error(self, fd: int, number: int) -> None:
        """As `tee` does: what cannot be written is said, the rest goes on, and the exit code tells."""
        if fd in (1, 2) and number == errno.EPIPE:  # `ringrun ... | head`: a reader that has gone wants no more.
            self.on_reader_gone()
            return
        rank = next((rank for (rank, _), log in self._files.items() if log == fd), None)
        name = _CONSOLE_NAMES[fd] if rank is None else f"rank {rank}'s log file"
        self.lost = self.lost or f"{name} could not be written: {os.strerror(number)}"
        self.say(f"ringrun: {name} ends here: {os.strerror(number)}")

    def create_logs(self, ranks: Iterable[int]) -> None:
        """Make the log files of all ranks, so that a directory that cannot be written is found at once.

        Raises:
            OSError: A file cannot be made.
        """
        if self._options.log_dir is not None:
            for rank in (rank for rank in ranks if (rank, Kind.STDOUT) not in self._files):
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


def _is_same_file(first: int, second: int) -> bool:
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:  # One of them is closed.
        return False
