"""Ray Train with ringcore's backend: groups of workers that Ray starts again from a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray.train
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ringcore_ray import RingConfig, RingTrainer

# Ray's own.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def train(config: dict[str, Any]) -> None:
    """The first time a rank dies, the second time it raises, the third time all goes well."""
    import ringcore as ring

    ring.init()
    place = ray.train.get_context()
    assert (ring.rank(), ring.size()) == (place.get_world_rank(), place.get_world_size())
    checkpoint = ray.train.get_checkpoint()
    step = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            step = json.loads(Path(folder, "state.json").read_text())["step"] + 1
    while step < 3:
        try:
            total = float(ring.allreduce(np.full(8, config["value"] + ring.rank()), op=ring.Sum)[0])
        except ring.PeerLostError as error:
            Path(config["folder"], f"lost.{step}").write_text(str(error))
            raise
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"step": step, "env": os.environ.get("SOME_NAME")}))
            kept = Checkpoint.from_directory(folder) if ring.rank() == 0 else None
            ray.train.report({"total": total, "step": step}, checkpoint=kept)
        if step == 1 and ring.rank() == 1:
            # Once a kind: what was reported last may not have been kept when a worker dies.
            died, raised = Path(config["folder"], "died"), Path(config["folder"], "raised")
            if not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if not raised.exists():
                raised.touch()
                raise LookupError("no such row")
        step += 1


@pytest.mark.parametrize("workers", [2, (1, 2)])
def test_workers_are_ranks_and_a_group_that_ray_restarts_is_another_job(
    tmp_path: Path, workers: int | tuple[int, int]
) -> None:
    trainer = RingTrainer(
        train,
        train_loop_config={"value": 1.0, "folder": str(tmp_path)},
        backend_config=RingConfig(env={"SOME_NAME": "some value"}),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=str(tmp_path),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            failure_config=FailureConfig(max_failures=2),
        ),
    )
    result = trainer.fit()
    assert "it raised LookupError: no such row" in (tmp_path / "lost.2").read_text()
    ((checkpoint, metrics),) = result.best_checkpoints
    assert metrics["total"] == 3.0
    with checkpoint.as_directory() as folder:
        assert json.loads(Path(folder, "state.json").read_text()) == {"step": 2, "env": "some value"}
