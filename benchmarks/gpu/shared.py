"""An allreduce of tensors on a GPU that two ranks share, by "ring" and by gloo, in turns: sessions `gpu` run it.

    ringrun -np 2 python benchmarks/gpu/shared.py

Rank 0 prints JSON lines: for each size the milliseconds until the GPU has the result, the median of 20 turns, and the
least and the most of them. With NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL 2.30 or later "ring" goes by NCCL.
"""

from __future__ import annotations

import json
import os
import statistics
import time

import ringcore_torch  # noqa: F401 - the backend "ring"
import torch
import torch.distributed as dist

SIZES = [1 << 18, 1 << 22, 1 << 24, 1 << 26]
WARM_UP, TURNS = 4, 20


def main() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("ring")
    groups = {"ring": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    by_nccl = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    for size in SIZES:
        taken: dict[str, list[float]] = {name: [] for name in groups}
        for turn in range(WARM_UP + TURNS):
            for name, group in groups.items():
                tensor = torch.ones(size // 4, device="cuda")
                torch.cuda.synchronize()
                dist.barrier()
                begin = time.perf_counter()
                dist.all_reduce(tensor, group=group)
                torch.cuda.synchronize()
                if turn >= WARM_UP:
                    taken[name].append(1e3 * (time.perf_counter() - begin))
                assert bool((tensor == dist.get_world_size()).all())
        if dist.get_rank() == 0:
            for name, times in taken.items():
                median, least, most = (round(of(times), 3) for of in (statistics.median, min, max))
                row = {
                    "case": "shared by NCCL" if by_nccl else "shared",
                    "bytes": size,
                    "by": name,
                    "median_ms": median,
                    "least_ms": least,
                    "most_ms": most,
                }
                print(json.dumps(row), flush=True)
    dist.destroy_process_group()


main()
