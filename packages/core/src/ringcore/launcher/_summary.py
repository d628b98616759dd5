"""Says which rank failed first, and why, and whether the others did for the same reason: in fifteen lines."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import time
from collections.abc import Sequence

from ringcore.launcher import _cut
from ringcore.launcher._job import RankExit

LIMIT_LINES = 15
_TRACEBACK = "Traceback (most recent call last):"
_MESSAGE_LINES = 3
# Of the ranks that failed besides: so many reasons are told, each cut to so many characters, and so many gaps.
_OTHERS = 3
_WORD_CHARACTERS = 240
_RUNS = 8
_SAME = "the same"
# The line of a traceback that names the exception.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(:|$)")
# What torch.distributed's exception hook puts before each line.
_TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A rank that ended badly, in the order in which they did."""

    rank: int
    how: RankExit
    tail: str
    by_launcher: bool  # It was told to end before it did.
    shown: bool = False  # What it printed is on the console already.

    @property
    def exit_code(self) -> int:
        """As a shell would tell it: 128 + n for signal n."""
        if self.by_launcher and self.how.code < 0 and self.has_traceback:
            return 1  # It had failed by itself, and was only slow to end.
        return exit_code(self.how.code)

    @property
    def has_traceback(self) -> bool:
        """Whether the rank printed an exception."""
        return bool(traceback_of(self.tail))

    @property
    def is_told(self) -> bool:
        """Whether the console shows its traceback already: it took its time to end, and might have gone on."""
        word = last_word(traceback_of(self.tail))
        return self.shown and bool(word) and word == last_word(_reason(self))

    @property
    def is_consequence(self) -> bool:
        """Whether the rank failed because it lost another: its own traceback explains nothing."""
        return self.how.lost_rank is not None


def exit_code(code: int) -> int:
    """Turn subprocess's code into a shell's: -9 is 137."""
    return code if code >= 0 else 128 - code


def find_cause(failures: Sequence[Failure]) -> Failure:
    """Pick the rank to blame: the first that failed by itself, rather than because of another.

    A rank that fails may be overtaken by those that it lets down: it still runs its exit handlers when they have ended.
    Then its traceback or its exit code tells, though the launcher told it to end.
    """
    own = [f for f in failures if not f.by_launcher]
    causes = [f for f in own if not f.is_consequence]
    overtaken = [f for f in failures if f.by_launcher and not f.is_consequence and (f.how.code > 0 or f.has_traceback)]
    return [*causes, *overtaken, *own, *failures][0]


def traceback_of(tail: str) -> list[str]:
    """The last traceback in what a rank printed, ending with its exception; empty if there is none."""
    lines = _TORCH_PREFIX.sub("", tail).splitlines()
    starts = [i for i, line in enumerate(lines) if line.endswith(_TRACEBACK)]
    if not starts:
        return []
    block = lines[starts[-1] :]
    for index, line in enumerate(block[1:], 1):
        if line and not line[0].isspace():
            message = block[index : index + _MESSAGE_LINES]
            end = next((i for i, text in enumerate(message) if not text.strip()), len(message))
            return block[: index + end]
    return block


@dataclasses.dataclass
class Summary:
    """What is said of a job that failed.

    Attributes:
        cause: The failure to blame.
        failures: All of them.
        size: Number of ranks of the job.
        host: Where the rank to blame ran.
        seconds: How long after the start it ended.
        log: File with all that it, or all of them, printed to standard error.
    """

    cause: Failure
    failures: Sequence[Failure]
    size: int
    host: str
    seconds: float
    log: str | None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out of what the ranks have said, so that no file has to have it all."""
        is_cut = not self.cause.is_told and _cut.is_cut(_reason(self.cause), self._room)
        return not is_cut and all(same for same, *_ in self._others())

    @property
    def _room(self) -> int:
        return LIMIT_LINES - 1 - (self.log is not None) - self.cause.is_told - len(self._lines_of_others())

    def lines(self) -> list[str]:
        """At most fifteen lines, without ends; the last ones are the traceback of the rank to blame."""
        ended = "; the other ranks were ended" if self._ended() else ""
        rank = self.cause.rank
        who = f"rank {rank} of {self.size}" if rank < self.size else f"server {rank - self.size} (rank {rank})"
        cause = f"ringrun: {who} on {self.host}"
        lines = [f"{cause} {how(self.cause)} after {self.seconds:.1f} s{ended}", *self._lines_of_others()]
        if self.log is not None:
            lines.append(f"ringrun: all of it is in {self.log}")
        reason = _reason(self.cause)
        if self.cause.is_told:
            lines.append(f"ringrun: its traceback stands above, behind [{rank}]<stderr>")
            reason = _error_of(reason)
        return lines + _cut.shorten(reason, self._room)

    def _ended(self) -> bool:
        by_themselves = {failure.rank for failure in self.failures if not failure.by_launcher}
        return len(by_themselves | {self.cause.rank}) < self.size

    def _others(self) -> list[tuple[bool, str, list[int]]]:
        """Of the ranks that failed besides: whether it was for the same reason, why, and which ranks."""
        told: dict[str, list[int]] = {}
        for failure in self.failures:
            if failure.rank != self.cause.rank and (failure.has_traceback or not failure.by_launcher):
                told.setdefault(self._why(failure), []).append(failure.rank)
        return [(why in (_SAME, self._lost), why, sorted({*ranks})) for why, ranks in told.items()]

    @property
    def _lost(self) -> str:
        return f"lost rank {self.cause.rank}, and failed with it"

    def _why(self, failure: Failure) -> str:
        word = last_word(_reason(failure))
        if word and word == last_word(_reason(self.cause)):
            return _SAME
        return self._lost if failure.how.lost_rank == self.cause.rank else word or how(failure)

    def _lines_of_others(self) -> list[str]:
        others = sorted(self._others(), key=lambda group: (not group[0], group[2]))
        lines = [f"ringrun: {list_ranks(ranks)}: {why}" for _, why, ranks in others[:_OTHERS]]
        rest = sorted(rank for _, _, ranks in others[_OTHERS:] for rank in ranks)
        return [*lines, f"ringrun: {list_ranks(rest)}: something else each"] if rest else lines


def last_word(reason: Sequence[str]) -> str:
    """The exception that a traceback ends with, in one line; empty if there is none."""
    word = " ".join(line.strip() for line in _error_of(reason))
    return word if len(word) <= _WORD_CHARACTERS else word[: _WORD_CHARACTERS - 4] + " ..."


def _error_of(reason: Sequence[str]) -> list[str]:
    """The lines of the exception that a traceback ends with."""
    start = next((index for index in reversed(range(len(reason))) if _EXCEPTION.match(reason[index])), len(reason))
    return [*reason[start:]]


def list_ranks(ranks: Sequence[int]) -> str:
    """Ascending ranks, for people: "rank 3", "ranks 0, 2 to 7"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [text for run in runs for text in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    if len(texts) > _RUNS:
        return f"{len(ranks)} ranks"
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(texts)}"


def how(failure: Failure) -> str:
    """In which way a rank has ended."""
    code = failure.how.code
    if code >= 0 or failure.exit_code == 1:
        return f"failed with exit code {failure.exit_code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (memory exhausted? see dmesg)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _reason(failure: Failure) -> list[str]:
    recorded = _recorded_traceback(failure.how.error_text)
    if recorded:
        return recorded
    found = traceback_of(failure.tail)
    return found or [line for line in failure.tail.splitlines() if line.strip()][-5:]


def _recorded_traceback(text: str | None) -> list[str]:
    """Reads the error file that torch's `record` writes: a message, and perhaps a call stack."""
    if text is None:
        return []
    try:
        message = json.loads(text)["message"]
        if isinstance(message, str):
            return message.splitlines()
        stack = message.get("extraInfo", {}).get("py_callstack")
        return str(stack or message["message"]).strip().splitlines()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [line for line in text.splitlines() if line.strip()][-5:]


def error_file_text(failure: Failure) -> str:
    """The job's own error file, in torch's format, for whoever started the launcher."""
    try:
        content = json.loads(failure.how.error_text or "")
        if isinstance(content["message"], dict):
            content["message"]["errorCode"] = failure.exit_code
        return json.dumps(content)
    except (ValueError, KeyError, TypeError, RecursionError):
        reason = _reason(failure)
        message = {
            "message": f"rank {failure.rank}: {reason[-1]}" if reason else f"rank {failure.rank} {how(failure)}",
            "extraInfo": {"py_callstack": "\n".join(reason), "timestamp": str(int(time.time()))},
            "errorCode": failure.exit_code,
        }
        return json.dumps({"message": message})
