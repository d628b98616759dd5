"""One rank of the benchmark of recovery; `run.py` starts it.

    python rank.py ringcore|commits|torchft|ULFM FOLDER [--model mlp|state|device]

After each step it writes a line into FOLDER/steps.PID: the time, in seconds of the clock that all processes of the
machine share, how many ranks the step had, and which it was. The gradients are 64 MiB in four tensors, and cost hardly
any time. `commits` is ringcore in a loop that others can join.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

TENSORS, ELEMENTS = 4, 4 << 20
# Of the model `device`.
DEVICE_ELEMENTS, DEVICE_S = 1 << 20, 0.1
FOLDER = Path(sys.argv[2])


def tell(ranks: int, step: int = 0) -> None:
    """A step of so many ranks has ended."""
    with (FOLDER / f"steps.{os.getpid()}").open("a") as file:
        file.write(f"{time.monotonic()} {ranks} {step}\n")


def training():
    """A model, and a function that makes its loss: of little to compute, or of a real net."""
    import torch

    torch.manual_seed(1)
    if "mlp" in sys.argv:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from models import mlp

        net, samples = mlp(), torch.randn(32, 912)
        return net, lambda module: module(samples).square().mean()

    elements = DEVICE_ELEMENTS if "device" in sys.argv else ELEMENTS

    class Sums(torch.nn.Module):
        """Whose gradients are ones."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ParameterList([torch.ones(elements) for _ in range(TENSORS)])
            if "state" in sys.argv:  # With these and what the optimizer keeps 400 MB.
                # What a process has already it is not sent: here each has something else until it gets rank 0's.
                seeded = torch.Generator().manual_seed(os.getpid())
                self.register_buffer("kept", torch.rand(100_000_000 - 2 * TENSORS * ELEMENTS, generator=seeded))

        def forward(self) -> torch.Tensor:
            return sum(part.sum() for part in self.parts)

    def loss_of(module: torch.nn.Module) -> torch.Tensor:
        if "device" in sys.argv:
            time.sleep(DEVICE_S)  # The host has nothing to do while a device computes.
        return module()

    return Sums(), loss_of


def sgd(module):
    """With a state, as optimizers have."""
    import torch

    return torch.optim.SGD(module.parameters(), lr=1e-6, momentum=0.9)


def run_ringcore() -> None:
    """A plain loop: a lost rank is no error."""
    import ringcore_torch as ring

    ring.init()
    module, loss_of = training()
    optimizer = ring.DistributedOptimizer(sgd(module), named_parameters=module.named_parameters(), broadcast=True)
    while True:
        optimizer.zero_grad()
        loss_of(module).backward()
        optimizer.step()
        tell(ring.size())


def run_commits() -> None:
    """A loop with commits, which others join and leave."""
    import ringcore_torch as ring
    from ringcore_torch import elastic

    ring.init()
    module, loss_of = training()
    optimizer = ring.DistributedOptimizer(sgd(module), named_parameters=module.named_parameters())

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        while True:
            optimizer.zero_grad()
            loss_of(module).backward()
            optimizer.step()
            state.step += 1
            tell(ring.size(), state.step)
            state.commit()

    train(elastic.TorchState(module, optimizer, step=0))


def run_torchft() -> None:
    """A replica group of one rank; a step in which somebody is lost is left out."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    module, loss_of = training()
    inner = sgd(module)

    def load(state: dict[str, object]) -> None:
        module.load_state_dict(state["module"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)), min_replica_size=1, load_state_dict=load,
        state_dict=lambda: {"module": module.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"rank_{os.environ['REPLICA']}", timeout=datetime.timedelta(seconds=30),
    )  # fmt: skip
    wrapped = DistributedDataParallel(manager, module)
    optimizer = Optimizer(manager, inner)
    done = 0
    while True:
        optimizer.zero_grad()
        loss_of(wrapped).backward()
        optimizer.step()
        if manager.current_step() > done:  # otherwise it was left out
            done = manager.current_step()
            tell(manager.num_participants())


def run_ulfm() -> None:
    """MPI with the extensions for lost ranks: what is summed stays as it was, and is summed again."""
    import numpy as np
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD.Dup()
    ranks.Set_errhandler(MPI.ERRORS_RETURN)
    gradients = [np.ones(ELEMENTS, np.float32) for _ in range(TENSORS)]
    sums = [np.empty_like(gradient) for gradient in gradients]
    while True:
        try:
            for gradient, total in zip(gradients, sums, strict=True):
                ranks.Allreduce(gradient, total)
            well = True
        except MPI.Exception:
            ranks.Revoke()
            well = False
        # Of those who are left some may have all sums: they agree on that.
        try:
            all_well = ranks.Agree(int(well))
        except MPI.Exception:
            all_well = 0
        if not all_well:
            ranks = ranks.Shrink()
            ranks.Set_errhandler(MPI.ERRORS_RETURN)
            continue
        if any(total[0] != ranks.Get_size() for total in sums):
            raise SystemExit("a wrong sum")
        tell(ranks.Get_size())


RUNS: dict[str, Callable[[], None]] = {
    "ringcore": run_ringcore,
    "commits": run_commits,
    "torchft": run_torchft,
    "ULFM": run_ulfm,
}

if __name__ == "__main__":
    (FOLDER / f"begun.{os.getpid()}").write_text(str(time.monotonic()))
    RUNS[sys.argv[1]]()
