"""Steps leave nothing behind: gradients of what the engine returns, and sparse ones. The verbs are in the conformance
suite."""

from __future__ import annotations

from pathlib import Path

import ringcore
from support import ranks

STEPS = 60
# Of 60 results of 2 MiB nearly none.
ALLOWED_BYTES = 16 << 20


def takes_steps(count: int) -> dict:
    import ringcore_torch as ring
    import torch
    from conformance.memory import held

    ringcore.init()
    torch.manual_seed(0)
    rows = torch.ones((2048, 256), requires_grad=True)
    table = torch.nn.Embedding(4096, 256, sparse=True)
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(table.parameters(), 0.1), table.named_parameters())

    def sparse_step() -> None:
        optimizer.zero_grad()
        table(torch.arange(1024)).sum().backward()
        optimizer.step()

    steps = {
        "allgather": lambda: ring.allgather(rows).sum().backward(),
        "alltoall": lambda: ring.alltoall(rows).sum().backward(),
        "reducescatter": lambda: ring.reducescatter(rows).sum().backward(),
        "grouped": lambda: sum(part.sum() for part in ring.grouped_allgather([rows, 2 * rows])).backward(),
        "sparse": sparse_step,
    }
    grown = {}
    for name, step in steps.items():
        for _ in range(count // 4):
            step()
        before = held()["bytes"]
        for _ in range(count):
            step()
        grown[name] = held()["bytes"] - before
    return grown


def test_steps_leave_no_results_behind(tmp_path: Path) -> None:
    for grown in ranks.run(takes_steps, 2, tmp_path, STEPS):
        assert max(grown.values()) < ALLOWED_BYTES, grown
