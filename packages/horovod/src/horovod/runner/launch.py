"""The command `horovodrun`: ringrun under another name."""

from __future__ import annotations

import sys

from ringcore.commands import cli

from horovod.common.basics import translate_environment


def run_commandline() -> None:
    """Start a job, and exit as it does. `--check-build` tells what is usable here."""
    if {"--check-build", "-cb"} & set(sys.argv[1:2]):
        sys.exit(cli.main(["doctor"]))
    translate_environment()
    sys.exit(cli.main(["run", *sys.argv[1:]]))
