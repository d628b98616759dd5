"""Lets the tests import the benchmarks; the one that trains needs MXNet, and runs in its environment."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
collect_ignore = [] if importlib.util.find_spec("mxnet") else ["test_parameter_server.py"]
