"""Who sends which part of a state to whom."""

from __future__ import annotations

import itertools

import pytest
from ringcore.job.handover import Way, ways_between


def test_on_one_host_rank_0_gives_it_to_all() -> None:
    assert ways_between([0, 1], [2, 3], [0, 0, 0, 0]) == []


def test_each_host_that_has_it_sends_a_share_to_those_that_come_from_elsewhere() -> None:
    assert ways_between([0, 1, 2, 3], [4, 5], [0, 0, 1, 2, 3, 4]) == [
        Way(0, [4, 5], 0, 3),
        Way(2, [4, 5], 1, 3),
        Way(3, [4, 5], 2, 3),
    ]


def test_who_comes_to_a_host_that_has_it_gets_it_there() -> None:
    assert ways_between([0, 1, 2], [3, 4, 5], [0, 1, 1, 1, 1, 2]) == [
        Way(1, [3, 4]),
        Way(0, [5], 0, 2),
        Way(1, [5], 1, 2),
    ]


def test_of_many_hosts_no_more_send_than_fill_a_link() -> None:
    ways = ways_between(range(20), [20], range(21))
    assert [(way.giver, way.share, way.shares) for way in ways] == [(rank, rank, 8) for rank in range(8)]


@pytest.mark.parametrize("shares", [1, 2, 3, 8])
@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 1000, 1 << 20, (1 << 20) + 1])
def test_shares_are_the_whole(nbytes: int, shares: int) -> None:
    parts = [Way(0, [1], share, shares).part_of(nbytes) for share in range(shares)]
    assert parts[0][0] == 0 and parts[-1][1] == nbytes
    assert all(before[1] == after[0] for before, after in itertools.pairwise(parts))
    assert max(end - begin for begin, end in parts) - min(end - begin for begin, end in parts) <= 128
