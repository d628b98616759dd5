"""The notebook of the examples, with a Spark of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import sparks
from support.notebooks import run_notebook


@pytest.mark.long
def test_the_notebook_trains_and_shows_what_ranks_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", sparks.ENVIRON["PYTHONPATH"])
    there = "from support import sparks\nsparks.start()" if sparks.HAS_EXECUTORS else ""
    _, function, estimator, _ = run_notebook("spark/train.ipynb", tmp_path, before=there)
    one, other = json.loads(function["value"])
    assert one == other and all(abs(weight - 1) < 0.1 for weight in one[0])
    for rank in range(2):
        assert re.search(rf"^\[{rank}\]<stdout> progress: step 60 of 60: loss", function["text"], re.MULTILINE)
    assert "[0]<stdout> progress: epoch 20 of 20: loss" in estimator["text"]
    (error,) = re.findall(r"largest error (\S+)", estimator["text"])
    assert float(error) < 0.5
