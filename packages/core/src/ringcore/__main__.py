# Copyright 2026 The ringcore authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m ringcore` is the command `ringcore`."""

import sys

from ringcore.cli import main

sys.exit(main())
