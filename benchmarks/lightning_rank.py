"""One rank of the Lightning benchmark; `run.py` starts it under ringrun.

    python lightning_rank.py MODEL BATCH STEPS STRATEGY

"alone" is a Trainer for one device on every rank at the same time: nobody communicates. Rank 0 prints one JSON line:
milliseconds a step, each step on its own. In the end all ranks of another strategy must hold the same weights.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import time
import warnings
from typing import Any

import lightning
import ringcore
import torch
from models import MODELS

WARM_UP = 10


class Module(lightning.LightningModule):
    """A model of `models`, and when its steps began."""

    def __init__(self, name: str) -> None:
        super().__init__()
        make, self.shape = MODELS[name]
        torch.manual_seed(0)
        self.net = make()
        self.began: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.began.append(time.perf_counter())

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4, momentum=0.9)


def main() -> None:
    """Measure one strategy."""
    name, batch, steps, strategy = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ringcore.init()
    cores = sorted(os.sched_getaffinity(0))
    if ringcore.size() <= len(cores):
        os.sched_setaffinity(0, {cores[ringcore.rank()]})
    module = Module(name)
    count = batch * (steps + WARM_UP + 1)
    data = torch.utils.data.TensorDataset(torch.randn(count, *module.shape))
    how = {"devices": 1} if strategy == "alone" else {"devices": ringcore.size(), "strategy": strategy}
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, **how,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=batch))
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    digests = ringcore.allgather_object(hashlib.sha256(weights.numpy()).hexdigest())
    if strategy != "alone" and len(set(digests)) > 1:
        raise SystemExit(f"{strategy}: the ranks' weights differ")
    if ringcore.rank() == 0:
        began = module.began[WARM_UP:]
        taken = [(after - before) * 1e3 for before, after in itertools.pairwise(began)]
        print(json.dumps({"milliseconds": taken}), flush=True)
    ringcore.barrier()
    os._exit(0)  # gloo may abort in its own end


if __name__ == "__main__":
    main()
