"""What ranks find in their environment, and what nobody must find there: the job's key."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import Pids, Ringrun

Script = Callable[..., str]
DUMP = "import json\nprint(json.dumps(dict(os.environ)))"


def environs_of(ringrun: Ringrun, script: Script, *words: str) -> list[dict[str, str]]:
    done = ringrun(*words, script(DUMP))
    assert done.returncode == 0, done.stderr
    lines = [line.partition("> ")[2] for line in sorted(done.stdout.splitlines())]
    return [json.loads(line) for line in lines]


def test_each_rank_gets_its_place_in_all_three_dialects(ringrun: Ringrun, script: Script) -> None:
    for rank, environ in enumerate(environs_of(ringrun, script, "-np", "2", "--job-id", "job-1")):
        for prefix in ("RINGCORE", "HOROVOD"):
            place = [
                environ[f"{prefix}_{name}"]
                for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
            ]
            assert place == [str(rank), "2", str(rank), "2", "0", "1"]
        assert environ["RINGCORE_JOB_ID"] == "job-1"
        assert environ["RINGCORE_RENDEZVOUS"].startswith("tcp:127.0.0.1:")
        expected = {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1", "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": "2", "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "job-1", "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "False",
        }  # fmt: skip
        assert {name: environ.get(name) for name in expected} == expected
        assert 0 < int(environ["MASTER_PORT"]) < 65536
        assert environ["TORCHELASTIC_ERROR_FILE"]


def test_all_ranks_have_the_same_master_port_and_job(ringrun: Ringrun, script: Script) -> None:
    one, other = environs_of(ringrun, script, "-np", "2")
    for name in ("MASTER_PORT", "RINGCORE_JOB_ID", "RINGCORE_RENDEZVOUS", "TORCHELASTIC_RUN_ID"):
        assert one[name] == other[name]


def test_a_given_master_port_is_used(ringrun: Ringrun, script: Script) -> None:
    (environ,) = environs_of(ringrun, script, "-np", "1", "--master-port", "12345", "--master-addr", "127.0.0.2")
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("127.0.0.2", "12345")


def test_threads_share_the_cores_unless_the_user_decides(ringrun: Ringrun, script: Script) -> None:
    from ringcore.launcher.agent import usable_cores

    cores = usable_cores()
    for size in (1, 2 * cores):
        done = ringrun("-np", str(size), "--verbose", script("print(os.environ['OMP_NUM_THREADS'])"))
        expected = str(max(1, cores // size))
        assert {line.split()[-1] for line in done.stdout.splitlines()} == {expected}
        assert f"OMP_NUM_THREADS={expected}" in done.stderr
    ringrun.environ["OMP_NUM_THREADS"] = "7"
    done = ringrun("-np", "2", "--verbose", script("print(os.environ['OMP_NUM_THREADS'])"))
    assert {line.split()[-1] for line in done.stdout.splitlines()} == {"7"}
    assert "OMP_NUM_THREADS" not in done.stderr


@pytest.mark.parametrize("options", [["--encryption", "off"], ["--encryption", "on"], []])
def test_whoever_asks_for_details_is_told_that_nothing_is_encrypted(
    ringrun: Ringrun, script: Script, options: list[str]
) -> None:
    done = ringrun("-np", "2", "--verbose", *options, script("pass"))
    assert ("RINGCORE_ENCRYPTION=off on" in done.stderr) == ("off" in options), done.stderr
    assert ("can read what ranks send" in done.stderr) == ("off" in options)


def test_an_outer_jobs_variables_do_not_leak_into_an_inner_job(ringrun: Ringrun, script: Script) -> None:
    ringrun.environ.update(
        RANK="5", WORLD_SIZE="9", RINGCORE_RENDEZVOUS="tcp:10.0.0.1:1", MASTER_PORT="1", RINGCORE_SIZE="9"
    )
    (environ,) = environs_of(ringrun, script, "-np", "1")
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["RINGCORE_SIZE"]) == ("0", "1", "1")
    assert environ["RINGCORE_RENDEZVOUS"] != "tcp:10.0.0.1:1" and environ["MASTER_PORT"] != "1"


READ_KEY = "key = os.pread(int(os.environ['RINGCORE_KEY_FD']), 99, 0)\n"


def test_ranks_inherit_a_key_of_32_bytes_that_differs_between_jobs(ringrun: Ringrun, script: Script) -> None:
    keys = [ringrun("-np", "2", script(READ_KEY + "print(key.hex())")).stdout.split() for _ in range(2)]
    assert keys[0][1] == keys[0][3] and len(keys[0][1]) == 64
    assert keys[0][1] != keys[1][1]


def test_the_key_is_in_no_argv_no_environment_and_no_file(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = script(READ_KEY + "open(f'key.{rank}', 'wb').write(key)\nwrite_pid(rank)\ntime.sleep(600)")
    temporary = ringrun.directory / "tmp"
    temporary.mkdir()
    ringrun.environ["TMPDIR"] = str(temporary)
    with ringrun.started("-np", "2", name) as process:
        everyone = [process.pid, *pids.wait(2).values()]
        key = (ringrun.directory / "key.0").read_bytes()
        for pid in everyone:
            for where in ("cmdline", "environ"):
                content = Path(f"/proc/{pid}/{where}").read_bytes()
                assert content and key not in content and key.hex().encode() not in content
        assert not [path for path in temporary.rglob("*") if path.is_file()]


# In a child: how many of its descriptors hold the key.
LOOK = """
def holds(fd):
    try:
        return os.pread(fd, 99, 0) == key
    except OSError:  # A pipe, or the one that was listed with.
        return False
print(sum(holds(int(name)) for name in os.listdir("/proc/self/fd")))
"""


def test_what_a_rank_starts_after_init_has_no_key(ringrun: Ringrun, script: Script) -> None:
    (ringrun.directory / "look.py").write_text(LOOK)
    name = script(
        """
        import ringcore
        fd = int(os.environ["RINGCORE_KEY_FD"])
        key = os.pread(fd, 99, 0)
        look = f"import os\\nkey = {key!r}\\n" + open("look.py").read()
        def seen_by_a_child():
            words = [sys.executable, "-c", look]
            return subprocess.run(words, close_fds=False, stdout=subprocess.PIPE, timeout=60, check=True).stdout
        before = seen_by_a_child().decode().strip()
        ringcore.init()
        print(before, seen_by_a_child().decode().strip())
        ringcore.shutdown()
        ringcore.init()
        print("again", ringcore.size())
        """
    )
    done = ringrun("-np", "2", name)
    assert sorted(line.partition("> ")[2] for line in done.stdout.splitlines()) == ["1 0"] * 2 + ["again 2"] * 2


@pytest.mark.parametrize("text", [os.urandom(32), os.urandom(32).hex().encode() + b"\n"])
def test_a_key_file_is_passed_on(ringrun: Ringrun, script: Script, text: bytes) -> None:
    path = ringrun.directory / "job.key"
    path.write_bytes(text)
    path.chmod(0o600)
    done = ringrun(
        "-np", "1", "--key-file", "job.key", script(READ_KEY + "print(key.hex(), 'RINGCORE_KEY_FILE' in os.environ)")
    )
    expected = text.hex() if len(text) == 32 else text.decode().strip()
    assert done.stdout == f"[0]<stdout> {expected} False\n"


def test_a_key_file_that_root_lets_a_group_read_is_one_as_it_is_for_ranks(ringrun: Ringrun) -> None:
    path = ringrun.directory / "job.key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o440)  # As that of a secret of Kubernetes.
    if os.getuid() != 0:
        pytest.skip("it has to be root's")
    done = ringrun("-np", "1", "--key-file", "job.key", "true")
    assert done.returncode == 0, done.stderr


def test_a_key_file_that_others_can_read_or_of_another_size_is_refused(ringrun: Ringrun) -> None:
    path = ringrun.directory / "job.key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o644)
    done = ringrun("-np", "1", "--key-file", "job.key", "true")
    assert done.returncode == 2 and "chmod 600" in done.stderr
    path.chmod(0o600)
    path.write_bytes(b"short")
    done = ringrun("-np", "1", "--key-file", "job.key", "true")
    assert done.returncode == 2 and "holds no key" in done.stderr


NODES = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--key-file", "job.key"]


def test_two_launchers_make_one_job(ringrun: Ringrun, script: Script) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = ringrun.directory / "job.key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    names = ("WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "RINGCORE_CROSS_RANK", "RINGCORE_RENDEZVOUS", "MASTER_PORT")
    name = script(f"{READ_KEY}\nprint(rank, *(os.environ[name] for name in {names}), key.hex())")
    endpoint = ["--rdzv-endpoint", f"127.0.0.1:{port}"]
    shown: list[str] = []
    for node in ("1", "0"):
        done = ringrun(*NODES, *endpoint, "--node-rank", node, name)
        assert done.returncode == 0, done.stderr
        shown += [line.partition("> ")[2] for line in done.stdout.splitlines()]
    key = path.read_bytes().hex()
    assert sorted(shown) == [
        f"{rank} 4 {rank % 2} {rank // 2} {rank // 2} tcp:127.0.0.1:{port} 29500 {key}" for rank in range(4)
    ]


TORCH_SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
assert (dist.get_rank(), dist.get_world_size()) == (rank, 2)
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(3, 1))
model(torch.ones(2, 3) * (rank + 1)).sum().backward()
print(model.module.weight.grad.tolist(), flush=True)
os._exit(0)  # with torch 2.13 a process group of gloo sometimes aborts when it is destroyed
"""

if importlib.util.find_spec("torch") is not None:

    @pytest.mark.long  # tests/launchers has another one in each run
    def test_a_ddp_script_runs_unchanged(ringrun: Ringrun, script: Script) -> None:
        done = ringrun("-np", "2", script(TORCH_SCRIPT))
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout> [[3.0, 3.0, 3.0]]" for rank in (0, 1)]

    def test_torchs_record_is_read(ringrun: Ringrun, script: Script) -> None:
        name = script(
            """
            from torch.distributed.elastic.multiprocessing.errors import record
            @record
            def main():
                if rank: raise RuntimeError("recorded by torch")
                time.sleep(600)
            main()
            """
        )
        done = ringrun("-np", "2", name)
        assert done.returncode == 1
        assert done.stderr.rstrip().endswith("RuntimeError: recorded by torch")
