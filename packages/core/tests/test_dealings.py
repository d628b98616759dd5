"""Ways to deal gradients out: they differ, the usual one is the first, and a program meets their operations in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ringcore.adapter import dealings, gradients
from ringcore.adapter.dealings import Dealt

MIB = 1 << 20
OVER_TCP, IN_SHM = {"tcp", "shm"}, {"shm"}


def ways_of(monkeypatch: pytest.MonkeyPatch, transports: set[str], sizes: list[int], **options: Any) -> Any:
    monkeypatch.setattr(
        dealings, "context", lambda: SimpleNamespace(runtime=SimpleNamespace(transports=lambda: transports))
    )
    monkeypatch.setattr(gradients, "is_elastic", lambda: False)
    return dealings.dealings(sizes, **options)


def test_ways_differ_and_the_usual_one_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [MIB] * 32
    ways = ways_of(monkeypatch, IN_SHM, sizes)
    assert [len(way.buckets) for way in ways] == [8, 32, 2, 1]
    assert [list(bucket) for bucket in ways[0].buckets] == gradients.buckets(sizes)
    assert len(set(map(str, ways))) == len(ways)
    assert [len(way.buckets) for way in ways_of(monkeypatch, IN_SHM, sizes, whole=True)] == [1, 8, 32, 2]
    assert len(ways_of(monkeypatch, IN_SHM, [1000] * 5)) == 1


def test_more_than_two_operations_are_also_tried_at_once_over_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [MIB] * 32
    assert not any(way.at_once for way in ways_of(monkeypatch, IN_SHM, sizes, at_once=True))
    assert not any(way.at_once for way in ways_of(monkeypatch, OVER_TCP, sizes))
    ways = ways_of(monkeypatch, OVER_TCP, sizes, at_once=True)
    assert [len(way.buckets) for way in ways if way.at_once] == [8, 32]
    assert not ways[0].at_once


def test_a_program_is_not_given_hundreds_of_conditions_by_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = ways_of(monkeypatch, OVER_TCP, [4 * MIB] * 100, at_once=True)
    assert [len(way.buckets) for way in ways] == [100, 25, 7, 25, 7]
    assert [way.at_once for way in ways] == [False, False, False, True, True]


def test_no_operation_stands_behind_one_whose_gradients_are_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(i % 5 + 1) * MIB // 2 for i in range(40)]
    dealt = Dealt(ways_of(monkeypatch, OVER_TCP, sizes, at_once=True), None)
    last_made = [min(part.indices) for part in dealt.parts]
    assert last_made == sorted(last_made, reverse=True)
    for way, dealing in enumerate(dealt.ways):
        parts = [part for part in dealt.parts if part.way == way]
        assert [part.indices for part in parts] == list(dealing.buckets)
        assert sorted(i for part in parts for i in part.indices) == list(range(len(sizes)))
    names = [f"{part.number}{part.suffix}" for part in dealt.parts]
    assert len(set(names)) == len(names)
    assert [part.suffix for part in dealt.parts if part.way == 0] == [""] * len(dealt.ways[0].buckets)
