"""Ranks of an elastic job end: the others go on in their processes, with the sums of those who are left."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.rank import mark, reduce_until_lost

# What differs between transports is the engine's own, whose tests have all of them.
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
# Whoever goes on does so many steps more.
STEPS_AFTER = 3


def trains(elements: int, steps_after: int, goes_back: bool = True) -> dict:
    """Sums of what tells whose it is, until some steps after a loss."""
    from ringcore.job.state import context

    ringcore.init()
    context().runtime.fail_on_change(goes_back)
    first_rank, heard = ringcore.rank(), []
    ringcore.on_membership_change(lambda: heard.append([ringcore.rank(), ringcore.size()]))
    pair = ringcore.add_process_set([0, ringcore.size() - 1])
    step, last, errors, sums = 0, None, [], []
    while last is None or step < last:
        try:
            tensor = np.full(elements, 10.0**first_rank, np.float64)
            ringcore.allreduce_(tensor, op=ringcore.Sum, name="gradient")
            small = ringcore.allreduce(np.array([1.0]), op=ringcore.Sum, name="loss")
            step += 1
            assert (tensor == tensor[0]).all()
            sums.append([float(tensor[0]), float(small[0])])
            if heard and last is None:
                # In this step somebody was lost, and nobody was told.
                last, sums = step + steps_after, []
            if step == 2:
                mark("ready")
        except ringcore.MembershipChangedError as error:
            errors.append(str(error))
            # Some have ended a step that others have not.
            step = int(ringcore.allreduce(np.array([step]), op=ringcore.Min, name="step")[0])
            last, sums = step + steps_after, []
    outcome = {
        "place": [ringcore.rank(), ringcore.size(), ringcore.local_rank(), ringcore.local_size()],
        "heard": heard,
        "errors": errors,
        "sums": sums,
        "pair": [pair.ranks, None],
    }
    if pair.included():
        outcome["pair"][1] = float(ringcore.allreduce(np.array([1.0]), op=ringcore.Sum, process_set=pair)[0])
    ringcore.shutdown()
    return outcome


def check_that_others_went_on(outcomes: list[ranks.Outcome], lost: int, *, told: bool = True) -> None:
    others = [outcome for outcome in outcomes if outcome.rank != lost]
    for rank, outcome in enumerate(others):
        assert outcome.exit_code == 0, outcome.stderr
        result = outcome.result
        assert result["place"] == [rank, len(others), rank, len(others)]
        assert result["heard"] == [[rank, len(others)]]
        assert len(result["errors"]) == told
        for error in result["errors"]:
            assert f"rank {lost} " in error
            assert f"with {len(others)} of {len(outcomes)} ranks" in error
            assert "Remedy" in error
        assert result["sums"] == [[sum(10.0**other.rank for other in others), len(others)]] * STEPS_AFTER
        pair = [index for index, other in enumerate(others) if other.rank in (0, len(outcomes) - 1)]
        assert result["pair"] == [pair, len(pair) if rank in pair else None]


@TRANSPORTS
@pytest.mark.parametrize("elements", [pytest.param(1000, marks=pytest.mark.long), 8 << 20])
def test_a_rank_is_killed_and_the_others_go_on_in_their_processes(
    tmp_path: Path, transport: str, elements: int
) -> None:
    env = {"RINGCORE_ELASTIC": "1", "RINGCORE_TRANSPORT": transport}
    with ranks.started(trains, 4, tmp_path, elements, STEPS_AFTER, env=env) as job:
        job.await_mark("ready", 0, 1, 2, 3)
        job.signal(2, signal.SIGKILL)
        outcomes = job.wait()
    check_that_others_went_on(outcomes, lost=2)


@TRANSPORTS
def test_whoever_does_not_go_back_is_not_told_and_loses_nothing(tmp_path: Path, transport: str) -> None:
    env = {"RINGCORE_ELASTIC": "1", "RINGCORE_TRANSPORT": transport}
    with ranks.started(trains, 4, tmp_path, 1000, STEPS_AFTER, False, env=env) as job:
        job.await_mark("ready", 0, 1, 2, 3)
        job.signal(2, signal.SIGKILL)
        outcomes = job.wait()
    check_that_others_went_on(outcomes, lost=2, told=False)


def test_one_of_two_goes_on_where_it_sees_that_the_other_has_ended(tmp_path: Path) -> None:
    env = {"RINGCORE_ELASTIC": "1", "RINGCORE_TRANSPORT": "shm"}
    with ranks.started(trains, 2, tmp_path, 1 << 20, STEPS_AFTER, env=env) as job:
        job.await_mark("ready", 0, 1)
        job.signal(0, signal.SIGKILL)
        outcomes = job.wait()
    check_that_others_went_on(outcomes, lost=0)


def test_a_stopped_rank_of_this_host_is_ended_before_the_others_go_on(tmp_path: Path) -> None:
    env = {"RINGCORE_ELASTIC": "1", "RINGCORE_TRANSPORT": "shm", "RINGCORE_HEARTBEAT_S": "1"}
    with ranks.started(trains, 3, tmp_path, 1 << 20, STEPS_AFTER, env=env) as job:
        job.await_mark("ready", 0, 1, 2)
        job.signal(1, signal.SIGSTOP)
        outcomes = job.wait()
    assert outcomes[1].exit_code == -signal.SIGKILL
    check_that_others_went_on(outcomes, lost=1)


def loses_most(elements: int) -> dict:
    ringcore.init()
    error = reduce_until_lost(elements, "gradient")
    ringcore.shutdown()
    return error


def test_whoever_cannot_tell_that_the_other_has_ended_does_not_go_on(tmp_path: Path) -> None:
    env = {"RINGCORE_ELASTIC": "1", "RINGCORE_TRANSPORT": "tcp", "RINGCORE_ELASTIC_TIMEOUT_S": "1"}
    with ranks.started(loses_most, 2, tmp_path, 1 << 16, env=env) as job:
        job.await_mark("ready", 0, 1)
        job.signal(1, signal.SIGKILL)
        outcomes = job.wait()
    assert outcomes[0].exit_code == 0, outcomes[0].stderr
    error = outcomes[0].result
    assert error["type"] == "EvictedError", error
    assert "rank 1" in error["message"]
    assert "Remedy" in error["message"]


def counts_samples(count: int, batch: int, losses: dict[str, int]) -> dict:
    """Each step tells all whose samples it is made of; ranks end in some steps, before and after their sum."""
    from ringcore.elastic import ElasticSampler

    ringcore.init()
    place, steps, heard = ringcore.rank(), 0, []
    ringcore.on_membership_change([].pop)
    ringcore.on_membership_change(lambda: heard.append(ringcore.size()))
    sampler = ElasticSampler(range(count))
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        used = np.zeros(count)
        for samples in sampler.batches(batch):
            if losses.get(f"before {steps}") == place:
                os.kill(os.getpid(), signal.SIGKILL)
            own = np.zeros(count)
            own[samples] = 1.0
            used += ringcore.allreduce(own, op=ringcore.Sum, name="gradient")
            if losses.get(f"behind {steps}") == place:
                os.kill(os.getpid(), signal.SIGKILL)
            steps += 1
        epochs.append(used.tolist())
    ringcore.shutdown()
    return {"epochs": epochs, "steps": steps, "heard": heard}


def test_each_sample_is_used_once_though_ranks_are_lost(tmp_path: Path) -> None:
    losses = {"before 2": 4, "behind 5": 0, "before 7": 2}  # in the last step of the first epoch, and in others
    with ranks.started(counts_samples, 5, tmp_path, 23, 2, losses, env={"RINGCORE_ELASTIC": "1"}) as job:
        outcomes = job.wait()
    others = [outcome for outcome in outcomes if outcome.rank not in losses.values()]
    for outcome in others:
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.result["epochs"] == [[1.0] * 23] * 3
        assert outcome.result["heard"] == [4, 3, 2]
        # A function that fails is told of, and those behind it are called.
        assert "a function of on_membership_change has failed" in outcome.stderr
        assert "pop from empty list" in outcome.stderr
    assert others[0].result["steps"] == others[1].result["steps"]


def part_with_rank_0() -> dict:
    """Rank 0 leaves while the others are on their way to what they do behind that; rank 3 is killed, if at all."""
    from ringcore.job.members import part_with
    from ringcore.job.state import context

    ringcore.init()
    place = ringcore.rank()
    context().runtime.fail_on_change(True)
    ringcore.barrier()
    if place == 3:
        mark("ready")
        await_mark("never", 3)
    if place == 2:
        await_mark("test", "test")  # it has yet to hear what the others have agreed on
        error = caught(ringcore.allreduce, np.ones(1), name="news")
    else:
        mark("ready")
        error = caught(part_with, [0])
    total = ringcore.allreduce(np.ones(1), op=ringcore.Sum, name="step")
    outcome = {"error": error, "place": [ringcore.rank(), ringcore.size()], "total": float(total[0])}
    ringcore.shutdown()
    return outcome


def test_who_goes_on_without_others_that_leave_goes_back_if_another_rank_has_to(tmp_path: Path) -> None:
    with ranks.started(part_with_rank_0, 4, tmp_path, env={"RINGCORE_ELASTIC": "1"}) as job:
        job.await_mark("ready", 0, 1, 3)
        job.signal(3, signal.SIGKILL)
        job.mark("test")
        outcomes = job.wait()
    for rank, outcome in enumerate(outcomes[:3]):
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.result["error"]["type"] == "MembershipChangedError", outcome.result
        assert outcome.result["place"] == [rank, 3] and outcome.result["total"] == 3.0
