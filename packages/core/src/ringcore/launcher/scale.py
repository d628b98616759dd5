"""The command `ringcore scale`: more ranks or fewer for a job that runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ringcore.launcher import _control


def main(argv: Sequence[str] | None = None) -> int:
    """Let a job have more ranks or fewer.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0, or 1 if the job refuses.
    """
    parser = argparse.ArgumentParser(
        prog="ringcore scale", description="Lets an elastic job, whose ringrun runs here, have more ranks or fewer."
    )
    parser.add_argument("job", help=_control.JOB_HELP)
    parser.add_argument("number", help="+2: two more; -1: one less, at its next commit; =6: six")
    found = parser.parse_args(argv)
    return _control.order(found.job, {"scale": found.number})
