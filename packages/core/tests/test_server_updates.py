"""What servers do with an optimizer, without processes: rules, what they refuse, and who may be ahead of whom."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from ringcore import InvalidArgument
from ringcore.job.rules import RULES, Segment, step_row
from ringcore.job.updates import Clock, flags_of_text, flags_to_text, pair_number, set_number, share_of

SGD: dict[str, Any] = {
    "lr": 0.5, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False,
    "rate_in_momentum": False,
}  # fmt: skip


def test_what_has_no_gradient_is_not_stepped_and_groups_have_their_own_numbers() -> None:
    values = np.ones(100_000, np.float32)
    segments = [Segment(0, 0, 0, 10), Segment(1, 0, 10, 50_000), Segment(2, 1, 50_000, 99_000)]
    groups = [SGD, {**SGD, "lr": 0.25}]
    step_row(RULES["sgd"], values, np.ones_like(values), {}, segments, groups, [0, 0, 0], [False, True, True])
    for begin, end, right in [(0, 10, 1), (10, 50_000, 0.5), (50_000, 99_000, 0.75), (99_000, 100_000, 1)]:
        assert (values[begin:end] == right).all(), begin


@pytest.mark.parametrize(
    "wrong", [{"lr": float("nan")}, {"lr": "0.5"}, {"lr": True}, {"nesterov": 1}, {"more": 1.0}, {"lr": None}]
)
def test_numbers_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    RULES["sgd"].check(SGD)
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        RULES["sgd"].check({**SGD, **wrong})


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
@pytest.mark.parametrize("elements", [0, 1, 6, 1000])
def test_shares_are_even_and_cover_everything(elements: int, servers: int) -> None:
    shares = [share_of(elements, server, servers) for server in range(servers)]
    assert [begin for begin, _ in shares] == [0, *(end for _, end in shares[:-1])]
    assert shares[-1][1] == elements
    sizes = [end - begin for begin, end in shares]
    assert max(sizes) - min(sizes) <= 1


def test_each_process_set_has_a_number_of_its_own() -> None:
    numbers = [set_number(server) for server in range(3)]
    numbers += [pair_number(rank, server, 3) for rank in range(5) for server in range(3)]
    assert len(set(numbers)) == len(numbers)


def test_flags_travel_as_text() -> None:
    for flags in ([], [False], [True, False, False], [False] * 9 + [True]):
        assert flags_of_text(flags_to_text(flags), len(flags)) == flags
    with pytest.raises(ValueError, match="3 flags are not 2"):
        flags_of_text(flags_to_text([True] * 3), 2)


def test_no_rank_is_further_ahead_than_the_bound() -> None:
    clock = Clock(3, 2)
    assert clock.step(0, 0.0) == []
    assert clock.step(0, 0.0) == []
    assert clock.step(0, 0.0) == [1, 2]
    assert clock.step(1, 0.0) == []
    clock.rest(2)  # nobody waits for it
    assert clock.step(0, 0.0) == [1]
    assert clock.step(1, 0.0) == []
    assert clock.step(2, 0.0) == [] and clock.step(0, 0.0) == [1, 2]  # it takes part again


@pytest.mark.parametrize("comes", [True, False])
def test_a_rank_that_waits_goes_on_when_the_slowest_has_come_or_rests(comes: bool) -> None:
    clock = Clock(2, 0)
    told: list[list[int]] = []
    waiting = threading.Thread(target=lambda: told.append(clock.step(0, 60.0)))
    waiting.start()
    if comes:
        clock.step(1, 0.0)
    else:
        clock.rest(1)
    waiting.join()
    assert told == [[]]
    clock.begin_anew()
    assert clock.step(0, 0.0) == [1]
