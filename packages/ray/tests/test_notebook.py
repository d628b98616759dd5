"""The notebook of the examples, with a Ray of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.notebooks import run_notebook


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_trains_and_goes_on_after_a_failure(tmp_path: Path) -> None:
    _, first, again, _ = run_notebook("ray/train.ipynb", tmp_path)
    assert "rank 1 raised LookupError: no such row" in again["text"]
    weights = [json.loads(cell["value"]) for cell in (first, again)]
    assert all(one == other for one, other in weights)
    errors = [max(abs(weight - 1) for weight in one) for one, _ in weights]
    assert errors[1] < 0.01 and errors[1] < errors[0]
