"""What ranks submit does not fit together: the same typed error on every rank, and an engine that is usable after."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.rank import caught

# Case -> what its message must name beside the tensor and the ranks.
CASES = {
    "length": ["[3]", "[4]"],
    "dtype": ["float32", "int32"],
    "operation": ["sum", "max"],
    "kind": ["allreduce", "broadcast"],
    "root": ["root"],
    "splits": ["split"],
    "prescale": ["prescale"],
    "dimensions": ["[2, 2]", "[2, 3]"],
    "membership": ["[0]", "[1]"],
    "group": ["group"],
}
# The errors are there at once; the bound only tells a hang from an error.
HANG_S = 2.0


def mismatches() -> dict:
    ringcore.init()
    me = ringcore.rank()
    ones = np.ones(3, np.float32)
    second = me == 1
    found = {
        "length": caught(ringcore.allreduce, np.ones(4 if second else 3, np.float32), name="t.length"),
        "dtype": caught(ringcore.allreduce, ones.astype(np.int32) if second else ones, op=ringcore.Sum, name="t.dtype"),
        "operation": caught(ringcore.allreduce, ones, op=ringcore.Max if second else ringcore.Sum, name="t.operation"),
        "kind": caught(ringcore.broadcast, ones, 0, name="t.kind")
        if second
        else caught(ringcore.allreduce, ones, name="t.kind"),
        "root": caught(ringcore.broadcast, ones, 1 if second else 0, name="t.root"),
        "splits": caught(
            ringcore.alltoall, np.ones(ringcore.size()), [1] * (ringcore.size() + second), name="t.splits"
        ),
        "prescale": caught(ringcore.allreduce, ones, prescale_factor=2.0 if second else 1.0, name="t.prescale"),
        "dimensions": caught(ringcore.allgather, np.ones((2, 3 if second else 2), np.float32), name="t.dimensions"),
        "membership": caught(ringcore.add_process_set, [1] if second else [0]),
        # Of three ranks two have groups that differ, and the one between them has none.
        "group": caught(ringcore.allgather, ones, name="t.group")
        if second
        else caught(ringcore.grouped_allgather, [ones, ones.astype(np.int32) if me == 2 else ones], name="t.group"),
    }
    found["after"] = [float(x) for x in ringcore.allreduce(ones, op=ringcore.Sum, name="t.after")]
    return found


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_mismatch_is_the_same_error_on_every_rank(tmp_path: Path, size: int, transport: str) -> None:
    results = ranks.run(mismatches, size, tmp_path, env={"RINGCORE_TRANSPORT": transport})
    for case, words in CASES.items():
        errors = [result[case] for result in results]
        assert {error["type"] for error in errors} == {"MismatchError"}, (case, errors)
        assert len({error["message"] for error in errors}) == 1, (case, errors)
        message = errors[0]["message"]
        tensor = [] if case == "membership" else [f"t.{case}"]
        for word in [*tensor, *words, "rank 1", "Remedy"]:
            assert word in message, (case, word, message)
        # With wrong splits rank 1 contradicts its own tensor, and nobody else.
        assert case == "splits" or re.search(r"\branks? (0|2)\b", message), (case, message)
        assert max(error["seconds"] for error in errors) < HANG_S, (case, errors)
    assert [result["after"] for result in results] == [[float(size)] * 3] * size
