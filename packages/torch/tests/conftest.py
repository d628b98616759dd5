"""Fixtures of the tests of the PyTorch adapter."""

from __future__ import annotations

from support.starts import results  # noqa: F401  (a fixture)
