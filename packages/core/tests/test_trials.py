"""Which way is kept, by how long steps have taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ringcore.adapter.trials import Trials


def decided(trials: Trials, seconds_of: Callable[[int, int], float]) -> list[int]:
    """The ways of all steps, until one is left; `seconds_of` a way and the number of the step."""
    done: list[int] = []
    while not trials.decided:
        done.append(trials.way)
        if trials.note(seconds_of(done[-1], len(done))):
            trials.end_round(trials.medians())
    return done


@pytest.mark.parametrize("quickest", range(6))
def test_the_quickest_is_found(quickest: int) -> None:
    trials = Trials(range(6), 3)
    done = decided(trials, lambda way, step: 1.0 if way == quickest else 1.5 + way / 10)
    assert trials.left == [quickest]
    assert trials.way == quickest
    # Rounds of 6, 3 and 2 ways; a step more in each turn, which does not count.
    assert len(done) == 6 * 2 * 4 + 3 * 2 * 4 + 2 * 2 * 7


@pytest.mark.parametrize(("seconds", "kept"), [(0.99, 0), (0.97, 2)])
def test_another_way_must_beat_the_first_one(seconds: float, kept: int) -> None:
    trials = Trials(range(4), 2)
    decided(trials, lambda way, step: seconds if way == 2 else 1.0)
    assert trials.left == [kept]


def test_of_equal_ways_that_get_slower_all_the_time_the_first_one_stays() -> None:
    """Each takes its turns there and back; nobody is measured earlier than another one."""
    trials = Trials(range(4), 5)
    rounds: list[list[float]] = []
    for step in range(4 * 2 * 6):
        if trials.note(1.0 + step / 10):
            rounds.append(trials.medians())
    assert rounds == [pytest.approx([rounds[0][0]] * 4, abs=1e-12)]


def test_the_first_step_of_a_turn_does_not_count() -> None:
    trials = Trials(range(3), 4)
    before = [0]

    def seconds(way: int, step: int) -> float:
        switched, before[0] = way != before[0], way
        return 100.0 if switched else 1.0 - way / 10

    decided(trials, seconds)
    assert trials.left == [2]


def test_one_way_is_decided() -> None:
    trials = Trials([3], 5)
    assert trials.decided
    assert trials.way == 3
