"""One rank of the benchmark of sending less, on a host of its own; `sending_less.py` starts it.

    python sending_less_rank.py ringcore RANK SIZE ROOT_ADDRESS KEY_FILE CASE

The ways of a case take turns. Rank 0 prints one JSON line: milliseconds of each turn by way, and what else is asked
for.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import ringcore
import torch
from models import mlp
from network_rank import PORT, ringcore_allreduce
from pccl_rank import FOLDER, pccl_allreduce

ALLREDUCED = 64 << 20
Turns = Mapping[str, Callable[[], Any]]


def timed(ways: Turns, rounds: int, steps: int = 1) -> dict[str, list[float]]:
    """Milliseconds of a step; the first round makes buffers, and tries plans."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way, step in ways.items():
            ringcore.barrier()
            begin = time.perf_counter()
            for _ in range(steps):
                step()
            if turn > 0:
                times[way].append((time.perf_counter() - begin) / steps * 1e3)
    return times


def gloo(rank: int, size: int, root: str) -> None:
    """Torch's own ranks, beside ours."""
    os.environ.update(MASTER_ADDR=root, MASTER_PORT=str(PORT + 1), GLOO_SOCKET_IFNAME="eth0")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size)


def same_everywhere(values: np.ndarray[Any, Any], what: str) -> None:
    """Raises where a rank has other bits than the others."""
    if not (ringcore.allreduce(values, op=ringcore.Min, name="low") == values).all():
        raise SystemExit(f"{what}: the ranks hold different values")


class Trained:
    """A copy of the model, and how it takes a step."""

    def __init__(self, wrap: Callable[[torch.nn.Module], tuple[torch.nn.Module, Any]]) -> None:
        torch.manual_seed(0)
        self.model = mlp()
        self.called, self.optimizer = wrap(self.model)
        self._inputs = torch.randn(8, 912, generator=torch.Generator().manual_seed(ringcore.rank()))

    def backward(self) -> None:
        """Forward and backward."""
        self.optimizer.zero_grad()
        self.called(self._inputs).square().mean().backward()

    def step(self) -> None:
        """A whole one."""
        self.backward()
        self.optimizer.step()

    def state_bytes(self) -> int:
        """Of what this rank's optimizer keeps."""
        names = ("_inner", "optim", "optimizer")  # of what wraps one: ours, torch's, DeepSpeed's
        inner = next((getattr(self.optimizer, name) for name in names if hasattr(self.optimizer, name)), self.optimizer)
        tensors = (value for state in inner.state.values() for value in state.values())
        return sum(one.numel() * one.element_size() for one in tensors if isinstance(one, torch.Tensor))

    def check(self, what: str) -> None:
        """All ranks have the same weights."""
        same_everywhere(torch.cat([one.detach().flatten() for one in self.model.parameters()]).numpy(), what)


def quantised() -> dict[str, Any]:
    """Allreduces of random values."""
    values = np.random.default_rng(ringcore.rank()).standard_normal(ALLREDUCED // 4).astype(np.float32)
    results: dict[str, np.ndarray[Any, Any]] = {}

    def by(way: str) -> Callable[[], None]:
        compression = getattr(ringcore.Compression, way)

        def call() -> None:
            results[way] = ringcore.allreduce(values, op=ringcore.Sum, compression=compression, name=way)

        return call

    ways = {way: by(way) for way in ("none", "int8", "int4")}
    if FOLDER:
        sum_in_place = pccl_allreduce(ringcore.rank(), ringcore.size(), sys.argv[4], quantised=True)

        def by_pccl() -> None:
            results["pccl uint8"] = values.copy()
            sum_in_place(results["pccl uint8"])

        ways["pccl uint8"] = by_pccl
    times = timed(ways, 3)
    for way, result in results.items():
        same_everywhere(result, way)
    off = {way: float(np.abs(result - results["none"]).max()) for way, result in results.items()}
    return {"milliseconds": times, "largest_difference": off}


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer of most cases."""
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def powersgd() -> dict[str, Any]:
    """Whole, by PowerSGD, and by DistributedDataParallel's hook for it."""
    import ringcore_torch as ring
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def ours(**options: Any) -> Trained:
        return Trained(lambda m: (m, ring.DistributedOptimizer(sgd(m), m.named_parameters(), **options)))

    def ddp(model: torch.nn.Module) -> tuple[torch.nn.Module, Any]:
        # One bucket: of several the hook begins allreduces in callbacks, in an order that ranks of gloo need not share.
        wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1000)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return wrapped, sgd(model)

    trained = {"whole": ours(), "powersgd": ours(compression=ring.Compression.powersgd(4)), "ddp hook": Trained(ddp)}
    times = timed({way: one.step for way, one in trained.items()}, 4, 2)
    for way, one in trained.items():
        one.check(way)
    return {"milliseconds": times}


def averaged_seldom() -> dict[str, Any]:
    """One allreduce, and DiLoCo beside computing alone."""
    import ringcore_torch as ring

    values = torch.randn(ALLREDUCED // 4)
    ways = {
        "allreduce": lambda: ring.allreduce(values, name="whole"),
        "gloo allreduce": lambda: torch.distributed.all_reduce(values.clone()),
    }
    return {"milliseconds": {**timed(ways, 2), **diloco(delay=5)}, "bytes": ALLREDUCED}


def diloco(delay: int, device_s: float = 0) -> dict[str, list[float]]:
    """Milliseconds of a step, computing alone and with DiLoCo; so much of it on a device."""
    import ringcore_torch as ring

    def wrap(model: torch.nn.Module) -> tuple[torch.nn.Module, Any]:
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        optimizer = ring.DiLoCo(
            sgd(model), outer, model.named_parameters(), every=50, fragments=5, delay=delay,
            compression=ring.Compression.int8,
        )  # fmt: skip
        return model, optimizer

    def step(trained: Trained) -> Callable[[], None]:
        def whole() -> None:
            trained.backward()
            time.sleep(device_s)
            trained.optimizer.step()

        return whole

    alone, meeting = Trained(lambda m: (m, sgd(m))), Trained(wrap)
    times = timed({"computing alone": step(alone), "diloco": step(meeting)}, 3, 50)
    meeting.optimizer.synchronize()
    return times


def sites() -> dict[str, Any]:
    """DiLoCo among hosts far apart."""
    return {"milliseconds": diloco(delay=25, device_s=0.3)}


def adamw() -> dict[str, Any]:
    """The state of AdamW, and a step."""
    import ringcore_torch as ring
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def make(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4)

    def zero(model: torch.nn.Module) -> tuple[torch.nn.Module, Any]:
        wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        return wrapped, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)

    trained = {
        "whole": Trained(lambda m: (m, ring.DistributedOptimizer(make(m), m.named_parameters()))),
        "sharded": Trained(lambda m: (m, ring.ShardedOptimizer(make(m), m.named_parameters()))),
        "ZeroRedundancyOptimizer": Trained(zero),
    }
    if importlib.util.find_spec("deepspeed"):
        trained["DeepSpeed, stage 1"] = ByDeepSpeed(make)
    times = timed({way: one.step for way, one in trained.items()}, 4, 2)
    for way, one in trained.items():
        one.check(way)
    return {"milliseconds": times, "state_bytes": {way: one.state_bytes() for way, one in trained.items()}}


class ByDeepSpeed(Trained):
    """DeepSpeed's engine, with ZeRO's first stage, in float32."""

    def __init__(self, make: Callable[[torch.nn.Module], torch.optim.Optimizer]) -> None:
        import deepspeed

        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)  # takes the group that is there

        def wrap(model: torch.nn.Module) -> tuple[torch.nn.Module, Any]:
            config = {
                "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 1},
                "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            }  # fmt: skip
            engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=make(model), config=config)
            return engine, optimizer

        super().__init__(wrap)

    def backward(self) -> None:
        """Forward and backward."""
        engine: Any = self.called
        engine.backward(engine(self._inputs).square().mean())

    def step(self) -> None:
        """A whole one; its engine clears the gradients."""
        self.backward()
        engine: Any = self.called
        engine.step()


def muon() -> dict[str, Any]:
    """What orthogonalising takes on the slowest rank, and a whole step."""
    import ringcore_torch as ring

    def make(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Muon([one for one in model.parameters() if one.ndim == 2], lr=1e-3)

    trained = {
        "whole": Trained(lambda m: (m, ring.DistributedOptimizer(make(m)))),
        "sharded": Trained(lambda m: (m, ring.ShardedOptimizer(make(m)))),
    }
    spent = dict.fromkeys(trained, 0.0)
    whole: Any = torch.optim.Muon.step
    active = ""

    def counted(self: Any, *arguments: Any) -> Any:
        begin = time.perf_counter()
        result = whole(self, *arguments)
        spent[active] += time.perf_counter() - begin
        return result

    torch.optim.Muon.step = counted  # type: ignore[method-assign]

    def by(way: str) -> Callable[[], None]:
        def step() -> None:
            nonlocal active
            active = way
            trained[way].step()

        return step

    times = timed({way: by(way) for way in trained}, 3)
    slowest = ringcore.allreduce(np.array(list(spent.values())), op=ringcore.Max, name="spent")
    for way, one in trained.items():
        one.check(way)
    return {"milliseconds": times, "orthogonalising_s": dict(zip(spent, slowest.tolist(), strict=True))}


def main() -> None:
    """Measure one case."""
    rank, size, root, case = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[6]
    ringcore_allreduce(rank, size, root, sys.argv[5])
    torch.set_num_threads(1)
    gloo(rank, size, root)
    cases = {
        "quantised": quantised, "powersgd": powersgd, "diloco": averaged_seldom, "sites": sites, "adamw": adamw,
        "muon": muon,
    }  # fmt: skip
    found = cases[case]()
    if rank == 0:
        print(json.dumps(found), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
