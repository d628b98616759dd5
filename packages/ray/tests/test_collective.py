"""`ray.util.collective` with the backend "RING"."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import ray
from ray.util import collective
from ray.util.collective.types import ReduceOp
from ringcore_ray import register_ring


@ray.remote(num_cpus=1)
class Member:
    def __init__(self) -> None:
        register_ring()
        register_ring()  # as often as one likes

    def join(self, size: int, rank: int, name: str) -> None:
        collective.init_collective_group(size, rank, "RING", name)

    def leave(self, name: str) -> None:
        collective.destroy_collective_group(name)

    def use(self, name: str) -> list[list[float]]:
        rank = collective.get_rank(name)
        total, largest, copied, at_root = (np.full(4, rank + 1.0) for _ in range(4))
        collective.allreduce(total, name)
        collective.allreduce(largest, name, ReduceOp.MAX)
        collective.broadcast(copied, 1, name)
        collective.reduce(at_root, 0, name)
        gathered = [np.zeros(4), np.zeros(4)]
        collective.allgather(gathered, np.full(4, rank + 1.0), name)
        part = np.zeros(2)
        collective.reducescatter(part, [np.full(2, 1.0 + rank), np.full(2, 10.0 + rank)], name)
        collective.barrier(name)
        return [array.tolist()[:1] for array in (total, largest, copied, at_root, *gathered, part)]

    def sum_of_ranks(self, name: str) -> tuple[int, float]:
        total = np.ones(4)
        # Who is in no group yet has no rank either.
        collective.allreduce(total, name)
        numbered = np.full(4, collective.get_rank(name) + 1.0)
        collective.allreduce(numbered, name)
        assert total.tolist() == [2.0] * 4
        return collective.get_rank(name), float(numbered[0])

    def send(self, name: str) -> str:
        with pytest.raises(NotImplementedError) as caught:
            collective.send(np.zeros(1), 1 - collective.get_rank(name), name)
        return str(caught.value)


def test_every_verb_and_groups_one_after_the_other() -> None:
    members: list[Any] = [Member.remote() for _ in range(2)]
    for name in ("first", "second", "first"):
        ray.get([member.join.remote(2, rank, name) for rank, member in enumerate(members)])
        assert ray.get([member.use.remote(name) for member in members]) == [
            [[3.0], [2.0], [2.0], [3.0], [1.0], [2.0], [3.0]],
            [[3.0], [2.0], [2.0], [2.0], [1.0], [2.0], [21.0]],
        ]
        assert "no send and recv" in ray.get(members[0].send.remote(name))
        ray.get([member.leave.remote(name) for member in members])
    for member in members:
        ray.kill(member)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [[0, 1], [1, 0]])
def test_a_driver_declares_a_group_that_actors_join_at_their_first_verb(ranks: list[int]) -> None:
    register_ring()
    members: list[Any] = [Member.remote() for _ in range(2)]
    collective.create_collective_group(members, 2, ranks, "RING", "declared")
    totals = ray.get([member.sum_of_ranks.remote("declared") for member in members])
    assert totals == [(rank, 3.0) for rank in ranks]
    ray.get([member.leave.remote("declared") for member in members])
    for member in members:
        ray.kill(member)
