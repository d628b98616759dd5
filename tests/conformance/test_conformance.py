"""Runs the cases through each installed adapter, over shared memory and TCP, on two and three ranks.

Through the engine alone in every pair of these, as transports and ranks are its own matter.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import ringcore
from support import mpis, ranks
from support.gpu import double_environ
from support.namespaces import namespaces, place_ranks
from support.processes import ENCRYPTED

from conformance.adapters import ADAPTERS, GPUS, LACKS, ON_GPUS, VARIANTS
from conformance.cases import CASES


def marked(jobs: list[tuple], long: list[tuple]) -> list:
    return [pytest.param(job, marks=pytest.mark.long) if job in long else job for job in jobs]


def is_here(modules: tuple[str, ...]) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in modules)


INSTALLED = [name for name, modules in {**ADAPTERS, **VARIANTS}.items() if is_here(modules)]
JOBS = [(adapter, "shm", 2) for adapter in INSTALLED]
JOBS += [(adapter, "tcp", 3) for adapter in INSTALLED if adapter in ADAPTERS]
JOBS += [("numpy", "shm", 3), ("numpy", "tcp", 2), ("numpy", "tls", 3)]
if not ENCRYPTED:  # which MPI does not do
    JOBS += [("numpy", name, size) for name in mpis.ALL for size in (2, 3) if size == 2 or name == "MPICH"]
# Two ranks on each of two hosts: shared memory inside, the network between.
JOBS += [("numpy", "hosts", 4)]
JOBS += [("gpu", "shm", 2), ("gpu", "shm", 3), ("gpu_shared", "shm", 2), ("gpu_shared", "tcp", 3)]
if int(os.environ.get("RINGCORE_TEST_GPUS", "8")) > 1:
    JOBS += [("gpu_pairs", "shm", 4)]
if "RINGCORE_TEST_GPUS" not in os.environ:  # only the double can be told to lack something
    JOBS += [("gpu_by_host", "shm", 2), ("gpu_without_kernels", "shm", 2)]
JOBS += [(name, "shm", 2) for name, modules in ON_GPUS.items() if is_here(modules)]
# In each run others stand for these: what differs between transports is the engine's own, and is seen through NumPy,
# with TLS between its hosts; the ways of a framework to make tensors and programs are in the tests of its adapter.
LONG = [
    *(("numpy", "shm", 3), ("numpy", "tcp", 2), ("numpy", "tls", 3), ("numpy", "MPICH", 3)),
    *(("numpy", name, 2) for name in mpis.ALL if name != "MPICH"),
    *(("gpu", "shm", 2), ("gpu_shared", "tcp", 3), ("gpu_pairs", "shm", 4), ("gpu_by_host", "shm", 2)),
    *((name, "shm", 2) for name in VARIANTS if name not in ("torch_strided", "keras")),
    *((name, "tcp", 3) for name in ADAPTERS if name != "numpy"),
]


def run_cases(adapter_name: str) -> dict:
    from conformance.on_rank import run_cases

    return run_cases(adapter_name)


# One start of the ranks serves all cases.
@pytest.fixture(scope="module", params=marked(JOBS, LONG), ids=lambda job: "-".join(map(str, job)))
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    adapter, transport, size = request.param
    if adapter in ON_GPUS and "RINGCORE_TEST_GPUS" not in os.environ:
        pytest.skip("there is no GPU here; nox -s gpu runs this where there is one")
    directory = tmp_path_factory.mktemp(f"{adapter}-{transport}-{size}")
    if transport in mpis.ALL:
        env = {"RINGCORE_TRANSPORT": "mpi"}
        results = mpis.installed(transport).run(run_cases, size, directory, adapter, env=env)
        transport = "mpi"
    elif transport == "hosts":
        with namespaces(2, sshd=False) as hosts:
            place = place_ranks(hosts, directory, each=2)
            results = ranks.run(run_cases, size, directory, adapter, **place)
    else:
        env = {"RINGCORE_TRANSPORT": transport, **(double_environ(**GPUS.get(adapter, {})) if "gpu" in adapter else {})}
        if transport == "tls":
            env |= {"RINGCORE_TRANSPORT": "tcp", "RINGCORE_ENCRYPTION": "on"}
        results = ranks.run(run_cases, size, directory, adapter, env=env)
    for rank, result in enumerate(results):
        if transport == "hosts":
            expected = ["shm" if peer // 2 == rank // 2 else "tls" for peer in range(size)]
        else:
            expected = ["tls" if transport == "tcp" and ENCRYPTED else transport] * size
        expected[rank] = "self"
        assert result.pop("transports") == expected
        assert set(result) == set(CASES) - LACKS[adapter]
    return results


@pytest.mark.parametrize("name", CASES)
def test_every_rank_gets_the_right_result(reports: list[dict], name: str) -> None:
    for rank, report in enumerate(reports):
        if name in report:
            assert report[name]["count"] > 0
            assert not report[name]["failures"], f"rank {rank}: {report[name]['failures']}"


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_get_the_same_bits(reports: list[dict], name: str) -> None:
    assert len({report[name]["digest"] for report in reports if name in report}) <= 1
