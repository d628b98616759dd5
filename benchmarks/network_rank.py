"""One rank of the network benchmark, on a host of its own; `network.py` starts it.

    python network_rank.py ringcore|gloo|pccl RANK SIZE ROOT_ADDRESS KEY_FILE [train|far]
    mpirun ... python network_rank.py mpi

Rank 0 prints one JSON line a size: the times of the calls in milliseconds, and its host's bytes on the wire for each.
With "far" fewer bytes, and less often, as they take longer. With "train" then the steps of an MLP of 25 million
parameters: alone, and with the gradients averaged.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pccl_rank import pccl_allreduce

CALLS = {1 << 20: 15, 64 << 20: 5}
FAR_CALLS = {1 << 20: 5, 16 << 20: 3, 64 << 20: 2}
PORT = 29441
TRAINED_STEPS = 8


def ringcore_allreduce(rank: int, size: int, root: str, key_file: str) -> Callable[[Any], Any]:
    """In-place sum by ringcore."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=os.environ.get("LOCAL_RANK", "0"),
        RINGCORE_RENDEZVOUS=f"tcp:{root}:{PORT}", RINGCORE_KEY_FILE=key_file,
    )  # fmt: skip
    import ringcore

    ringcore.init()
    return lambda array: ringcore.allreduce_(array, op=ringcore.Sum, name="benchmark")


def gloo_allreduce(rank: int, size: int, root: str, key_file: str) -> Callable[[Any], Any]:  # noqa: ARG001
    """In-place sum by gloo."""
    os.environ.update(MASTER_ADDR=root, MASTER_PORT=str(PORT + 1), GLOO_SOCKET_IFNAME="eth0")
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", rank=rank, world_size=size)
    return lambda array: distributed.all_reduce(torch.from_numpy(array))


def mpi_allreduce() -> tuple[Callable[[Any], Any], int, int]:
    """In-place sum by whichever MPI started this rank; the rank and the number of ranks."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return lambda array: world.Allreduce(MPI.IN_PLACE, array, op=MPI.SUM), world.rank, world.size


def bytes_sent() -> int:
    """By this host, over all its cables."""
    devices = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in devices if not line.strip().startswith("lo:"))


def train(library: str, meet: Callable[[], Any]) -> dict[str, list[float]]:
    """Milliseconds of the steps of the MLP, alone and with its gradients averaged."""
    import torch
    from models import mlp

    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    for strategy in ("alone", "averaged"):
        torch.manual_seed(0)
        model: torch.nn.Module = mlp()
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        if strategy == "averaged" and library == "ringcore":
            import ringcore_torch

            optimizer = ringcore_torch.DistributedOptimizer(optimizer, model.named_parameters())
        elif strategy == "averaged":
            model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        inputs = torch.randn(8, 912)
        found[strategy] = []
        for _ in range(TRAINED_STEPS):
            meet()
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            meet()
            found[strategy].append((time.perf_counter() - begin) * 1e3)
    return {strategy: times[2:] for strategy, times in found.items()}  # the first ones make buffers


def main() -> None:
    """Measure all sizes."""
    name = sys.argv[1]
    if name == "mpi":
        allreduce, rank, size = mpi_allreduce()
    else:
        rank, size = int(sys.argv[2]), int(sys.argv[3])
        libraries = {"ringcore": ringcore_allreduce, "gloo": gloo_allreduce, "pccl": pccl_allreduce}
        allreduce = libraries[name](rank, size, *sys.argv[4:6])
    import numpy as np

    calls = FAR_CALLS if "far" in sys.argv else CALLS
    for nbytes, count in calls.items():
        array = np.full(nbytes // 4, 2.0**rank, np.float32)
        allreduce(array)
        if not (array == 2.0**size - 1).all():
            raise SystemExit(f"wrong sum at {nbytes} bytes on rank {rank}")
        array[:] = 0
        times = []
        before = bytes_sent()
        for _ in range(count):
            begin = time.perf_counter()
            allreduce(array)
            times.append((time.perf_counter() - begin) * 1e3)
        wire = (bytes_sent() - before) / count
        if rank == 0:
            print(json.dumps({"bytes": nbytes, "milliseconds": times, "wire_bytes": wire}), flush=True)
    if "train" not in sys.argv:
        return
    token = np.zeros(2, np.float32)
    steps = train(name, lambda: allreduce(token))
    if rank == 0:
        print(json.dumps({"model": "mlp", "milliseconds": steps}), flush=True)
    if name == "gloo":
        from torch import distributed

        distributed.destroy_process_group()  # it aborts otherwise


if __name__ == "__main__":
    main()
