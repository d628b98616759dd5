"""What PyTorch's profiler sees of ringcore, while it is active."""

from __future__ import annotations

import ringcore_torch as ring
import torch
from support.on_ranks import TWO, on


def names_of(profile: torch.profiler.profile) -> dict[str, int]:
    return {event.key: event.count for event in profile.key_averages() if event.key.startswith("ringcore::")}


@on(TWO)
def test_the_profiler_sees_operations_while_it_is_active() -> None:
    weights = torch.nn.Parameter(torch.ones(1 << 16))
    optimizer = ring.DistributedOptimizer(torch.optim.SGD([weights], lr=0.1), named_parameters=[("weights", weights)])
    steps = ring.statistics()["steps"]

    def step() -> None:
        optimizer.zero_grad()
        (weights * (ring.rank() + 1)).sum().backward()
        optimizer.step()
        ring.allreduce_(torch.ones(3))
        ring.synchronize(ring.allgather_async(torch.ones(3)))

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
        step()
    step()
    seen = names_of(profile)
    assert seen["ringcore::allreduce_"] == 2 and seen["ringcore::allgather_async"] == 2, seen
    assert seen["ringcore::launch"] == 2 and seen["ringcore::synchronize"] == 4, seen
    assert ring.statistics()["steps"] == steps + 4
