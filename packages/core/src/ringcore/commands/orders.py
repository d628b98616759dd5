"""`ringcore scale` and `ringcore drain`: a running elastic job gets more ranks or fewer, or lets one go."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ringcore.commands import _jobs


def scale(argv: Sequence[str]) -> int:
    """Let a job have more ranks or fewer; 0, or 1 if it refuses."""
    parser = argparse.ArgumentParser(
        prog="ringcore scale", description="Lets an elastic job, whose ringrun runs here, have more ranks or fewer."
    )
    parser.add_argument("job", metavar="JOB", help=_jobs.JOB_HELP)
    parser.add_argument("number", help="+2: two more; -1: one less, at its next commit; =6: six")
    found = parser.parse_args(argv)
    return _give("scale", found.job, found.number)


def drain(argv: Sequence[str]) -> int:
    """Let a rank leave its job; 0, or 1 if it refuses."""
    parser = argparse.ArgumentParser(
        prog="ringcore drain", description="Lets a rank leave an elastic job at its next commit; nobody comes for it."
    )
    parser.add_argument("job", metavar="JOB", help=_jobs.JOB_HELP)
    parser.add_argument("rank", type=int, help="the number before what it prints")
    found = parser.parse_args(argv)
    return _give("drain", found.job, str(found.rank))


def _give(order: str, job: str, wanted: str) -> int:
    try:
        print(_jobs.order(job, f"{order} {wanted}"))
    except _jobs.JobError as error:
        print(f"ringcore {order}: {error}", file=sys.stderr)
        return 1
    return 0
