"""`ringcore stacks`: where the Python threads of each rank of a running job stand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ringcore.commands import _jobs


def main(argv: Sequence[str] | None = None) -> int:
    """Ask a job where it stands.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 1 where there is no such job.
    """
    parser = argparse.ArgumentParser(
        prog="ringcore stacks", description="Tells where each rank's Python threads stand."
    )
    parser.add_argument("job", nargs="?", metavar="JOB", help=f"{_jobs.JOB_HELP} (the only one)")
    found = parser.parse_args(argv)
    try:
        answer = _jobs.ask(found.job, "stacks")
    except _jobs.JobError as error:
        print(f"ringcore stacks: {error}", file=sys.stderr)
        return 1
    for rank, stacks in sorted(answer.ranks.items()):
        said = stacks.get("stacks") or stacks.get("silent", "")
        print(f"rank {rank}:\n" + "".join(f"  {line}\n" for line in said.splitlines()))
    print("\n".join(answer.notes), end="\n" if answer.notes else "")
    return 0
