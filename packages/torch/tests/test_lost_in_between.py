"""A rank that is killed in an outer step, with a fragment under way or in its shard: all others name it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import ringcore
from support import ranks
from support.rank import caught

WHERE = [
    "asynchronous sum",
    *(
        pytest.param(where, marks=pytest.mark.long)
        for where in ("outer step", "average", "fragment under way", "shard", "clipping")
    ),
]


def trains_until_one_is_lost(where: str) -> dict[str, object]:
    from collections.abc import Callable
    from typing import Any

    import ringcore_torch as ring
    import torch

    ringcore.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Linear(40, 2))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9)
    steps = [0]

    def dies_in(target: Any, method: str, *, after: bool = False) -> None:
        """Rank 1, when it has made some steps."""
        whole: Callable[..., Any] = getattr(target, method)

        def dying(*args: Any, **options: Any) -> Any:
            dies = ringcore.rank() == 1 and steps[0] >= 4
            if dies and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = whole(*args, **options)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(target, method, dying)

    optimizer: Any
    if where == "average":
        optimizer = ring.LocalSGD(inner, model.named_parameters(), every=2)
        dies_in(optimizer, "synchronize")
    elif where == "outer step":
        optimizer = ring.DiLoCo(inner, outer, model.named_parameters(), every=2)
        dies_in(outer, "step")
    elif where == "fragment under way":
        optimizer = ring.DiLoCo(inner, outer, model.named_parameters(), every=3, fragments=2, delay=1)
        dies_in(optimizer, "_send", after=True)
    elif where == "asynchronous sum":
        optimizer = ring.AsyncOptimizer(inner, model.named_parameters(), staleness=2, threshold=1)
        dies_in(optimizer._steps, "_sum_up", after=True)
    else:
        optimizer = ring.ShardedOptimizer(inner, model.named_parameters())
        # When its share is to be stepped the others wait for its part of the weights.
        dies_in(*{"shard": (optimizer._inner, "step"), "clipping": (optimizer, "clip_grad_norm")}[where])

    def train() -> None:
        while True:
            steps[0] += 1
            optimizer.zero_grad()
            model(torch.ones(1, 6)).sum().backward()
            if where == "clipping":
                optimizer.clip_grad_norm(1.0)
            optimizer.step()

    return caught(train)


@pytest.mark.parametrize("where", WHERE)
def test_all_others_name_it(where: str, tmp_path: Path) -> None:
    with ranks.started(trains_until_one_is_lost, 3, tmp_path, where, env={"OMP_NUM_THREADS": "1"}) as job:
        outcomes = job.wait()
    assert outcomes[1].exit_code == -signal.SIGKILL, outcomes[1].stderr
    for survivor in (outcomes[0], outcomes[2]):
        assert survivor.result is not None, survivor.stderr
        assert survivor.result["type"] == "PeerLostError", survivor.result
        assert "rank 1" in survivor.result["message"]
