"""What the C allocator keeps for the next backward pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ringcore.adapter import gradients

MIB = 1 << 20


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What glibc was told, in a process that has asked for nothing yet."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(gradients, "_kept_bytes", 0)
    monkeypatch.setattr(gradients._native, "keep_freed_memory", lambda *sizes: told.append(sizes))
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    return told


def test_the_largest_model_counts(kept: list[Any]) -> None:
    for gradient_bytes in (0, 100 * MIB, 10 * MIB, 0, 100 * MIB, 5000 * MIB):
        gradients.keep_freed_memory(gradient_bytes)
    assert kept == [(32 * MIB, 64 * MIB), (32 * MIB, 164 * MIB), (32 * MIB, 1024 * MIB)]


@pytest.mark.parametrize("is_newcomer", [False, True])
def test_who_comes_to_a_job_touches_memory_before_others_wait(
    kept: list[Any], monkeypatch: pytest.MonkeyPatch, is_newcomer: bool
) -> None:
    current = SimpleNamespace(is_newcomer=is_newcomer, touched_for_state=[], touched_for_step=[])
    monkeypatch.setattr(gradients, "is_initialized", lambda: True)
    monkeypatch.setattr(gradients, "context", lambda: current)
    gradients.keep_freed_memory(100 * MIB)
    assert kept
    for touched, copies in ((current.touched_for_step, 1), (current.touched_for_state, 2)):
        assert (100 * MIB < sum(map(len, touched)) / copies < 150 * MIB) == is_newcomer
        assert len({id(block) for block in touched}) == len(touched)


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_ARENA_MAX", "2"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1")]
)
def test_what_the_user_has_set_stays(kept: list[Any], monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    gradients.keep_freed_memory(100 * MIB)
    assert kept == []
