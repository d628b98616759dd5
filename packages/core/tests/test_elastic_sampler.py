"""`ringcore.elastic.ElasticSampler`: each sample once an epoch, whoever comes and goes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ringcore.elastic import ElasticSampler, sampler


class Job:
    """Ranks in one process: whoever is asked is the present one."""

    def __init__(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members = list(range(size))
        self.place = 0
        self.dropped = 0
        monkeypatch.setattr(sampler, "followed", self._followed)

    def _followed(self) -> SimpleNamespace:
        return SimpleNamespace(
            rank=self.members.index(self.place), size=len(self.members), members=list(self.members),
            dropped_steps=self.dropped,
        )  # fmt: skip

    def each(self, act: Callable[[int], Any]) -> dict[int, Any]:
        """What each member does, in turns."""
        found = {}
        for place in list(self.members):
            self.place = place
            found[place] = act(place)
        return found


@pytest.mark.parametrize("seed", range(60))
def test_each_sample_is_used_once_whoever_comes_and_goes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    count, batch = chance.randrange(60), chance.choice([1, 2, 3, 8])
    job = Job(chance.randrange(1, 6), monkeypatch)
    samplers = job.each(lambda _: ElasticSampler(range(count), seed=seed))
    for epoch in range(2):
        used: Counter[int] = Counter()
        job.each(lambda place, epoch=epoch: samplers[place].set_epoch(epoch))
        loops = job.each(lambda place: samplers[place].batches(batch))
        while True:
            left = job.each(lambda place: samplers[place].batches_left(batch))
            batches = job.each(lambda place, loops=loops: next(loops[place], None))
            assert set(left.values()) == {0} or (None not in batches.values() and 0 not in left.values())
            if None in batches.values():
                assert set(batches.values()) == {None}, "as many steps on all ranks"
                break
            _check_sizes(list(batches.values()), batch)
            event = chance.choice(["none"] * 6 + ["loss", "drop", "commit", "join"])
            if event == "loss" and len(job.members) > 1:
                job.members.remove(chance.choice(job.members))
            if event == "drop":  # with a rank, or without one: a step that was under way is of nobody
                job.dropped += 1
            else:
                used.update(sample for place in job.members for sample in batches[place])
            if event in ("commit", "join"):
                job.each(lambda place: samplers[place].record())
                kept = job.each(lambda place: samplers[place].state_dict())
                assert all(state == kept[job.members[0]] for state in kept.values())
                assert kept[job.members[0]]["processed_num"] == sum(used.values())
                if event == "join":
                    job.members.append(max(samplers) + 1)
                    samplers[job.members[-1]] = None
                # All go on from there, with another one.
                state = next(iter(kept.values()))
                samplers.update(job.each(lambda _: ElasticSampler(range(count), seed=seed)))
                job.each(lambda place, state=state: samplers[place].load_state_dict(state))
                loops = job.each(lambda place: samplers[place].batches(batch))
        assert used == Counter(range(count))


def _check_sizes(batches: list[list[int]], batch: int) -> None:
    sizes = list(map(len, batches))
    assert max(sizes) <= (batch if batch > 1 else 2)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) > 0 or sum(sizes) < len(batches)


def test_a_loader_s_steps_are_of_those_who_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(3, monkeypatch)
    one = ElasticSampler(range(12), shuffle=False)
    assert list(one) == [0, 3, 6, 9] and len(one) == 4
    one.record_batch(0, 2)
    assert one.state_dict() == {"epoch": 0, "processed_num": 6, "again": []}
    job.members.remove(2)
    one.record_batch(1, 1)  # the samples 6, 7 and 8: the last one has gone with its rank
    assert one.state_dict() == {"epoch": 0, "processed_num": 8, "again": [8]}
    one.reset()
    assert one.remaining_indices == [8, 9, 10, 11] and list(one) == [8, 10]
    one.load_state_dict({"epoch": 1, "processed_num": 9})  # of a version that had nothing to repeat
    assert list(one) == [9, 11] and one.processed_num == 9
