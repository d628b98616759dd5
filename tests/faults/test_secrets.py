"""The job's key stands in no argument, environment, log or core file of any process, however the job was started."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from ringcore.launcher.external import PlacedJob
from support.elastic import HostScript
from support.mpis import DEBIAN, installed
from support.namespaces import environ_with_ssh, namespaces
from support.processes import LIMIT_S, RINGRUN, WRITE_PID, Pids, clean_environ, eventually

# Shows the test what key the process was given, and is there until the test has looked.
RANK = f"""
import gc, os, time
import numpy as np
import ringcore
{WRITE_PID}
def hold():
    ringcore.init()
    ringcore.allreduce(np.ones(3, np.float32), name="total")
    show()
    ringcore.shutdown()
def show():
    # Without a copy: what was given, what was made of it for this job, and for those who met.
    keys = [view for view in gc.get_objects() if type(view) is memoryview and view.nbytes == 32]
    for number, key in enumerate(keys):
        fd = os.open(f"key.{{ringcore.rank()}}.{{number}}", os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(fd, key)
        os.close(fd)
    write_pid(ringcore.rank())
    while not os.path.exists("go"):
        time.sleep(0.02)
"""
# One rank, until another one has joined.
ELASTIC = """
import numpy as np
import rank, ringcore
from ringcore import elastic
ringcore.init()
@elastic.run
def train(state):
    open("began", "w").close()
    while ringcore.size() == 1:
        ringcore.allreduce(np.ones(3, np.float32), name="total")
        state.commit()
    ringcore.allreduce(np.ones(3, np.float32), name="of both")
    rank.show()
train(elastic.ObjectState(step=0))
"""
PAGE = os.sysconf("SC_PAGE_SIZE")
VERBOSE = {"RINGCORE_LOG_LEVEL": "debug", "OMP_NUM_THREADS": "1"}


def forms(key: bytes) -> list[bytes]:
    """How a key may be written, without what depends on what stands before and behind it."""
    text = key.hex().encode()
    return [key, text, text.upper(), base64.b64encode(key)[:42], base64.urlsafe_b64encode(key)[:42]]


def where_it_stands(key: bytes, folder: Path) -> list[str]:
    """Of all processes, and of the files of the job."""
    places = [path for name in ("environ", "cmdline") for path in Path("/proc").glob(f"[0-9]*/{name}")]
    places += [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("key")]
    found = []
    for place in places:
        with contextlib.suppress(OSError):  # the process has ended
            data = place.read_bytes()
            found += [str(place) for form in forms(key) if form in data]
    return found


def core_of(pid: int) -> Iterator[bytes]:
    """What a core file of a process would have, piece by piece: what it is told to leave out is left out."""
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.MULTILINE)[1:]
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory, Path(f"/proc/{pid}/pagemap").open("rb", 0) as pages:
        for mapping in mappings:
            begin, end = (int(word, 16) for word in mapping.split(maxsplit=1)[0].split("-"))
            told = set(mapping.rpartition("VmFlags:")[2].split())
            if "dd" in told or "rd" not in told or "io" in told or begin >= 1 << 63:
                continue
            # Only what is there: of an arena that is the least.
            pages.seek(begin // PAGE * 8)
            there = np.flatnonzero(np.frombuffer(pages.read((end - begin) // PAGE * 8), np.uint64) >> 62)
            for run in np.split(there, np.flatnonzero(np.diff(there) != 1) + 1):
                if len(run):
                    memory.seek(begin + int(run[0]) * PAGE)
                    with contextlib.suppress(OSError):  # the kernel's own page
                        yield memory.read(len(run) * PAGE)


def in_core(pid: int, keys: Collection[bytes]) -> list[bytes]:
    """Which of these keys stand there."""
    written = [(key, form) for key in keys for form in forms(key)]
    return [key for piece in core_of(pid) for key, form in written if form in piece]


@contextlib.contextmanager
def started(command: list[str], folder: Path, environ: dict[str, str]) -> Iterator[None]:
    """A job whose output goes to files in its folder; it has to end well."""
    with (
        (folder / "stdout").open("wb") as out,
        (folder / "stderr").open("wb") as err,
        subprocess.Popen(command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err) as job,
    ):
        try:
            yield
            assert job.wait(LIMIT_S) == 0, (folder / "stderr").read_text()
        finally:
            job.kill()


@contextlib.contextmanager
def by_ringrun(folder: Path) -> Iterator[None]:
    command = [*RINGRUN, "--verbose", "-np", "2", "--log-dir", "logs", "--timeline-filename", "timeline.json"]
    with started([*command, sys.executable, "main.py"], folder, clean_environ() | VERBOSE):
        yield


@contextlib.contextmanager
def by_agents(folder: Path) -> Iterator[None]:
    with namespaces(2) as hosts:
        command = [*RINGRUN, "--verbose", "-H", "host0:1,host1:1", "--log-dir", "logs", sys.executable, "main.py"]
        environ = environ_with_ssh(hosts[0], clean_environ()) | VERBOSE
        with started(hosts[0].command(command, folder), folder, environ):
            yield


@contextlib.contextmanager
def by_growing(folder: Path) -> Iterator[None]:
    (folder / "main.py").write_text(ELASTIC)
    discovery = HostScript(folder)
    discovery.print(["host0"])
    with namespaces(2) as hosts:
        command = [*RINGRUN, "--verbose", "--network-interface", "eth0", "--min-np", "1", *discovery.words]
        environ = environ_with_ssh(hosts[0], clean_environ()) | VERBOSE
        with started(
            hosts[0].command([*command, "--log-dir", "logs", sys.executable, "main.py"], folder), folder, environ
        ):
            eventually((folder / "began").exists, "one rank trains", 100.0)
            discovery.print(["host0", "host1"])
            yield


@contextlib.contextmanager
def by_mpirun(folder: Path) -> Iterator[None]:
    key = folder / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    environ = clean_environ() | VERBOSE | {"RINGCORE_KEY_FILE": str(key), "RINGCORE_TRANSPORT": "tcp"}
    with started([*installed(DEBIAN).launch(2), sys.executable, "main.py"], folder, environ):
        yield


@contextlib.contextmanager
def by_run(folder: Path) -> Iterator[None]:
    script = "import ringcore, rank\nif __name__ == '__main__':\n    ringcore.run(rank.hold, num_proc=2)\n"
    (folder / "caller.py").write_text(script)
    with started([sys.executable, "caller.py"], folder, clean_environ() | VERBOSE):
        yield


TASK = """
import sys
from ringcore.launcher.external import host_rank
host_rank(*(bytes.fromhex(sys.stdin.readline()) for _ in range(2)), {})
"""


@contextlib.contextmanager
def by_tickets(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        import rank

        with PlacedJob(2, rank.hold, env=VERBOSE) as job, contextlib.ExitStack() as stack:
            for index in range(2):
                out = stack.enter_context((folder / f"stdout.{index}").open("wb"))
                task = stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-c", TASK], cwd=folder, env=clean_environ() | VERBOSE, text=True,
                        stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT,
                    )
                )  # fmt: skip
                stack.callback(task.kill)
                assert task.stdin is not None
                task.stdin.write(f"{job.ticket(index).hex()}\n{job.call.hex()}\n")
                task.stdin.close()
            results = threading.Thread(target=job.results)
            results.start()
            yield
            results.join(LIMIT_S)
            assert not results.is_alive()
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("rank", None)


@pytest.mark.parametrize(
    "start",
    [
        by_ringrun, by_growing, by_tickets,
        *(pytest.param(start, marks=pytest.mark.long) for start in (by_agents, by_mpirun, by_run)),
    ],
)  # fmt: skip
def test_the_key_stands_nowhere(tmp_path: Path, start: object) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "main.py").write_text("import rank\nrank.hold()\n")
    pids = Pids(tmp_path)
    with start(tmp_path):  # type: ignore[operator]
        try:
            eventually(lambda: len(pids.read()) == 2, "both ranks are there", 100.0)
            given = {path.read_bytes() for path in tmp_path.glob("key*")}
            assert given, "the ranks have a key"
            for key in given:
                assert len(key) == 32
                assert where_it_stands(key, tmp_path) == []
            for pid in pids.read().values():
                assert in_core(pid, given) == []
        finally:
            (tmp_path / "go").touch()
    for key in given:
        assert where_it_stands(key, tmp_path) == []


def test_what_looks_for_the_key_finds_it(tmp_path: Path) -> None:
    key = os.urandom(32)
    wait = ["-c", "import sys; print(flush=True); sys.stdin.read()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    for text in (key.hex(), base64.b64encode(key).decode()):
        for words, environ in (([*wait, text], {}), (wait, {"SOME_KEY": text})):
            with subprocess.Popen([sys.executable, *words], **pipes, env=os.environ | environ) as process:
                assert process.stdout is not None
                process.stdout.readline()  # Popen may return before the kernel shows what the program was given
                assert any(str(process.pid) in place for place in where_it_stands(key, tmp_path))
    holds = "import sys; key = bytes.fromhex(sys.stdin.readline()); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holds], **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(key.hex().encode() + b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert key in in_core(process.pid, [key])
        process.stdin.close()
    (tmp_path / "log").write_bytes(b"the key is " + key)
    assert where_it_stands(key, tmp_path) == [str(tmp_path / "log")]
