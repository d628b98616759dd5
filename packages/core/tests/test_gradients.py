"""How gradients are dealt out to operations, for every adapter."""

from __future__ import annotations

import pytest
from ringcore import InvalidArgument, adapter
from ringcore.adapter import ReduceOp, gradients

MIB = 1 << 20


@pytest.mark.parametrize(("count", "groups"), [(1, 1), (5, 4), (7, 3), (3, 7), (0, 2), (100, 10)])
def test_as_many_groups_as_the_user_wants_and_all_about_as_large(count: int, groups: int) -> None:
    dealt = adapter.dealt_out(count, groups)
    assert len(dealt) == min(count, groups)
    assert [index for group in dealt for index in group] == list(range(count))
    assert max(map(len, dealt), default=0) - min(map(len, dealt), default=0) <= 1


@pytest.mark.parametrize(
    ("sizes", "parts", "expected"),
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        ([6, 1, 1, 1, 1, 1, 1], 2, [1, 6]),
        ([1, 1, 1, 1, 1, 1, 6], 2, [6, 1]),
        ([100, 1, 1], 3, [1, 1, 1]),
        ([1, 1, 100], 3, [1, 1, 1]),
        ([1, 1, 1, 1, 100], 3, [3, 1, 1]),
        ([5, 5], 3, [1, 1, 0]),
        ([], 2, [0, 0]),
        ([0, 0, 0], 2, [1, 2]),
    ],
)
def test_parts_that_take_turns_are_about_as_large(sizes: list[int], parts: int, expected: list[int]) -> None:
    dealt = adapter.dealt_evenly(sizes, parts)
    assert [index for part in dealt for index in part] == list(range(len(sizes)))
    assert list(map(len, dealt)) == expected


def test_buckets_are_filled_from_the_last_gradient_on() -> None:
    assert adapter.buckets([]) == []
    assert adapter.buckets([MIB] * 6) == [[2, 3, 4, 5], [0, 1]]
    assert adapter.buckets([1, 9 * MIB, 1, 1]) == [[1, 2, 3], [0]]


def test_in_an_elastic_job_gradients_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their sizes, and however many operations the user wants; a group has room for 2000."""
    assert adapter.buckets([MIB] * 6, 2) == [[0, 1, 2], [3, 4, 5]]
    monkeypatch.setattr(gradients, "is_elastic", lambda: True)
    assert adapter.buckets([]) == []
    for groups in (None, 2):
        assert adapter.buckets([9 * MIB] * 6, groups) == [[0, 1, 2, 3, 4, 5]]
    assert list(map(len, adapter.buckets([1] * 2001))) == [1000, 1001]


def test_adasum_is_refused_where_gradients_are_reduced_and_why() -> None:
    with pytest.raises(InvalidArgument, match=r"combines the steps that ranks have made.*ringcore_torch"):
        adapter.check_gradient_options(ReduceOp.ADASUM)
