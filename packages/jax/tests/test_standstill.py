"""A rank that others wait for, and that goes on in the end, is no deadlock, however long XLA takes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support import ranks

LONG_S = 3.0  # longer than it takes until a deadlock is told


def come_late(way: str, long_s: float) -> list[float]:
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    ring.init()

    sums = {}

    def reduce(name: str) -> None:
        sums[name] = np.asarray(jax.jit(lambda values: ring.allreduce(values, op=ring.Sum, name=name))(jnp.ones(5)))

    def compute() -> None:
        """One program of XLA, for so long."""
        loop = jax.jit(lambda turns: jax.lax.fori_loop(0, turns, lambda _, m: m @ m, jnp.eye(256)))
        turns, begin, end = 1, 0.0, 0.0
        while end - begin < long_s:
            turns *= 4
            begin = time.monotonic()
            loop(turns).block_until_ready()
            end = time.monotonic()

    def sleep() -> None:
        """Inside a program of XLA, which asks Python."""
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        jax.jit(lambda: jax.pure_callback(lambda: (time.sleep(long_s), np.float32(0))[1], shape))().block_until_ready()

    if ring.rank() == 0:
        reduce("late")
        reduce("early")
    else:
        early = threading.Thread(target=reduce, args=("early",))
        early.start()
        {"computes": compute, "sleeps": sleep}[way]()
        reduce("late")
        early.join()
    return [*sums["late"].tolist(), *sums["early"].tolist()]


@pytest.mark.parametrize("way", [pytest.param("computes", marks=pytest.mark.long), "sleeps"])
def test_a_rank_that_comes_late_is_waited_for(way: str, tmp_path: Path) -> None:
    assert ranks.run(come_late, 2, tmp_path, way, LONG_S) == [[2.0] * 10] * 2
