"""The strategies on GPUs: where they put what, which can be seen without one; and training, which cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCENARIOS = str(Path(__file__).with_name("scenarios.py"))
ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def run(command: list[str], **variables: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL,
        env={**ENVIRON, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- Without a GPU ----

# As on a host with four GPUs, as far as Lightning asks for them before it makes a tensor there.
PLACES = """
import sys, torch
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 4
torch.cuda.get_device_capability = lambda device=None: (7, 0)
torch.cuda.set_device = lambda device: print("CURRENT", device)
torch.distributed.init_process_group = lambda backend, **options: print(
    "GROUP", backend, options["rank"], options["world_size"], options["device_id"])
import lightning as L
from lightning.fabric import Fabric
kind, strategy = sys.argv[1:]
options = dict(accelerator="gpu", devices=2, strategy=strategy)
made = L.Trainer(**options, logger=False, enable_checkpointing=False).strategy if kind == "Trainer" else Fabric(
    **options).strategy
made.setup_environment()
print("ROOT", made.root_device, made.num_processes)
"""


@pytest.mark.parametrize(("kind", "strategy"), [("Trainer", "ring"), ("Fabric", "ring_ddp")])
def test_each_rank_works_on_the_gpu_of_its_local_rank(kind: str, strategy: str) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    # What makes Lightning take it for torchrun.
    said = run([sys.executable, "-c", PLACES, kind, strategy], **place, TORCHELASTIC_RUN_ID="x", GROUP_RANK="0",
               LOCAL_WORLD_SIZE="2")  # fmt: skip
    lines = [line for line in said.splitlines() if line.split(" ")[0] in ("CURRENT", "GROUP", "ROOT")]
    assert lines == ["CURRENT cuda:1", "GROUP ring 1 2 cuda:1", "ROOT cuda:1 2"]


def test_the_accelerator_of_a_machine_without_a_gpu_is_the_cpu() -> None:
    code = """
import lightning as L
strategy = L.Trainer(strategy="ring", devices=2, logger=False, enable_checkpointing=False).strategy
print("ROOT", strategy.root_device, type(strategy.accelerator).__name__)
"""
    assert "ROOT cpu CPUAccelerator" in run([sys.executable, "-c", code], CUDA_VISIBLE_DEVICES="")


def test_batch_norm_is_pytorchs_own_on_a_gpu() -> None:
    import torch
    from ringcore_lightning.sync_batch_norm import LayerSync, layer_sync_for

    lightnings = type("TorchSyncBatchNorm", (), {})()
    users = SimpleNamespace()
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert isinstance(layer_sync_for(cpu, lightnings), LayerSync)
    assert layer_sync_for(gpu, lightnings) is lightnings
    assert layer_sync_for(cpu, users) is users and layer_sync_for(cpu, None) is None


def test_parameters_elsewhere_are_refused() -> None:
    import torch
    from ringcore import InvalidArgument
    from ringcore_lightning.synchronization import ModuleSynchronization
    from ringcore_torch.compression import Compression

    net = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(InvalidArgument, match=r"'weight' is on meta, .* pass accelerator='cpu' or accelerator='gpu'"):
        ModuleSynchronization(net, Compression.none, broadcast_buffers=True)


# ---- On GPUs, which two ranks share where there is only one ----


def scenarios(strategy: str, folder: Path, *names: str) -> dict[str, Any]:
    if "RINGCORE_TEST_GPUS" not in os.environ:
        pytest.skip("there is no GPU here; nox -s gpu runs this where there is one")
    ringrun = [sys.executable, "-m", "ringcore", "run", "-np", "2", sys.executable]
    run([*ringrun, SCENARIOS, strategy, str(folder), "lightning.pytorch", *names], TEST_DEVICE="cuda")
    found: dict[str, Any] = json.loads((folder / f"{strategy}.json").read_text())
    return found


NAMES = [
    "sgd", "adamw_with_a_schedule", "gradient_accumulation", "clipping_by_norm", "mixed_bfloat16", "mixed_float16",
    "batch_norm", "batch_norm_of_all_ranks", "checkpoint_and_resume", "validate_test_predict",
]  # fmt: skip


@pytest.fixture(scope="module", params=["ring", "ring_ddp"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one of ours found, and "ddp" over gloo."""
    folder = tmp_path_factory.mktemp("gpu")
    return [scenarios(strategy, folder, *NAMES) for strategy in (request.param, "ddp")]


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_take_the_same_steps_as_ddp(both: list[dict[str, Any]], name: str) -> None:
    ours, ddp = (found[name] for found in both)
    assert ours.get("equal", True), "the ranks ended with different weights"
    assert ours.get("steps") == ddp.get("steps") and ours.get("files") == ddp.get("files")
    # GPUs add in an order of their own; 16-bit floats have three digits.
    digits = 1e-2 if "mixed" in name else 1e-4
    for what in ("losses", "norm", "metrics", "validate", "test", "predict"):
        assert ours.get(what) == approximately(ddp.get(what), digits), what


def approximately(value: Any, digits: float) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [approximately(item, digits) for item in value]
    return value if value is None else pytest.approx(value, rel=digits)


ONE = """
import sys, torch
import lightning as L
seen = set()
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 3000), torch.nn.BatchNorm1d(3000), torch.nn.Linear(3000, 1))
    def training_step(self, batch, index):
        seen.update(map(str, (batch[0].device, self.device, self.net[0].weight.device, torch.cuda.current_device())))
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
L.seed_everything(0)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8)), batch_size=4)
trainer = L.Trainer(
    max_epochs=1, accelerator=sys.argv[1], devices=1, strategy="ring", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
model = Model()
trainer.fit(model, loader)
strategy = trainer.strategy
total = strategy.reduce(torch.ones(2, device=strategy.root_device), reduce_op="sum")
gathered = strategy.all_gather(torch.ones(2, device=strategy.root_device))
sent = strategy.broadcast({"a": torch.ones(1, device=strategy.root_device)})
print("ONE", trainer.global_step, sorted(seen), total.tolist(), list(gathered.shape), sent["a"].device, model.device)
"""


@pytest.mark.parametrize("accelerator", ["gpu", "auto"])
def test_one_rank_on_one_gpu(accelerator: str) -> None:
    if "RINGCORE_TEST_GPUS" not in os.environ:
        pytest.skip("there is no GPU here; nox -s gpu runs this where there is one")
    said = run([sys.executable, "-c", ONE, accelerator])
    assert "ONE 16 ['0', 'cuda:0'] [1.0, 1.0] [1, 2] cuda:0 cpu" in said, said
