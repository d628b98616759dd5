"""Says which rank failed first, and why, in a dozen lines."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import time
from collections.abc import Sequence

from ringcore.launcher._job import RankExit

LIMIT_LINES = 12
_TRACEBACK = "Traceback (most recent call last):"
_MESSAGE_LINES = 3
# What torch.distributed's exception hook puts before each line.
_TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A rank that ended badly, in the order in which they did."""

    rank: int
    how: RankExit
    tail: str
    by_launcher: bool  # It was told to end before it did.

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


def describe(failure: Failure, *, size: int, host: str, seconds: float, log: str | None) -> list[str]:
    """Describe a failure in at most twelve lines, which end in the rank's traceback.

    Args:
        failure: What happened.
        size: Number of ranks of the job.
        host: Where the rank ran.
        seconds: How long after the start it ended.
        log: File with all that it printed to standard error.

    Returns:
        Lines without ends.
    """
    lines = [
        f"ringrun: rank {failure.rank} of {size} on {host} {_how(failure)} after {seconds:.1f} s; "
        "the other ranks were ended"
        if size > 1
        else f"ringrun: rank 0 of 1 on {host} {_how(failure)} after {seconds:.1f} s"
    ]
    if log is not None:
        lines.append(f"ringrun: all that it printed is in {log}")
    return lines + _shorten(_reason(failure), LIMIT_LINES - len(lines))


def _how(failure: Failure) -> str:
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
    except (ValueError, KeyError, TypeError, AttributeError):
        return [line for line in text.splitlines() if line.strip()][-5:]


def _shorten(lines: list[str], limit: int) -> list[str]:
    if len(lines) <= limit:
        return lines
    return [lines[0], f"  ... {len(lines) - limit + 2} lines left out", *lines[2 - limit :]]


def error_file_text(failure: Failure) -> str:
    """The job's own error file, in torch's format, for whoever started the launcher."""
    try:
        content = json.loads(failure.how.error_text or "")
        if isinstance(content["message"], dict):
            content["message"]["errorCode"] = failure.exit_code
        return json.dumps(content)
    except (ValueError, KeyError, TypeError):
        reason = _reason(failure)
        message = {
            "message": f"rank {failure.rank}: {reason[-1]}" if reason else f"rank {failure.rank} {_how(failure)}",
            "extraInfo": {"py_callstack": "\n".join(reason), "timestamp": str(int(time.time()))},
            "errorCode": failure.exit_code,
        }
        return json.dumps({"message": message})
