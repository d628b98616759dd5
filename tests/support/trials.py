"""Steps of which it is known how long they take, so that it is known which way of sending gradients trials choose."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ringcore
from ringcore import adapter
from ringcore.adapter import dealings, gradients

MOST_STEPS = 90
STEPS_AGAIN = 30  # where something was kept
# Of a bucket; the tests' gradients are several times as large.
BUCKET_BYTES = 4000


class Trials:
    """Lets an adapter try ways, of which one is said to be quicker than all others.

    Args:
        monkeypatch: Undoes it.
        folder: Where rank 0 keeps what was chosen.
        quickest: What the way's text ends with.

    Attributes:
        steps: The texts of the ways, step by step.
        made: By the text of a way, how many operations its steps have made.
        tuners: That were made since.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, quickest: str) -> None:
        self.steps: list[str] = []
        self.made: dict[str, set[int]] = {}
        self.tuners: list[Any] = []
        current = adapter.context()
        settings = dataclasses.replace(
            current.settings, autotune=True, autotune_file=str(folder / "tuned.json"), autotune_steps_per_sample=2,
            autotune_warmup_samples=1,
        )  # fmt: skip
        monkeypatch.setattr(current, "settings", settings)
        monkeypatch.setattr(gradients, "BUCKET_BYTES", BUCKET_BYTES)
        monkeypatch.setattr(dealings, "_made", {})
        trials = self

        class Timed(adapter.Tuner[Any]):
            """Its clock tells what the steps are said to take."""

            def __init__(self, *args: Any, **options: Any) -> None:
                self.now = 0.0
                self.before: int | None = None
                super().__init__(*args, clock=lambda: self.now, **options)
                trials.tuners.append(self)

            def begin_step(self) -> int:
                """See there."""
                if self.before is not None:
                    made = ringcore.statistics()["operations"] - self.before
                    trials.made.setdefault(str(self.way), set()).add(made)
                index = super().begin_step()
                self.before = ringcore.statistics()["operations"]  # behind what the ranks have agreed on
                self.now += 0.5 if str(self.way).endswith(quickest) else 1.0
                trials.steps.append(str(self.way))
                return index

        monkeypatch.setattr(dealings, "Tuner", Timed)


def check_trials(
    train: Callable[[int], Any], folder: Path, quickest: str, *, ways: int, same_bits: bool = True
) -> None:  # fmt: skip
    """Ways are tried, the quickest is chosen, on all ranks alike, and the next job begins with it.

    Args:
        train: Makes so many steps of the same training, from its beginning, and returns all that it has learnt as
            something that compares equal where the bits are.
        folder: The same on all ranks.
        quickest: What the text of the way ends with that is said to be quicker than all others.
        ways: How many there are.
        same_bits: Whether the ways give the same.
    """
    expected = train(MOST_STEPS)
    with pytest.MonkeyPatch.context() as monkeypatch:
        first = Trials(monkeypatch, folder, quickest)
        found = train(MOST_STEPS)
    (tuner,) = first.tuners
    assert tuner.decided
    assert str(tuner.way).endswith(quickest)
    assert len(first.steps) % MOST_STEPS == 0  # Keras on JAX sends what it accumulates in each pass
    assert len(set(first.steps)) == ways
    assert first.made == {str(way): {len(way.buckets)} for way in tuner._ways}
    assert found == expected or not same_bits
    with pytest.MonkeyPatch.context() as monkeypatch:
        again = Trials(monkeypatch, folder, quickest)
        train(STEPS_AGAIN)
    assert again.tuners[0].decided
    assert set(again.steps) == {first.steps[0], str(tuner.way)}
    for told in (first.steps, again.steps, found):
        everywhere = ringcore.allgather_object(told)
        assert all(other == everywhere[0] for other in everywhere)
    if ringcore.rank() == 0:
        (kept,) = json.loads((folder / "tuned.json").read_text()).values()
        assert kept["way"] == str(tuner.way)
