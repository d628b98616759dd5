"""The tree in which virtual ranks are added up: the same sums, whoever has which of them, and whoever comes first."""

from __future__ import annotations

import random

import pytest
from ringcore.adapter import SumTree, nodes_of, share_out


def add(left: str, right: str) -> str:
    return f"({left} {right})"


def total_of(leaves: int, shares: list[list[int]], draw: random.Random) -> str:
    """Each rank adds up its leaves, and then all add up what the ranks have."""
    of_all: SumTree[str] = SumTree(leaves, add)
    sums = []
    for numbers in shares:
        own: SumTree[str] = SumTree(leaves, add)
        for number in draw.sample(numbers, len(numbers)):
            own.put((0, number), str(number))
        assert sorted(own.sums) == nodes_of(numbers, leaves), "the others know which sums a rank has"
        sums += own.sums.items()
    for node, value in draw.sample(sums, len(sums)):
        of_all.put(node, value)
    return of_all.total


@pytest.mark.parametrize(
    ("leaves", "total"),
    [
        (1, "0"), (2, "(0 1)"), (3, "((0 1) 2)"), (5, "(((0 1) (2 3)) 4)"), (6, "(((0 1) (2 3)) (4 5))"),
        (8, "(((0 1) (2 3)) ((4 5) (6 7)))"),
    ],
)  # fmt: skip
def test_the_sum_is_the_same_however_the_leaves_are_shared_out(leaves: int, total: str) -> None:
    draw = random.Random(leaves)
    for ranks in range(1, leaves + 2):
        assert total_of(leaves, share_out(range(leaves), ranks), draw) == total
    for _ in range(50):
        shares: list[list[int]] = [[] for _ in range(draw.randint(1, 4))]
        for number in range(leaves):
            draw.choice(shares).append(number)
        assert total_of(leaves, shares, draw) == total


def test_ranks_have_neighbours_and_as_many_as_the_others_or_one_less() -> None:
    assert share_out(range(7), 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert share_out([2, 5], 3) == [[], [2], [5]]
    # Few nodes: those of a rank's leaves in a tree of eight.
    assert [nodes_of(share, 8) for share in share_out(range(8), 2)] == [[(2, 0)], [(2, 1)]]
