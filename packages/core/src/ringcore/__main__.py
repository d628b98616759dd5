"""`python -m ringcore` is the command `ringcore`."""

import sys

from ringcore.commands.cli import main

sys.exit(main())
