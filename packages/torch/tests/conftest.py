"""Fixtures of the tests of the PyTorch adapter."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

from support.starts import results  # noqa: F401  (a fixture)
