"""The command `horovodrun`: ringrun under another name."""

from __future__ import annotations

import sys

from ringcore.launcher.main import main

from horovod.common.basics import translate_environment


def run_commandline() -> None:
    """Start a job, and exit as it does."""
    translate_environment()
    sys.exit(main())
