"""RingStrategy(elastic=True): ranks that are left go on in the same loop, and each sample comes once an epoch."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest
import torch
from ringcore import InvalidArgument
from ringcore_lightning import elastic
from support.processes import Ringrun

_TRAIN = """
import json, os, signal, sys
import torch
from lightning import pytorch as pl
from ringcore_lightning import RingStrategy

victim, moment, SAMPLES = int(sys.argv[1]), sys.argv[2], 37
place, life = int(os.environ["RANK"]), len([name for name in os.listdir() if name.startswith("life.")])
open(f"life.{os.getpid()}", "w").close()
torch.manual_seed(0)

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
        self.register_buffer("batches", torch.zeros(100_000))  # rank 0's, for all
        self.done = []

    def forward(self, batch):
        return self.net(batch[:, None].expand(-1, 3) / SAMPLES)

    def dies_at(self, number, now):
        if (place, self.current_epoch, number, moment) == (victim, 1, 1, now):
            os.kill(os.getpid(), signal.SIGKILL)

    def training_step(self, batch, number):
        self.batches += 1
        loss = self(batch).square().mean()
        self.log("loss", loss, sync_dist=True)
        self.dies_at(number, "forward")
        return loss

    def on_after_backward(self):
        self.dies_at(self.trainer.fit_loop.batch_idx, "backward")

    def on_train_batch_end(self, _outputs, batch, number):
        self.tell("samples", [self.current_epoch, batch.long().tolist()])

    def validation_step(self, batch, _):
        self.log("validation", self(batch).mean(), sync_dist=True)

    def on_validation_end(self):
        self.tell("validated", self.current_epoch)

    def tell(self, what, value):
        with open(f"{what}.{place}", "a") as file:
            file.write(json.dumps(value) + "\\n")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

model = Model()
data = torch.arange(float(SAMPLES))
checkpoints = pl.callbacks.ModelCheckpoint(dirpath="checkpoints", save_last=True)
trainer = pl.Trainer(strategy=RingStrategy(elastic=True), accelerator="cpu", max_epochs=3, callbacks=[checkpoints],
                     num_sanity_val_steps=0, enable_progress_bar=False, enable_model_summary=False, logger=False)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=3, shuffle=True),
            torch.utils.data.DataLoader(data, batch_size=5))
weights = [value.flatten()[:99].tolist() for value in model.state_dict().values()]
told = {"rank": trainer.global_rank, "size": trainer.world_size, "steps": trainer.global_step, "weights": weights}
model.tell("end", {**told, "loss": float(trainer.callback_metrics["loss"])})
"""


def _told(directory: Path, what: str, place: int) -> list:
    path = directory / f"{what}.{place}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(("victim", "moment"), [(0, "forward"), pytest.param(2, "backward", marks=pytest.mark.long)])
def test_who_is_left_goes_on_and_each_sample_comes_once_an_epoch(tmp_path: Path, victim: int, moment: str) -> None:
    (tmp_path / "train.py").write_text(_TRAIN)
    ringrun = Ringrun(tmp_path)
    ringrun.environ |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    words = ["-np", "3", "--min-np", "2", "--start-timeout", "300", "--blacklist-cooldown-range", "600", "600"]
    done = ringrun(*words, "train.py", str(victim), moment)
    assert done.returncode == 0, done.stderr
    left = [place for place in range(3) if place != victim]
    ends = [_told(tmp_path, "end", place)[0] for place in left]
    assert [(end.pop("rank"), end["size"]) for end in ends] == [(0, 2), (1, 2)]
    assert ends[0] == ends[1], "the weights are the same, to the bit"
    for epoch in range(3):
        told = [line for place in range(3) for line in _told(tmp_path, "samples", place)]
        samples = collections.Counter(sample for number, batch in told if number == epoch for sample in batch)
        assert samples == dict.fromkeys(range(37), 1), epoch
    # 37 samples: five steps of nine, or seven of six; two steps of nine and four of six that come after the loss.
    assert [_told(tmp_path, "validated", place) for place in left] == [[0, 1, 2]] * 2
    assert not _told(tmp_path, "end", victim)
    assert (tmp_path / "checkpoints" / "last.ckpt").exists(), "written by whoever is rank 0"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(
            "batch_size=3, shuffle=True, num_workers=1", "num_workers=1 processes, which read ahead",
            marks=pytest.mark.long,
        ),
        pytest.param("batch_size=3, sampler=[1, 2, 3]", "deals out the samples itself", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_what_cannot_be_dealt_out_anew_is_refused(tmp_path: Path, change: str, says: str) -> None:
    (tmp_path / "train.py").write_text(_TRAIN.replace("batch_size=3, shuffle=True", change))
    done = Ringrun(tmp_path)("-np", "1", "--min-np", "1", "--reset-limit", "0", "train.py", "-1", "")
    assert done.returncode != 0
    assert says in done.stderr, done.stderr


def test_a_job_that_ends_with_its_first_lost_rank_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_TRAIN)
    done = Ringrun(tmp_path)("-np", "1", "train.py", "-1", "")
    assert done.returncode != 0
    assert "start it by ringrun --min-np N" in done.stderr, done.stderr


def test_a_reduction_that_is_none_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidArgument, match=r"'bxor'.*sum, mean, avg, min, max"):
        elastic.reduce(torch.ones(2), torch.distributed.ReduceOp.BXOR)
