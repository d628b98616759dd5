"""`ringcore doctor --security`: what a running job has open, and what is wrong with it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

from ringcore.commands import _jobs, _openings
from ringcore.commands.status import counted
from ringcore.environment import watching


def look(job: str | None) -> int:
    """Print what the processes of a job on this host have open.

    Args:
        job: Its name, or how it begins; None: the only one.

    Returns:
        0 when all is well, 1 where something is wrong or there is no such job.
    """
    try:
        answer = _jobs.ask(job, "status")
    except _jobs.JobError as error:
        print(f"ringcore doctor --security: {error}", file=sys.stderr)
        return 1
    problems: list[str] = []
    print(f"{answer.about['job']}: {counted(answer.about['size'], 'rank')}")
    for title, pid in _processes(answer):
        print(f"\n{title}")
        try:
            process = _openings.look_at(pid, watching.folder_of(answer.about["job"]))
        except OSError as error:
            print(f"  cannot be looked at: {error.strerror}")
            continue
        for opening in process.openings:
            print(f"  {opening.what}")
        found = [*filter(None, (opening.problem for opening in process.openings)), *_settings(process)]
        problems += [f"{title}: {problem}" for problem in found]
    for note in answer.notes:
        print(f"\n{note}")
    print("\nproblems")
    print("\n".join(f"  - {problem}" for problem in problems) or "  none")
    return 1 if problems else 0


def _processes(answer: _jobs.Answer) -> Iterator[tuple[str, int]]:
    here = socket.gethostname()
    if "launcher" in answer.about:
        yield f"ringrun (pid {answer.about['launcher']})", answer.about["launcher"]
    for rank, what in sorted(answer.ranks.items()):
        if what.get("host") == here:
            yield f"rank {rank} (pid {what['pid']})", what["pid"]
        elif "host" in what:
            answer.notes.append(f"rank {rank} runs on {what['host']}: ask there, too")


def _settings(process: _openings.Process) -> Iterator[str]:
    if process.reaches_out and process.environ.get("RINGCORE_ENCRYPTION") == "off":
        yield "what it sends to other hosts is not encrypted: start the job without --encryption off"
