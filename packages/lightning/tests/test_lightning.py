"""The strategies "ring" and "ring_ddp" on two ranks, started in every way, beside Lightning's own "ddp"."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import ringcore_lightning
from ringcore import InvalidArgument
from support.processes import LIMIT_S

SCENARIOS = str(Path(__file__).with_name("scenarios.py"))
ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
RINGRUN = [sys.executable, "-m", "ringcore", "run", "-np", "2", sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]


def start(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        env={**ENVIRON, **variables},
    )  # fmt: skip


def scenarios(strategy: str, folder: Path, *which: str) -> dict[str, Any]:
    done = start([*RINGRUN, SCENARIOS, strategy, str(folder), *which])
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / f"{strategy}.json").read_text())
    return found


# ---- As "ddp" ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scenarios")


@pytest.fixture(scope="module")
def ring(folder: Path) -> dict[str, Any]:
    return scenarios("ring", folder)


@pytest.fixture(scope="module")
def ddp(folder: Path, ring: dict[str, Any]) -> dict[str, Any]:
    """After "ring", whose checkpoint it goes on from."""
    return scenarios("ddp", folder)


NAMES = [
    "sgd", "adamw_with_a_schedule", "gradient_accumulation", "clipping_by_norm", "clipping_by_value", "mixed_bfloat16",
    "true_bfloat16", "double", "batch_norm", "stochastic_weight_averaging", "early_stopping",
    "manual_optimisation_of_two_nets", "checkpoint_and_resume", "the_other_strategys_checkpoint",
    "validate_test_predict",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_ring_takes_the_same_steps_as_ddp(ring: dict[str, Any], ddp: dict[str, Any], name: str) -> None:
    assert ring[name] == ddp[name]
    assert ring[name].get("equal", True), "the ranks ended with different weights"


def test_the_table_is_complete(ring: dict[str, Any]) -> None:
    assert list(ring) == NAMES
    assert ring["checkpoint_and_resume"]["files"] == ["epoch=0.ckpt", "epoch=1.ckpt"]
    assert ring["early_stopping"]["steps"] == 16  # two epochs of ten


@pytest.mark.long  # in each run ddp goes on from ring's
def test_ring_goes_on_from_ddps_checkpoint(folder: Path, ddp: dict[str, Any]) -> None:
    name = "the_other_strategys_checkpoint"
    assert scenarios("ring", folder, "lightning.pytorch", name)[name] == ddp[name]


@pytest.mark.parametrize(
    ("strategy", "package"),
    [("ring", "pytorch_lightning"), pytest.param("ring_ddp", "lightning.pytorch", marks=pytest.mark.long)],
)
def test_the_other_package_and_ddp_over_ring(tmp_path: Path, ddp: dict[str, Any], strategy: str, package: str) -> None:
    # DistributedDataParallel refuses nets that are trained in turn, unless it is told.
    names = [name for name in NAMES if name != "manual_optimisation_of_two_nets"]
    assert scenarios(strategy, tmp_path, package, *names) == {name: ddp[name] for name in names}


# ---- Started in every way ----

SCRIPT = """
import sys, torch
import lightning as L
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 1))
    def training_step(self, batch, index):
        BEFORE
        return self.net(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
L.seed_everything(0)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8)), batch_size=4)
STRATEGY
trainer = L.Trainer(
    max_epochs=1, accelerator="cpu", devices=2, strategy=strategy, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
model = Model()
trainer.fit(model, loader)
total = trainer.strategy.reduce(torch.tensor(float(trainer.global_rank)), reduce_op="sum").item()
kind = type(trainer.strategy).__name__
print(f"FITTED {trainer.global_step} steps as one of {trainer.world_size}, {total}, {kind}\\n", end="")
"""


def script(folder: Path, before: str = "pass", strategy: str = 'strategy = "ring"') -> str:
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("BEFORE", before).replace("STRATEGY", strategy))
    return str(path)


def orphans(path: str) -> list[str]:
    return subprocess.run(["pgrep", "-f", path], capture_output=True, text=True, check=False).stdout.split()


# Those below are started by ringrun.
@pytest.mark.parametrize(
    "launcher",
    [pytest.param([sys.executable], id="plain"), pytest.param(TORCHRUN, id="torchrun", marks=pytest.mark.long)],
)
def test_started(tmp_path: Path, launcher: list[str]) -> None:
    path = script(tmp_path)
    done = start([*launcher, path])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("FITTED 8 steps as one of 2, 1.0, RingStrategy") == 2, done.stdout + done.stderr
    assert not orphans(path)


def test_the_launcher_says_how_many_ranks_there_are(tmp_path: Path) -> None:
    """`Trainer(strategy="ring")` need not repeat `-np 2`: Lightning takes one CPU where nobody says more."""
    path = script(tmp_path)
    Path(path).write_text(Path(path).read_text().replace("devices=2, ", ""))
    done = start([*RINGRUN, path])
    assert done.stdout.count("FITTED 8 steps as one of 2, 1.0, RingStrategy") == 2, done.stdout + done.stderr


@pytest.mark.long
def test_started_in_an_interactive_session(tmp_path: Path) -> None:
    """Ranks are forked there; what they have learned is in the session's model afterwards."""
    path = script(tmp_path)
    text = Path(path).read_text().replace("trainer.fit(", "before = model.net[2].weight.detach().clone()\ntrainer.fit(")
    after = "print('FITTED', trainer.world_size, bool((model.net[2].weight.detach() != before).all()))"
    Path(path).write_text(text.partition("total = ")[0] + after)
    done = start([sys.executable, "-i", path])
    assert "FITTED 2 True" in done.stdout, done.stdout + done.stderr
    assert not orphans(path)


@pytest.mark.long
def test_options_and_unused_parameters(tmp_path: Path) -> None:
    text = """
        import ringcore_torch
        from ringcore_lightning import RingStrategy
        strategy = RingStrategy(compression=ringcore_torch.Compression.bf16, broadcast_buffers=False)
        Model.unused = torch.nn.Linear(3, 3)
    """
    done = start([*RINGRUN, script(tmp_path, strategy=textwrap.dedent(text))])
    assert done.stdout.count("FITTED 8 steps as one of 2, 1.0, RingStrategy") == 2, done.stdout + done.stderr


@pytest.mark.filterwarnings("default")  # those of Lightning's import are not ours
@pytest.mark.parametrize(
    ("name", "precision"), [("RingStrategy", "precision_plugin"), ("FabricRingStrategy", "precision")]
)
def test_an_option_that_does_not_exist_is_explained(name: str, precision: str) -> None:
    with pytest.raises(TypeError) as told:
        getattr(ringcore_lightning, name)(comression=None)
    assert str(told.value) == (
        f"{name} has no option 'comression'; it has accelerator, broadcast_buffers, checkpoint_io, "
        f"cluster_environment, compression, parallel_devices, {precision}, start_method, timeout"
    )


@pytest.mark.filterwarnings("default")
def test_the_wrong_number_of_devices_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning

    for name, value in (("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "2")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    with pytest.raises(InvalidArgument, match="Open MPI has started 2 ranks, the Trainer was told of 3"):
        lightning.Trainer(accelerator="cpu", devices=3, strategy="ring")


@pytest.mark.long
def test_batch_norm_over_all_ranks(tmp_path: Path) -> None:
    """Two ranks with half of the batch each are one rank with all of it."""
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent("""
        import sys, torch
        import lightning as L
        class Model(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(),
                                               torch.nn.Linear(16, 1)).double()
            def training_step(self, batch, index):
                return self.net(batch[0]).square().mean()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)
            def train_dataloader(self):
                deal = torch.utils.data.DistributedSampler(data, ranks, self.global_rank, shuffle=False)
                return torch.utils.data.DataLoader(data, batch_size=8 // ranks, sampler=deal)
        L.seed_everything(0)
        data = torch.utils.data.TensorDataset(torch.randn(64, 8, dtype=torch.float64))
        ranks = int(sys.argv[1])
        trainer = L.Trainer(max_epochs=2, accelerator="cpu", devices=ranks, strategy="ring" if ranks > 1 else "auto",
                            logger=False, enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False, sync_batchnorm=ranks > 1,
                            use_distributed_sampler=False)
        model = Model()
        trainer.fit(model)
        assert type(model.net[1]) is torch.nn.BatchNorm1d
        if trainer.is_global_zero:
            torch.save(model.state_dict(), sys.argv[2])
        """)
    )
    for ranks in ("1", "2"):
        done = start([sys.executable, str(path), ranks, str(tmp_path / ranks)])
        assert done.returncode == 0, done.stdout + done.stderr
    import torch

    one, two = (torch.load(tmp_path / ranks) for ranks in ("1", "2"))
    for name, value in one.items():
        # 16 steps of double precision; rank 1's samples come in another order into the sums.
        assert torch.allclose(two[name].double(), value.double(), rtol=1e-12, atol=1e-14), name


FABRIC = """
import os, sys, torch
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=2, strategy=sys.argv[1])
fabric.launch()
fabric.seed_everything(0)
first, last = torch.nn.Linear(8, 3000), torch.nn.Linear(3000, 1)
net = torch.nn.Sequential(first, torch.nn.BatchNorm1d(3000), torch.nn.ReLU(), last)
model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.01, momentum=0.9))
inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(fabric.global_rank))
for step in range(6):
    with fabric.no_backward_sync(model, enabled=step % 3 == 0):
        fabric.backward(model(inputs).square().mean())
    if step % 3 != 0:
        fabric.clip_gradients(model, optimizer, max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()
fabric.barrier()
state = fabric.all_gather(torch.cat([p.detach().reshape(-1) for p in net.parameters()]))
print("FABRIC", float(state.double().sum()), bool((state[0] == state[1]).all()), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("strategy", ["ring", pytest.param("ring_ddp", marks=pytest.mark.long)])
def test_fabric_takes_the_same_steps_as_ddp(tmp_path: Path, strategy: str) -> None:
    path = tmp_path / "fabric.py"
    path.write_text(FABRIC)
    said = []
    for name in (strategy, "ddp"):
        done = start([*RINGRUN, str(path), name])
        said.append({line.split("FABRIC ")[1] for line in done.stdout.splitlines() if "FABRIC" in line})
        assert len(said[-1]) == 1, done.stdout + done.stderr
    assert said[0] == said[1]
    assert "True" in said[0].pop()


ODD = """
import gc, os, torch, weakref
from lightning.fabric import Fabric
class Odd(torch.nn.Module):
    # Different on each rank at first: weights that `state_dict` leaves out, a buffer that is not saved, a complex one.
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(60, 600, bias=False), torch.nn.Linear(60, 600, bias=False)
        self.register_buffer("left", torch.randn(3), persistent=False)
        self.register_buffer("turns", torch.randn(3, dtype=torch.complex64))
    def state_dict(self, *args, **kwargs):
        return {"a": self.a.weight}
    def forward(self, x, which):
        return getattr(self, which)(x).sum()
fabric = Fabric(accelerator="cpu", devices=2, strategy="STRATEGY")
def main(fabric):
    torch.manual_seed(fabric.global_rank)
    model = fabric.setup(Odd())
    start = [model.b.weight, model.left, torch.view_as_real(model.turns)]
    inputs = torch.full((1, 60), float(fabric.global_rank + 1))
    with fabric.no_backward_sync(model):
        fabric.backward(model(inputs, "a"))
    fabric.backward(model(inputs, "b"))
    grads = [model.a.weight.grad, model.b.weight.grad]
    same = [bool((both[0] == both[1]).all()) for both in map(fabric.all_gather, (t.detach() for t in start + grads))]
    watched, inner = weakref.ref(model), weakref.ref(model._forward_module)
    print(f"ODD {same} {grads[0].unique().tolist()} {grads[1].unique().tolist()}\\n", end="", flush=True)
    del model, start, grads
    gc.collect()
    print(f"FREED {inner() is None}\\n", end="", flush=True)
if __name__ == "__main__":
    fabric.launch(main)
"""


@pytest.mark.parametrize("strategy", ["ring", pytest.param("ring_spawn", marks=pytest.mark.long)])
def test_odd_modules_start_equal_and_all_their_gradients_are_averaged(tmp_path: Path, strategy: str) -> None:
    path = tmp_path / "odd.py"
    path.write_text(ODD.replace("STRATEGY", strategy))
    # What Lightning starts it starts one after the other.
    done = start([*(RINGRUN if strategy == "ring" else [sys.executable]), str(path)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"ODD {[True] * 5} [1.5] [1.5]") == 2, done.stdout + done.stderr
    assert done.stdout.count("FREED True") == 2, done.stdout


# ---- When it goes wrong ----


@pytest.mark.parametrize(
    ("launcher", "rank"),
    [pytest.param([sys.executable], 1, id="plain", marks=pytest.mark.long), pytest.param(RINGRUN, 0, id="ringrun")],
)
def test_an_exception_on_one_rank_ends_the_fit(tmp_path: Path, launcher: list[str], rank: int) -> None:
    before = f'if index == 3 and self.global_rank == {rank}: raise LookupError("no such sample on purpose")'
    path = script(tmp_path, before)
    done = start([*launcher, path])
    assert done.returncode == 1, done.stdout + done.stderr
    # An error of ringcore has what tells more of it behind it.
    last = [line for line in done.stderr.splitlines() if line.strip() and "ringcore explain" not in line][-1]
    assert "no such sample on purpose" in last, done.stderr
    assert not orphans(path)


@pytest.mark.long
def test_ctrl_c_ends_the_fit(tmp_path: Path) -> None:
    """The signal finds rank 0 in its own step, which without it would not end, and rank 1 on its way to the sum."""
    stop = 'print("STEP", index, flush=True); index == 2 and self.global_rank == 0 and __import__("time").sleep(600)'
    path = script(tmp_path, stop)
    process = subprocess.Popen(
        [sys.executable, path], env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "STEP 2" in line:
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    begin = time.monotonic()
    _, said = process.communicate(timeout=300)
    # The bound only tells a hang from an end.
    assert time.monotonic() - begin < 20
    assert process.returncode != 0, said
    assert not orphans(path)


# ---- Registration ----


def test_it_costs_nothing_until_lightning_is_imported() -> None:
    code = (
        "import sys; loaded = [n for n in sys.modules if n.partition('.')[0] in ('torch', 'ringcore', 'lightning')]; "
        "print(loaded, sum('_Finder' in repr(f) for f in sys.meta_path))"
    )
    assert start([sys.executable, "-c", code]).stdout.strip() == "[] 1"


def test_it_can_be_switched_off() -> None:
    code = (
        "import lightning.pytorch.strategies as s; before = 'ring' in s.StrategyRegistry; import ringcore_lightning; "
        "print(before, 'ring' in s.StrategyRegistry)"
    )
    # That it is on otherwise, all scripts above show.
    assert start([sys.executable, "-c", code], RINGCORE_LIGHTNING_REGISTER="0").stdout.strip() == "False True"


@pytest.mark.long
def test_it_may_be_imported_before_lightning_where_it_is_switched_off() -> None:
    later = "import ringcore_lightning, lightning.pytorch.strategies as s; print('ring' in s.StrategyRegistry)"
    assert start([sys.executable, "-c", later], RINGCORE_LIGHTNING_REGISTER="0").stdout.strip() == "True"
