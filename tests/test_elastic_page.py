"""The options that the page about elastic jobs names exist; tests/docs runs its script and its commands."""

from __future__ import annotations

import re
from pathlib import Path

from ringcore.launcher import _options

PAGE = (Path(__file__).parent.parent / "docs" / "elastic.md").read_text()


def test_its_options_exist() -> None:
    named = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert {"--min-np", "--host-discovery-script", "--reset-limit"} <= named <= {*_options.known_options(), "--nnodes"}
