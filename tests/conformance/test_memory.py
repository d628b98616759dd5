"""Calls leave nothing behind, in any adapter: written once, in the way of the suite beside this."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks

from conformance.adapters import ADAPTERS
from conformance.memory import SIZES, VERBS
from conformance.test_conformance import INSTALLED, marked


def call_again_and_again(adapter_name: str, asked: list[str]) -> dict:
    import gc

    from conformance.adapters import load
    from conformance.memory import SIZES, VERBS, WITHOUT_SMALL, grown, has

    ringcore.init()
    adapter = load(adapter_name)
    gc.disable()  # what it would have to find is held for too long
    sizes = [size for size in asked if size != "small" or adapter_name not in WITHOUT_SMALL]
    return {f"{verb}-{size}": grown(adapter, verb, size) for verb in VERBS if has(adapter, verb) for size in sizes}


# In each run one adapter stands for the others, and a size of which few calls tell.
IN_EACH_RUN = ("torch", "shm", "bucketed")
LONG = [(name, "shm", *SIZES) for name in INSTALLED if name in ADAPTERS] + [("numpy", "tcp", *SIZES)]
JOBS = [*([IN_EACH_RUN] if "torch" in INSTALLED else []), *LONG]


# One start of the ranks serves all verbs.
@pytest.fixture(scope="module", params=marked(JOBS, LONG), ids="-".join)
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    adapter, transport, *sizes = request.param
    directory = tmp_path_factory.mktemp(f"{adapter}-{transport}")
    results = ranks.run(call_again_and_again, 2, directory, adapter, sizes, env={"RINGCORE_TRANSPORT": transport})
    assert f"allreduce-{sizes[-1]}" in results[0]
    return results


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", VERBS)
def test_calls_leave_nothing_behind(reports: list[dict], verb: str, size: str) -> None:
    for rank, report in enumerate(reports):
        for what, excess in report.get(f"{verb}-{size}", {}).items():
            assert excess <= 0, f"rank {rank}: {excess} {what} too many after {SIZES[size][1]} times {verb}"


def results_that_know_their_handles() -> list[bool]:
    import gc
    import weakref

    class Array(np.ndarray):
        pass

    ringcore.init()
    collected = []
    for wait in (True, False):
        array = np.ones(3, np.float32).view(Array)
        array.handle = ringcore.allreduce_async_(array)
        if wait:
            ringcore.synchronize(array.handle)
        while not ringcore.poll(array.handle):
            pass
        known = weakref.ref(array)
        del array
        gc.collect()
        collected.append(known() is None)
    return collected


def test_a_result_that_refers_to_its_handle_is_collected(tmp_path: Path) -> None:
    assert ranks.run(results_that_know_their_handles, 2, tmp_path) == [[True, True]] * 2
