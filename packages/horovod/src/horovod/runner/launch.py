"""The command `horovodrun`: ringrun under another name."""

from __future__ import annotations

import sys

from ringcore.launcher.main import main

from horovod.common.basics import translate_environment


def run_commandline() -> None:
    """Start a job, and exit as it does. `--check-build` tells what is usable here."""
    if {"--check-build", "-cb"} & set(sys.argv[1:2]):
        from ringcore.commands.doctor import main as doctor

        sys.exit(doctor([]))
    translate_environment()
    sys.exit(main())
