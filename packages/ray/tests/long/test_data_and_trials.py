"""Trials of Tune that run side by side, with shards of Ray Data, and what one that fails raises."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray.data
import ray.train
from ray import tune
from ray.train import ScalingConfig
from ray.train.v2.api.exceptions import WorkerGroupError
from ringcore_ray import RingTrainer

# Ray's own.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def train(config: dict[str, Any]) -> None:
    import ringcore as ring

    ring.init()
    folder, own = Path(config["folder"]), config["trial"]
    ids = [int(row["id"]) for row in ray.train.get_dataset_shard("train").iter_rows()]
    used = np.zeros(config["rows"])
    np.add.at(used, ids, 1)
    counts = ring.allreduce(used, op=ring.Sum)
    # Both trials are here at the same time.
    (folder / f"{own}.{ring.rank()}").touch()
    deadline = time.monotonic() + 300
    while len(list(folder.iterdir())) < 4:
        assert time.monotonic() < deadline, "the other trial does not run"
        time.sleep(0.01)
    if config["trial"] == 1 and ring.rank() == 1:
        raise LookupError("no such row")
    total = float(ring.allreduce(np.full(4, float(own + 1)), op=ring.Sum)[0])
    with (folder.parent / f"result.{own}.{ring.rank()}").open("w") as file:
        file.write(f"{total} {counts.min()} {counts.max()} {len(ids)}")


def trial(config: dict[str, Any]) -> None:
    trainer = RingTrainer(
        train,
        train_loop_config=config,
        # So that a raylet has a whole CPU left for the tasks of Ray Data.
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.25}),
        datasets={"train": ray.data.range(config["rows"])},
        run_config=ray.train.RunConfig(storage_path=config["storage"], name=f"trial-{config['trial']}"),
    )
    failures = {}
    try:
        trainer.fit()
    except WorkerGroupError as error:
        failures = {rank: f"{type(what).__name__}: {what}" for rank, what in error.worker_failures.items()}
    tune.report({"failures": failures, "trial": config["trial"]})


def test_trials_side_by_side_do_not_find_each_other_and_share_out_their_data(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    common = {"rows": 100, "folder": str(marks), "storage": str(tmp_path / "storage")}
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 0.05}),
        param_space={**common, "trial": tune.grid_search([0, 1])},
        run_config=tune.RunConfig(storage_path=str(tmp_path / "tune"), verbose=0),
    )
    results = {result.metrics["trial"]: result.metrics["failures"] for result in tuner.fit()}
    assert results[0] == {}
    for rank in range(2):
        total, least, most, _ = (tmp_path / f"result.0.{rank}").read_text().split()
        assert (total, least, most) == ("2.0", "1.0", "1.0"), "each row once, and only this trial's ranks"
    # Ray need not have heard of both when it ends them.
    assert results[1] and all("LookupError: no such row" in text for text in results[1].values())
