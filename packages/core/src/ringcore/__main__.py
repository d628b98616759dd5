"""`python -m ringcore` is the command `ringcore`."""

import sys

from ringcore.cli import main

sys.exit(main())
