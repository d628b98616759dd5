"""The backend "ring" of torch.distributed, on ranks that are real processes of several launchers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.starts import Findings, on, read_findings, start, start_for

WORKER = Path(__file__).with_name("distributed_worker.py")
SUITE = str(Path(__file__).with_name("pytorch_suite.py"))
LIMIT_S = 110
ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1"}


def ringrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "ringcore", "run", "-np", str(ranks), sys.executable]


def output(command: list[str], **variables: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env={**ENVIRON, **variables}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


COLLECTIVES = ["reductions", "messages", "groups"]
BUILT_ON_IT = ["training", "sharding"]
two = start_for(WORKER, 2, "shm", *COLLECTIVES, *BUILT_ON_IT, "written_by_the_engine", "mistakes",
              "destroyed", "accelerated")  # fmt: skip
three = start_for(WORKER, 3, "shm", *COLLECTIVES, *BUILT_ON_IT, "beside_gloo")
tcp = start_for(WORKER, 3, "tcp", *COLLECTIVES)
# Ranks share a GPU where there is only one.
gpu = start_for(WORKER, 2, "shm", *COLLECTIVES, *BUILT_ON_IT, "mistakes", "streams", device="cuda")
one_gpu = start_for(WORKER, 1, "shm", *BUILT_ON_IT, "streams", device="cuda")


@on("two", "three", "tcp", "gpu")
@pytest.mark.parametrize("case", COLLECTIVES)
def test_collectives_messages_and_groups(results: Findings, case: str) -> None:
    for found in results[case]:
        assert all(found.values()), found


@on("two", "three", "gpu", "one_gpu")
@pytest.mark.parametrize("case", BUILT_ON_IT)
def test_what_pytorch_builds_on_it(results: Findings, case: str) -> None:
    for found in results[case]:
        assert all(found.values()), found


def test_the_engine_writes_to_outputs_itself(two: Findings) -> None:
    for found in two["written_by_the_engine"]:
        assert all(found.values()), found


@on("gpu", "one_gpu")
def test_streams(results: Findings) -> None:
    for found in results["streams"]:
        assert all(found.values()), found


@on("two", "gpu")
def test_mistakes_are_explained_and_the_group_goes_on(results: Findings) -> None:
    for rank, found in enumerate(results["mistakes"]):
        assert f"rank 0 sent 2 elements, and rank {rank} has an output of 3 for them; give" in found["outputs"]
        assert "MismatchError: 'torch.0.all_gather." in found["outputs"]
        assert "needs an output of 4 elements, not 3" in found["single"]
        assert "MismatchError" in found["shapes"] and "[2]" in found["shapes"] and "[3]" in found["shapes"]
        assert "pass src=" in found["any"]
        assert "are not 3 rows for 2 ranks" in found["splits"]
        assert "is on meta" in found["meta"]
        assert "the tensor has dtype torch.complex64; convert it to one of" in found["complex"]
        assert "needs an output on that device, not on meta" in found["devices"]
        assert "takes tensors of cpu and cuda, not of mps" in found["backend"]
        assert "of torch.float32 needs an output of that dtype, not torch.int32" in found["dtype"]
        assert "takes integers and bools" in found["floats"]
        refused = "InvalidArgument: " if rank == 1 else "rank 1 refused"
        assert all(refused in text for text in found["told"]), found["told"]
        assert found["after"] == 2.0
        if rank == 0:
            assert "TimeoutError: monitored_barrier: ranks [1] did not come within 0.2 s" in found["missing"]
            assert "TimeoutError: 'torch.0.1to0.tag9." in found["late"]
            assert "' has not ended on rank 0 within 0.1 s, and goes on; wait again" in found["late"]


def test_groups_are_destroyed_and_made_again(tmp_path: Path) -> None:
    def shared() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if "ringcore" in name}

    before = shared()
    done = start(WORKER, tmp_path, 2, "again")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [found["totals"] for found in read_findings(tmp_path, 2, "again")["again"]] == [[2.0] * 4] * 2
    assert shared() <= before


def test_futures_end_when_their_group_is_destroyed(two: Findings) -> None:
    for found in two["destroyed"]:
        for said in found.values():
            assert "ShutdownError" in said or "PeerLostError" in said, found


def test_groups_beside_a_default_group_of_gloo(three: Findings) -> None:
    for found in three["beside_gloo"]:
        assert all(found.values()), found


def test_accelerate_trains_as_with_gloo(two: Findings) -> None:
    for found in two["accelerated"]:
        assert all(found.values()), found


def test_under_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    output([*torchrun, str(WORKER), str(tmp_path), "reductions"])
    assert all(all(found.values()) for found in read_findings(tmp_path, 2, "reductions")["reductions"])


def test_groups_are_made_again_in_torchruns_store(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3"]
    case = "again_in_one_store"
    output([*torchrun, str(WORKER), str(tmp_path), case], RINGCORE_TIMEOUT_S="20")
    assert all(all(found.values()) for found in read_findings(tmp_path, 3, case)[case])


def test_without_a_launcher(tmp_path: Path) -> None:
    command = [sys.executable, str(WORKER), str(tmp_path), "groups"]
    environs = [{**ENVIRON, "TEST_PLACE": f"{rank} 3"} for rank in range(3)]
    ranks = [subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) for environ in environs]
    try:
        errors = [rank.communicate(timeout=LIMIT_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * 3, errors
    assert all(all(found.values()) for found in read_findings(tmp_path, 3, "groups")["groups"])


def test_import_torch_alone_loads_nothing_of_ringcore() -> None:
    code = (
        "import sys, torch; loaded = [name for name in sys.modules if name.startswith('ringcore_torch')]; "
        "backend = torch.distributed.Backend; print(loaded, backend.RING, backend.backend_capability['ring'])"
    )
    assert output([sys.executable, "-c", code]).strip() == "['ringcore_torch_backend'] ring ['cpu', 'cuda']"


def test_a_lost_rank_is_an_error_on_the_others(tmp_path: Path) -> None:
    script = tmp_path / "lost.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('ring')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "for step in range(10):\n"
        "    if step == 5 and dist.get_rank() == 1:\n"
        "        os.kill(os.getpid(), 9)\n"
        "    try:\n"
        "        model(torch.ones(2, 4)).sum().backward()\n"
        "    except RuntimeError as error:\n"
        "        print('LOST', error, flush=True)\n"
        "        os._exit(3)\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(script)], capture_output=True, text=True, timeout=LIMIT_S, check=False, env=ENVIRON
    )
    assert done.returncode != 0
    assert "LOST" in done.stdout and "rank 1" in done.stdout, done.stdout + done.stderr


def test_pytorchs_own_tests(tmp_path: Path) -> None:
    output([*ringrun(4), SUITE, str(tmp_path)])
    results = json.loads((tmp_path / "results.json").read_text())
    failed = {name: outcome for name, outcome in results.items() if outcome.startswith("failed")}
    assert not failed
    passed = [name for name, outcome in results.items() if outcome == "passed"]
    assert len(passed) >= 100, "PyTorch has renamed what the suite is made of"
    for name, outcome in results.items():
        # What is skipped needs a GPU, or PyTorch skips it for every backend.
        assert outcome == "passed" or "CUDA" in outcome or "github.com/pytorch" in outcome, (name, outcome)
