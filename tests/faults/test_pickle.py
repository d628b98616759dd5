"""Objects between ranks of which some may not pickle: nothing that came is unpickled there, and nobody waits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.rank import caught


def exchange_objects(refusing: list[int]) -> dict:
    class Trap:
        """Unpickling it is seen."""

        def __reduce__(self) -> tuple:
            return os.mkdir, ("unpickled." + os.environ["RANK"] + "." + os.urandom(8).hex(),)

    me = int(os.environ["RANK"])
    os.environ["RINGCORE_ALLOW_PICKLE"] = "0" if me in refusing else "1"
    Path(f"home.{me}").mkdir()
    os.chdir(f"home.{me}")
    ringcore.init()
    errors = [caught(ringcore.broadcast_object, Trap(), 0), caught(ringcore.allgather_object, Trap())]
    unpickled = len(os.listdir("."))
    after = float(ringcore.allreduce(np.ones(3, np.float32), op=ringcore.Sum)[0])
    os.chdir("..")
    return {"errors": errors, "unpickled": unpickled, "after": after}


@pytest.mark.parametrize(
    "refusing", [pytest.param([0], marks=pytest.mark.long), [1], pytest.param([2], marks=pytest.mark.long), [0, 1, 2]]
)
def test_a_rank_that_may_not_pickle_unpickles_nothing_and_holds_up_nobody(tmp_path: Path, refusing: list[int]) -> None:
    results = ranks.run(exchange_objects, 3, tmp_path, refusing, env={"RINGCORE_TIMEOUT_S": "20"})
    for rank, result in enumerate(results):
        broadcast, gathered = result["errors"]
        refused = rank in refusing or 0 in refusing
        assert broadcast["type"] == ("InvalidArgument" if refused else None), (rank, broadcast)
        assert gathered["type"] == "InvalidArgument", (rank, gathered)
        culprit = rank if rank in refusing else refusing[0]
        assert f"RINGCORE_ALLOW_PICKLE is off on rank {culprit}" in gathered["message"]
        if rank in refusing:
            assert result["unpickled"] == 0
        assert result["after"] == 3.0


def exchange_plain_objects(refusing: list[int]) -> dict:
    me = int(os.environ["RANK"])
    os.environ["RINGCORE_ALLOW_PICKLE"] = "0" if me in refusing else "1"
    ringcore.init()
    shape = [np.arange(6, dtype=np.int16).reshape(2, 3), b"raw", None, 1.5]
    told = ringcore.broadcast_object({"step": 3, (0, "shape"): shape} if me == 0 else None, 0)
    array, *others = told[0, "shape"]
    right = told["step"] == 3 and others == shape[1:] and bool((array == shape[0]).all()) and array.dtype == np.int16
    return {"right": right, "gathered": caught(ringcore.allgather_object, {"rank": me, "numbers": np.ones(2)})}


@pytest.mark.parametrize("refusing", [[0], [0, 1]])
def test_numbers_text_and_arrays_need_no_pickle(tmp_path: Path, refusing: list[int]) -> None:
    for rank, result in enumerate(ranks.run(exchange_plain_objects, 2, tmp_path, refusing)):
        assert result["right"]
        # What a rank has pickled that may, one that may not does not read.
        assert (result["gathered"]["type"] is None) == (refusing == [0, 1] or rank == 1), result
