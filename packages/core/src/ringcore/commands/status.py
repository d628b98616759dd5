"""`ringcore status`: what each rank of a running job does, and waits for."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringcore.commands import _jobs


def main(argv: Sequence[str] | None = None) -> int:
    """Ask a job how it goes.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 1 where there is no such job.
    """
    parser = argparse.ArgumentParser(prog="ringcore status", description="Tells what the ranks of a running job do.")
    parser.add_argument("job", nargs="?", metavar="JOB", help=f"{_jobs.JOB_HELP} (the only one)")
    parser.add_argument("--json", action="store_true", help="all that the ranks have said, as JSON")
    found = parser.parse_args(argv)
    try:
        answer = _jobs.ask(found.job, "status")
    except _jobs.JobError as error:
        print(f"ringcore status: {error}", file=sys.stderr)
        return 1
    if found.json:
        ranks = {str(rank): what for rank, what in sorted(answer.ranks.items())}
        print(json.dumps({**answer.about, "ranks": ranks, "notes": answer.notes, "last": last_to_come(answer.ranks)}))
        return 0
    print("\n".join(report(answer)))
    return 0


def report(answer: _jobs.Answer) -> Iterator[str]:
    """What there is to say, line by line."""
    command = " ".join(answer.about.get("command", []))
    yield f"{answer.about['job']}: {counted(answer.about['size'], 'rank')}{f', {command}' if command else ''}"
    for rank, what in sorted(answer.ranks.items()):
        if "silent" in what:
            yield f"rank {rank}: {what['silent']}"
            continue
        steps = f"{counted(what['steps'], 'step')}, " if what["steps"] else ""
        done = f"{steps}{counted(what['operations'], 'operation')}"
        number = what.get("number", rank)
        known = f", [{number}] in what it prints and for `ringcore drain`," if number != rank else ""
        where = f"rank {rank}{known} on {what['host']} (pid {what['pid']})"
        yield f"{where}: {done} in {what['seconds']:.0f} s; {waits_of(what)}"
    last = last_to_come(answer.ranks)
    if last is not None:
        yield f"the last to come is rank {last}: most others wait for it"
    yield from answer.notes


def counted(count: int, word: str) -> str:
    """So many of them, in words."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def waits_of(what: Mapping[str, Any]) -> str:
    """What a rank waits for longest, in words."""
    if not what["waits"]:
        return "waits for nothing"
    wait = max(what["waits"], key=lambda each: each["seconds"])
    more = f", and {len(what['waits']) - 1} more" if len(what["waits"]) > 1 else ""
    if wait["released"]:
        return f"{wait['operation']} is under way for {wait['seconds']:.1f} s{more}"
    missing = ", ".join(map(str, wait["missing"]))
    whom = f" for rank{'s' if len(wait['missing']) > 1 else ''} {missing}" if missing else ""
    return f"waits{whom} in {wait['operation']}, for {wait['seconds']:.1f} s{more}"


def last_to_come(ranks: Mapping[int, Any]) -> int | None:
    """The rank that is missing in what most others wait for."""
    missing = Counter(
        late for what in ranks.values() for late in {late for wait in what.get("waits", ()) for late in wait["missing"]}
    )
    return missing.most_common(1)[0][0] if missing else None
