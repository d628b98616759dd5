"""The notebook of the examples, with a Dask of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.notebooks import run_notebook


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_trains(tmp_path: Path) -> None:
    _, function, _ = run_notebook("dask/train.ipynb", tmp_path)
    one, other = json.loads(function["value"])
    assert one == other and all(abs(weight - 1) < 0.01 for weight in one)
    assert sorted(function["text"].splitlines()) == ["[0]<stdout> done", "[1]<stdout> done"]
