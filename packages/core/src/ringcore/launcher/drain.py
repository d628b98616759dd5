"""The command `ringcore drain`: a rank leaves a job that runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ringcore.launcher import _control


def main(argv: Sequence[str] | None = None) -> int:
    """Let a rank leave its job.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0, or 1 if the job refuses.
    """
    parser = argparse.ArgumentParser(
        prog="ringcore drain", description="Lets a rank leave an elastic job at its next commit; nobody comes for it."
    )
    parser.add_argument("job", help=_control.JOB_HELP)
    parser.add_argument("rank", type=int, help="the number before what it prints")
    found = parser.parse_args(argv)
    return _control.order(found.job, {"drain": found.rank})
