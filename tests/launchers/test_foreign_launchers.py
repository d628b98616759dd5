"""Ranks started by other launchers find their place; scripts written for torchrun run under ringrun unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.mpis import installed, one_in_each_run
from support.processes import LIMIT_S, RINGRUN, clean_environ

PLACE = """
import numpy as np, ringcore
ringcore.init()
total = ringcore.allreduce(np.full(3, ringcore.rank() + 1.0), op=ringcore.Sum)[0]
place = [ringcore.rank(), ringcore.size(), ringcore.local_rank(), ringcore.local_size(), total]
print("PLACE " + " ".join(map(str, place)) + "\\n", end="", flush=True)
"""
# These scripts leave by os._exit: with torch 2.13 a process group of gloo sometimes aborts when it is destroyed, under
# torchrun as well.
DDP = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.ones(2, 4)).sum().backward()
print("SAME", model.module.weight.grad.sum().item(), dist.get_world_size(), flush=True)
os._exit(0)
"""
LIGHTNING = """
import os, lightning as L, torch
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        return self.layer(batch[0]).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(16, 4))
trainer = L.Trainer(
    max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
print(f"SAME {trainer.global_step} {trainer.world_size}\\n", end="", flush=True)  # one write: mpirun mixes them
os._exit(0)
"""
ACCELERATE = """
import os, torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(16, 4))
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=4))
steps = 0
for (batch,) in loader:
    optimizer.zero_grad()
    accelerator.backward(model(batch).pow(2).mean())
    optimizer.step()
    steps += 1
print("SAME", steps, accelerator.num_processes, flush=True)
os._exit(0)
"""


def output(command: list[str], **variables: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**clean_environ(), "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


EXPECTED = [f"PLACE {rank} 3 {rank} 3 6.0" for rank in range(3)]


@pytest.mark.parametrize("name", one_in_each_run("Open MPI"))
def test_ranks_of_mpirun_find_their_place(tmp_path: Path, name: str) -> None:
    mpi = installed(name)
    said = output([*mpi.launch(3), sys.executable, script(tmp_path, PLACE)], **mpi.environ())
    assert sorted(line for line in said.splitlines() if "PLACE" in line) == EXPECTED


@pytest.mark.parametrize("name", one_in_each_run("MPICH"))
def test_horovodrun_knows_the_words_of_each_mpirun(tmp_path: Path, name: str) -> None:
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    command = [horovodrun, "--mpi", "-np", "3", sys.executable, script(tmp_path, PLACE)]
    said = output(command, **installed(name).environ())
    assert sorted(line[line.index("PLACE") :] for line in said.splitlines() if "PLACE" in line) == EXPECTED


# That each mpirun tells ranks their places is tested above.
@pytest.mark.parametrize("name", one_in_each_run("MPICH"))
def test_lightning_with_ring_under_mpirun(tmp_path: Path, name: str) -> None:
    """Lightning knows nothing of mpirun without mpi4py."""
    mpi = installed(name)
    text = LIGHTNING.replace('strategy="ddp"', 'strategy="ring"')
    said = output([*mpi.launch(2), sys.executable, script(tmp_path, text)], **mpi.environ())
    assert said.count("SAME 2 2") == 2, said


@pytest.mark.long  # in each run they do so on two hosts
def test_ranks_of_torchrun_find_their_place(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3"]
    said = output([*launcher, script(tmp_path, PLACE)])
    assert sorted(line for line in said.splitlines() if "PLACE" in line) == EXPECTED


def said_of_survivors(command: list[str], **variables: str) -> list[str]:
    """What the ranks of an elastic job say of a launcher that ends all of them."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**clean_environ(), "RINGCORE_ELASTIC": "1", **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in (done.stdout + done.stderr).splitlines() if "RINGCORE_ELASTIC asks" in line]


@pytest.mark.parametrize(
    ("launcher", "says"),
    [
        ([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"], "torchrun ends all ranks"),
        ([*RINGRUN, "-np", "2"], "ringrun without --min-np ends all ranks"),
        ([*RINGRUN, "-np", "2", "--min-np", "1"], None),
    ],
    ids=["torchrun", "ringrun", "elastic"],
)
def test_an_elastic_setting_that_a_launcher_thwarts_is_told_once(
    tmp_path: Path, launcher: list[str], says: str | None
) -> None:
    said = said_of_survivors([*launcher, script(tmp_path, PLACE)])
    assert len(said) == (says is not None), said
    assert says is None or (says in said[0] and "Remedy: start the job by ringrun --min-np N" in said[0])


@pytest.mark.parametrize("name", one_in_each_run("Open MPI"))
def test_an_elastic_setting_under_mpirun_names_its_fault_tolerance(tmp_path: Path, name: str) -> None:
    mpi = installed(name)
    program = [sys.executable, script(tmp_path, PLACE)]
    (said,) = said_of_survivors([*mpi.launch(2), *program], **mpi.environ())
    assert "ends all ranks once one has failed" in said
    if name == "Open MPI":
        assert not said_of_survivors([*mpi.launch(2), "--with-ft", "ulfm", *program], **mpi.environ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DDP, "SAME 8.0 2"),
        pytest.param(LIGHTNING, "SAME 2 2", marks=pytest.mark.long),
        pytest.param(ACCELERATE, "SAME 2 2", marks=pytest.mark.long),
    ],
    ids=["DistributedDataParallel", "Lightning", "Accelerate"],
)
def test_scripts_for_torchrun_run_under_ringrun(tmp_path: Path, text: str, expected: str) -> None:
    said = output([*RINGRUN, "-np", "2", sys.executable, script(tmp_path, text)], HOME=os.environ.get("HOME", "/"))
    assert said.count(expected) == 2, said
