"""Ways to send gradients, tried in the first steps: all ranks decide alike, and results stay as they are."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ringcore
import ringcore_torch as ring
import torch
from ringcore import adapter
from ringcore_torch import optimizer
from ringcore_torch.buckets import dealing
from ringcore_torch.tuning import Sending, ways
from support.on_ranks import IN_A_RANK, TWO, TWO_OVER_TCP, Start, on

# Results do not depend on buckets there.
THREE_IN_ORDER = Start(3, "tcp", variables=(("RINGCORE_DETERMINISTIC", "1"),))
WAYS = ["static", "a", "b", "c"]


@pytest.fixture
def settings(shared_folder: Path) -> Iterator[Callable[..., None]]:
    """Changes settings; what is chosen is kept in the test's own folder."""
    if not IN_A_RANK:
        yield lambda **_: None
        return
    current = adapter.context()
    before = current.settings

    def change(**values: Any) -> None:
        current.settings = dataclasses.replace(current.settings, **values)

    change(autotune=True, autotune_file=str(shared_folder / "tuned.json"), autotune_steps_per_sample=2)
    yield change
    current.settings = before


class Job:
    """Steps of which it is known how long they take.

    Args:
        seconds: Of a step, by the way it is done.
    """

    def __init__(self, name: str, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.done: list[str] = []
        self.used = [WAYS[0]]
        self.tuner = adapter.Tuner(
            name, WAYS, self.used.append, process_set=ringcore.global_process_set, shape="of a test",
            clock=lambda: self.now,
        )  # fmt: skip

    def step(self) -> None:
        """One, in the way that is asked for."""
        self.done.append(self.used[-1])
        self.now += self.seconds[self.used[-1]]
        self.tuner.after_step()

    def decide(self) -> str:
        """Until the trials are over."""
        self.step()
        while not self.tuner.decided:
            self.step()
            assert len(self.done) < 1000
        assert self.tuner.way == self.used[-1]
        return self.tuner.way


def seconds(**others: float) -> dict[str, float]:
    return {**dict.fromkeys(WAYS, 1.0), **others}


def same_on_all_ranks(value: Any) -> bool:
    return len({json.dumps(each) for each in ringcore.allgather_object(value)}) == 1


@on(TWO)
def test_all_ranks_take_what_is_the_quickest_by_the_slowest_of_them(settings: Callable[..., None]) -> None:
    # On rank 0 "a" is the quickest by far.
    job = Job("slowest", seconds(a=(0.1, 2.0)[ring.rank()], b=(0.7, 0.8)[ring.rank()]))
    assert job.decide() == "b"
    assert same_on_all_ranks(job.done)
    assert set(job.done) == set(WAYS)


@on(TWO)
def test_what_was_chosen_is_tried_first_by_the_next_job(settings: Callable[..., None]) -> None:
    assert Job("first", seconds(b=0.5)).decide() == "b"
    again = Job("again", seconds(b=0.5))
    assert again.decide() == "b"
    assert set(again.done) == {"static", "b"}
    # Another network, where it is not the quickest any more: everything is tried.
    changed = Job("changed", seconds(b=1.5, c=0.5))
    assert changed.decide() == "c"
    assert Job("static", seconds(b=1.5, c=1.5)).decide() == "static"
    of_static = Job("of static", seconds())
    of_static.decide()
    assert set(of_static.done) == {"static"}


@on(TWO)
def test_where_steps_take_longer_than_they_did_everything_is_tried_again(settings: Callable[..., None]) -> None:
    job = Job("longer", seconds(a=0.5))
    assert job.decide() == "a"
    steps = len(job.done)
    for _ in range(1000):
        job.step()
    assert set(job.done[steps:]) == {"a"}
    job.seconds = seconds(a=2.0, c=0.9) if ring.rank() == 1 else seconds(a=0.5, c=0.9)
    for _ in range(1000):
        job.step()
    assert same_on_all_ranks(job.done)
    assert job.tuner.decided
    assert job.tuner.way == "c"


@on(TWO)
def test_a_rank_that_joins_before_the_other_ends_the_trials(settings: Callable[..., None]) -> None:
    job = Job("join", seconds(a=0.5))
    for _ in range(9 if ring.rank() == 0 else 60):
        job.step()
    ring.join()
    for _ in range(3):
        job.step()
    assert job.used[-1] == "static"
    assert same_on_all_ranks(job.done[-2:])


@on(TWO)
def test_a_log_of_what_was_measured(settings: Callable[..., None], shared_folder: Path) -> None:
    settings(autotune_log_file=str(shared_folder / "log.csv"))
    Job("log", seconds(c=0.5)).decide()
    if ring.rank() == 0:
        lines = (shared_folder / "log.csv").read_text().splitlines()
        assert lines[0].split(",") == ["log", "round", "static", "1.000000"]
        assert lines[-1].split(",") == ["log", "decided", "c", "0.500000"]


@on(TWO)
def test_a_file_that_cannot_be_used_does_not_matter(settings: Callable[..., None], shared_folder: Path) -> None:
    for content in ("", "[]", '{"x": 1}', '{"of a test": []}'):
        (shared_folder / f"tuned{ring.rank()}.json").write_text(content)
        settings(autotune_file=str(shared_folder / f"tuned{ring.rank()}.json"))
        assert Job("spoilt", seconds(a=0.5)).decide() == "a"
    settings(autotune_file="/proc/none/tuned.json")
    assert Job("nowhere", seconds(a=0.5)).decide() == "a"


@on(TWO)
def test_a_user_without_a_home_keeps_nothing(
    settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def raise_as_python_does() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", raise_as_python_does)
    settings(autotune_file=None)
    assert Job("homeless", seconds(a=0.5)).decide() == "a"


@on(TWO)
def test_an_optimizer_that_another_one_has_replaced_averages_nothing_in_other_buckets_either() -> None:
    model = torch.nn.Linear(3, 2)
    replaced = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    wrapped = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    replaced.send(Sending(1000, overlaps=True))
    model(torch.ones(1, 3)).sum().backward()
    wrapped.step()
    assert all(bucket.handle is None and not bucket.touched for bucket in replaced._ring.buckets)


def train(model: torch.nn.Module, overlap: Any, steps: int) -> tuple[Any, set[tuple[int, bool, bool]]]:
    """The optimizer, and all ways in which it has sent gradients: how many buckets, when, and whether in one order."""
    wrapped: Any = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model.named_parameters(), overlap=overlap
    )
    batches = torch.Generator().manual_seed(ring.rank())
    seen = set()
    for step in range(steps):
        wrapped.zero_grad(set_to_none=step % 3 != 0)
        model(torch.randn(2, 100, generator=batches)).square().mean().backward()
        wrapped.step()
        buckets = wrapped._ring.buckets
        seen.add((len(buckets), wrapped._ring.overlaps, all(bucket.priority == 0 for bucket in buckets)))
    return wrapped, seen


@on(TWO_OVER_TCP, THREE_IN_ORDER)
@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_training_is_the_same_while_ways_are_tried(
    overlap: str, settings: Callable[..., None], equal_on_all_ranks: Callable[..., bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for module, name in ((dealing, "_FIRST_BUCKET"), (dealing, "_BUCKET"), (optimizer, "SOONER_BUCKET")):
        monkeypatch.setattr(module, f"{name}_BYTES", 100_000)
    settings(autotune_steps_per_sample=1)
    model = torch.nn.Sequential(*(torch.nn.Linear(100, 100) for _ in range(8)), torch.nn.Linear(100, 2))
    plain = copy.deepcopy(model)
    tuned, seen = train(model, overlap, 60)
    assert tuned._tuner is not None
    assert len({number for number, _, _ in seen}) >= 3
    assert len({overlaps for _, overlaps, _ in seen}) == 2
    assert {in_order for _, _, in_order in seen} == ({True, False} if overlap == "backward" else {False})
    settings(autotune=False)
    without, _ = train(plain, overlap, 60)
    assert without._tuner is None
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(own, other)
    assert equal_on_all_ranks(model.parameters())


@pytest.mark.parametrize(("over_tcp", "has_order"), [(True, False), (True, True), (False, False)])
def test_more_than_two_buckets_are_sent_at_once_where_that_makes_a_difference(over_tcp: bool, has_order: bool) -> None:
    parameters = [torch.empty(1 << 18, device="meta") for _ in range(16)]
    usual = Sending(2 << 20, overlaps=True)
    tried = ways(parameters, None, usual, over_tcp=over_tcp, has_order=has_order)
    assert tried[0] == usual
    at_once = [way for way in tried if way.at_once]
    assert all(way.overlaps for way in at_once)
    # All in one bucket is one of the ways, too.
    assert len(at_once) == (len({way.bucket_bytes for way in tried}) - 1 if over_tcp and not has_order else 0)


@pytest.mark.parametrize(("mib", "usual"), [(0.5, 1), (8, 1), (100, 12.5), (1000, 25)])
def test_what_is_sent_behind_backward_is_a_small_part_of_all(mib: float, usual: float) -> None:
    parameters = [torch.empty(int(mib * (1 << 17)), device="meta") for _ in range(2)]
    assert dealing.usual_bucket_bytes(parameters) == usual * (1 << 20)


@on(TWO)
def test_where_nothing_can_be_tried(settings: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(3, 2)

    def wrapped(**options: Any) -> Any:
        return ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
        )  # fmt: skip

    for _ in range(2):
        assert wrapped(error_feedback=True, compression=ring.Compression.int8)._tuner is None
    assert caplog.text.count("error_feedback keeps what is lost") == 1
    wrapped(op=ring.Adasum)
    wrapped(compression=ring.Compression.topk(0.1))
    assert caplog.text.count("sends in a way of its own") == 2
