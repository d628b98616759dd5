"""What can never be had is refused before it is waited for; where ranks are placed, and which GPUs they see."""

from __future__ import annotations

import os
from typing import Any

import pytest
import ray
import ringcore_ray.train
from ray.train import ScalingConfig
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ringcore_ray import RingExecutor, RingTrainer
from ringcore_ray.room import may_grow
from support.processes import eventually


@pytest.fixture
def told() -> None:
    """Ray has begun to say that no autoscaler runs here."""
    eventually(lambda: may_grow() is False, "Ray's monitor says what it does", 120)


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_workers": 9}, r"9 times 1 CPU can never be had .* nodes have 4 CPU, 2 GPU, which is room for 4, and no"),
        ({"num_workers": 3, "cpus_per_worker": 3}, r"3 times 3 CPU can never be had .* room for 1,"),
        ({"num_workers": 3, "gpus_per_worker": 1}, r"3 times 1 CPU, 1 GPU can never be had .* room for 2,"),
        ({"num_hosts": 2}, r"2 times 1 CPU, each on a node of its own, can never be had"),
        ({"num_hosts": 1, "num_workers_per_host": 5}, r"1 times 5 CPU, each on .* room for 0,"),
        ({"min_workers": 5, "max_workers": 8}, r"5 times 1 CPU can never be had .* add nodes first \(ray start"),
    ],
)
def test_what_can_never_be_had_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TimeoutError, match=said):
        RingExecutor(**options, elastic_timeout_s=1).start()


def test_what_others_hold_is_waited_for() -> None:
    held = placement_group([{"CPU": 1}])
    assert held.wait(60)
    with pytest.raises(
        TimeoutError, match=r"no place for 4 bundle\(s\) of 1 CPU \(PACK\) within 1 s.* of which free: "
    ):
        RingExecutor(num_workers=4, placement_timeout_s=1).start()
    remove_placement_group(held)
    with RingExecutor(num_workers=4) as executor:
        assert len(executor.run(os.getpid)) == 4


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("workers", [2, (2, 4)])
@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"CPU": 3}, "2 times 3 CPU can never be had"),
        ({"CPU": 1, "licence": 1}, "2 times 1 CPU, 1 licence can never be had .* nodes have 4 CPU, 2 GPU, which is"),
    ],
)
def test_a_trainer_refuses_what_ray_train_would_ask_for_again_and_again(
    workers: int | tuple[int, int], resources: dict[str, float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ringcore_ray.train, "JOINING_S", 0.0)
    scaling = ScalingConfig(num_workers=workers, resources_per_worker=resources)
    with pytest.raises(TimeoutError, match=said):
        RingTrainer(print, scaling_config=scaling).fit()


def group_of_this_actor() -> str:
    return str(ray.util.get_current_placement_group().id.hex())


@ray.remote(num_cpus=0)
def in_a_group(kind: str) -> Any:
    """What executors do in a group with room for two ranks."""
    half: dict[str, Any] = {"cpus_per_worker": 0.5, "placement_timeout_s": 60}
    if kind == "too many":
        said = []
        for options in ({"num_workers": 3}, {"min_workers": 3}):
            with pytest.raises(TimeoutError) as caught:
                RingExecutor(**half, **options).start()
            said.append(str(caught.value))
        return said
    if kind == "elastic":
        with RingExecutor(**half, min_workers=2) as executor:
            return executor.run(rank_and_size)
    with RingExecutor(num_workers=2, use_current_placement_group=kind == "current", **half) as executor:
        return executor.run(group_of_this_actor)


def rank_and_size() -> tuple[int, int]:
    import ringcore as ring

    ring.init()
    return ring.rank(), ring.size()


@pytest.mark.long
def test_the_placement_group_of_an_actor_is_its_ranks_own_unless_another_one_is_wanted() -> None:
    group = placement_group([{"CPU": 0.5}] * 2)
    task = in_a_group.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group))
    try:
        assert ray.get(task.remote("current")) == [group.id.hex()] * 2
        (other,) = {*ray.get(task.remote("another"))}
        assert other != group.id.hex()
        assert ray.get(task.remote("elastic")) == [(0, 2), (1, 2)]
        for said in ray.get(task.remote("too many")):
            assert "3 times 0.5 CPU cannot be had in the placement group" in said
            assert "bundles are 2 times 0.5 CPU: there is room for 2" in said
    finally:
        remove_placement_group(group)


def gpus() -> tuple[list[str], list[str], int]:
    """This actor's own, those that it sees, and its local rank."""
    import ringcore as ring

    ring.init()
    own = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return own, os.environ["CUDA_VISIBLE_DEVICES"].split(","), ring.local_rank()


@pytest.mark.long
def test_local_ranks_are_indices_of_gpus() -> None:
    with RingExecutor(num_workers=2, gpus_per_worker=1) as executor:
        for _ in range(2):
            ranks = executor.run(gpus)
            assert sorted(gpu for own, _, _ in ranks for gpu in own) == ["0", "1"]
            assert [[seen[local]] for _, seen, local in ranks] == [own for own, _, _ in ranks]
            executor.restart()
    with RingExecutor(num_workers=2, gpus_per_worker=0.5) as executor:
        assert {tuple(seen) for _, seen, _ in executor.run(gpus)} == {("0",)}, "a GPU that ranks share is told once"
