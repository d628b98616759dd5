"""Who is a straggler, by what the ranks have told each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ringcore.elastic.stragglers import Stragglers
from ringcore.environment.straggler import Straggler

Found = tuple[int, Straggler]


def found(
    seconds_of: Callable[[int], list[float]], epoch_of: Callable[[int], int] = lambda _: 1
) -> list[tuple[int, Found]]:
    """Each straggler that is found, and in which step."""
    stragglers = Stragglers(2.0)
    told = ((step, stragglers.find(epoch_of(step), seconds_of(step))) for step in range(200))
    return [(step, straggler) for step, straggler in told if straggler is not None]


def test_a_rank_that_is_slow_in_each_step_is_found_with_figures() -> None:
    # The first step does not count: some have just come.
    step, (rank, straggler) = found(lambda _: [1.0, 1.5, 3.5, 1.0])[0]
    assert (step, rank, straggler) == (20, 2, Straggler(3.5, 1.0, 20))


def test_steps_that_take_no_time_are_looked_at_for_longer() -> None:
    step, (rank, straggler) = found(lambda _: [0.0125, 0.125])[0]
    assert (step, rank, straggler.steps) == (80, 1, 80)


def test_who_is_not_slow_enough_is_none() -> None:
    assert found(lambda _: [1.0, 1.9, 1.0]) == []
    assert found(lambda _: [1.0, 2.1, 1.0]) != []


def test_of_two_ranks_the_slower_one_is_compared_with_the_quicker_one() -> None:
    assert found(lambda _: [2.5, 1.0])[0][1] == (0, Straggler(2.5, 1.0, 20))
    assert found(lambda _: [1.0]) == [], "nobody waits for the only rank"


def test_who_evaluates_the_model_now_and_then_is_none() -> None:
    assert found(lambda step: [60.0 if step % 10 == 0 else 1.0, 1.0]) == []


def test_ranks_that_are_slow_in_turns_are_none() -> None:
    assert found(lambda step: [3.0 if step % 3 == rank else 1.0 for rank in range(3)]) == []


def test_the_slowest_of_several_is_the_first() -> None:
    assert found(lambda _: [1.0, 3.0, 1.0, 4.0, 1.0])[0][1][0] == 3


@pytest.mark.parametrize("period", [5, 19])
def test_when_somebody_comes_or_goes_all_begins_anew(period: int) -> None:
    assert found(lambda _: [1.0, 5.0], epoch_of=lambda step: step // period) == []


def test_the_same_on_all_ranks_whichever_has_come_late() -> None:
    stays, comes = Stragglers(2.0), Stragglers(2.0)
    for _ in range(10):
        stays.find(1, [1.0, 5.0])
    seen = [(stays.find(2, [1.0, 5.0, 1.0]), comes.find(2, [1.0, 5.0, 1.0])) for _ in range(60)]
    assert all(one == other for one, other in seen)
    assert [one[0] for one, _ in seen if one is not None] == [1, 1]
