"""Strangers who connect while a job starts: refused, and the job does not notice. Nothing is left of killed jobs."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ringcore
from ringcore.bootstrap.acceptor import MAX_PENDING
from ringcore.bootstrap.auth import MESH, Hello
from support import ranks
from support.processes import eventually
from support.rank import await_mark, mark
from support.sockets import connect, listening

# `nox -s strangers` asks for more. So many are attacks between two signs of life.
STRANGERS = int(os.environ.get("RINGCORE_STRANGERS", "400"))
ROUND = 5_000
# A rank may keep what it keeps of refused addresses, and what Python's memory grows by itself.
MOST_GROWTH_KIB = 16 << 10


def starts_among_strangers(rounds: int) -> float:
    if os.environ["RANK"] == "1":
        for number in range(rounds):
            await_mark(f"attacked.{number}", "test")
    else:
        mark("starting")
    ringcore.init()
    mark("started")
    await_mark("looked", "test")
    return float(ringcore.allreduce(np.ones(3, np.float32), op=ringcore.Sum)[0])


def _attack(address: tuple[str, int] | str, number: int) -> bool:
    """One stranger; what they send depends on the number, so that a failure can be repeated.

    Returns:
        Whether they came as far as that: where too many wait, the system takes no more.
    """
    generator = random.Random(number)
    kind = number // 3 % 8
    hello = Hello(MESH, 0, 0, 1).pack() + generator.randbytes(32)
    try:
        connected = connect(address)
    except (BlockingIOError, TimeoutError):
        return False
    with connected as connection:
        try:
            if kind == 0:
                connection.sendall(generator.randbytes(generator.randrange(1, 5000)))
            elif kind == 1:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: ringcore\r\n\r\n")
            elif kind == 2:
                connection.sendall(b"\0" * 64)
            elif kind == 3:
                connection.sendall(b"\xff" * generator.randrange(1, 64))
                connection.shutdown(socket.SHUT_WR)
            elif kind == 4:
                connection.sendall(hello[: generator.randrange(len(hello))])
            elif kind == 5:  # with the wrong key
                connection.sendall(hello + generator.randbytes(32))
            elif kind == 6:  # what comes back is sent back
                connection.sendall(hello)
                connection.settimeout(0.05)
                connection.sendall(connection.recv(64)[32:])
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass  # refused before everything was sent, or not looked at yet
    return True


def resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def test_strangers_do_not_disturb_the_start(tmp_path: Path) -> None:
    rounds = max(1, STRANGERS // ROUND)
    env = {"RINGCORE_START_TIMEOUT_S": str(30 + 60 * rounds)}
    with ranks.started(starts_among_strangers, 2, tmp_path, rounds, env=env) as job:
        job.await_mark("starting", 0)
        # The rendezvous, the mesh's TCP listener and its Unix listener.
        eventually(lambda: len(listening(job.pid(0))) == 3, "rank 0 listens")
        addresses = listening(job.pid(0))
        assert [a[0] for a in addresses if isinstance(a, tuple)] == ["127.0.0.1"]
        # Some connect and never say a word; more than may wait.
        silent = [connect(address) for address in addresses for _ in range(MAX_PENDING + 10)]
        # A rank looks at whoever dials it when it knows where all ranks are. Until then the system keeps them, and
        # some time takes no more; who waits there as well when the rank begins to look holds it up no longer.
        resident, looks = [], list(addresses)
        for number in range(rounds):
            for stranger in range(STRANGERS * number // rounds, STRANGERS * (number + 1) // rounds):
                address = looks[stranger % len(looks)]
                if not _attack(address, stranger):
                    looks.remove(address)
                    assert looks, "who tells the ranks where they are looks at everybody"
            resident.append(resident_kib(job.pid(0)))
            job.mark(f"attacked.{number}")
        assert max(resident) - resident[0] < MOST_GROWTH_KIB, resident
        job.await_mark("started", 0, 1)
        # All that a running job has to connect to is what its user asks, in a private folder.
        for rank in (0, 1):
            assert [Path(str(address)).name for address in listening(job.pid(rank))] == [f"rank.{rank}"]
        job.mark("looked")
        outcomes = job.wait()
        for connection in silent:
            connection.close()
    assert [outcome.result for outcome in outcomes] == [2.0, 2.0], outcomes
    said = outcomes[0].stderr + outcomes[1].stderr
    assert "Traceback" not in said
    # Each address once: not a line for every stranger.
    assert said.count("refused a connection") <= 4, said


def knocks_with_the_wrong_key(wrong: str) -> dict:
    found = {}
    if os.environ["RANK"] == "1":
        intruder = subprocess.run(
            [sys.executable, "-c", "import ringcore; ringcore.init()"],
            env={**os.environ, "RINGCORE_KEY_FILE": wrong},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        found = {"code": intruder.returncode, "said": intruder.stderr}
    ringcore.init()
    return {**found, "sum": float(ringcore.allreduce(np.ones(3, np.float32), op=ringcore.Sum)[0])}


def test_a_rank_with_the_wrong_key_is_refused_and_the_right_one_takes_its_place(tmp_path: Path) -> None:
    for name in ("right", "wrong"):
        with open(os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(os.urandom(32))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {"RINGCORE_RENDEZVOUS": f"tcp:127.0.0.1:{port}", "RINGCORE_KEY_FILE": str(tmp_path / "right")}
    results = ranks.run(knocks_with_the_wrong_key, 2, tmp_path, str(tmp_path / "wrong"), env=env)
    assert [result["sum"] for result in results] == [2.0, 2.0]
    assert results[1]["code"] == 1
    assert "BootstrapError" in results[1]["said"]
    assert "key" in results[1]["said"]


def reduces_for_ever() -> None:
    ringcore.init()
    tensor = np.ones(1 << 20, np.float32)
    while True:
        ringcore.allreduce_(tensor, op=ringcore.Max, name="t")
        mark("reduced")


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
def test_nothing_is_left_when_everything_is_killed(tmp_path: Path, transport: str) -> None:
    def shared() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if "ringcore" in name}

    before = shared()
    (tmp_path / "tmp").mkdir()
    env = {"RINGCORE_TRANSPORT": transport, "TMPDIR": str(tmp_path / "tmp")}
    with ranks.started(reduces_for_ever, 3, tmp_path, env=env) as job:
        job.await_mark("reduced", 0, 1, 2)
        for rank in range(3):
            job.signal(rank, signal.SIGKILL)
        job.wait()
    assert shared() == before
    assert not list((tmp_path / "tmp").iterdir())
    # Whoever asks for jobs clears away those that were killed.
    ask = [sys.executable, "-m", "ringcore", "status"]
    asked = subprocess.run(ask, capture_output=True, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}, check=False)
    assert b"no job" in asked.stderr
    assert [path.name for path in tmp_path.glob("ringcore-*/**/*")] == ["jobs"]  # nor the rendezvous' socket


def starts() -> float:
    mark("starting")
    ringcore.init()
    return float(ringcore.allreduce(np.ones(3, np.float32), op=ringcore.Sum)[0])


def test_a_job_starts_where_another_of_its_name_was_killed_while_it_started(tmp_path: Path) -> None:
    env = {"RINGCORE_JOB_ID": "again", "XDG_RUNTIME_DIR": str(tmp_path)}
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    # A job of two of which only rank 0 lives long enough to listen.
    with ranks.started(starts, 2, tmp_path / "first", env=env) as job:
        job.signal(1, signal.SIGKILL)
        eventually(lambda: list(tmp_path.glob("ringcore-*/*.sock")), "rank 0 listens")
        job.signal(0, signal.SIGKILL)
        job.wait()
    assert ranks.run(starts, 2, tmp_path / "second", env=env) == [2.0, 2.0]
