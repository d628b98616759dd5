"""Lets the tests import the benchmarks; the one that trains needs MXNet, and runs in its environment."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "benchmarks")]
collect_ignore = [] if importlib.util.find_spec("mxnet") else ["test_parameter_server.py"]
