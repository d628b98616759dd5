"""What holds for all tests."""

from __future__ import annotations

import signal

# Programs respect nohup, and that a shell's background job is not interrupted; what whoever runs the tests has of
# either is not meant for those that tests start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
