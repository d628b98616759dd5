"""How gradients are dealt out to operations, for every adapter."""

from __future__ import annotations

import pytest
from ringcore import adapter

MIB = 1 << 20


@pytest.mark.parametrize(("count", "groups"), [(1, 1), (5, 4), (7, 3), (3, 7), (0, 2), (100, 10)])
def test_as_many_groups_as_the_user_wants_and_all_about_as_large(count: int, groups: int) -> None:
    dealt = adapter.dealt_out(count, groups)
    assert len(dealt) == min(count, groups)
    assert [index for group in dealt for index in group] == list(range(count))
    assert max(map(len, dealt), default=0) - min(map(len, dealt), default=0) <= 1


def test_buckets_are_filled_from_the_last_gradient_on() -> None:
    assert adapter.buckets([]) == []
    assert adapter.buckets([MIB] * 6) == [[2, 3, 4, 5], [0, 1]]
    assert adapter.buckets([1, 9 * MIB, 1, 1]) == [[1, 2, 3], [0]]
