"""Starts the workers and servers of the comparison on hosts of their own, and checks what they found."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from network import goodput
from parameter_server.setting import (
    BIGARRAY_BOUND,
    BURST,
    QUEUE,
    RATE,
    SERVERS,
    STEPS,
    is_ours,
)
from support.namespaces import Host, namespaces

HERE = Path(__file__).parent
RENDEZVOUS_PORT = 29450
SCHEDULER_PORT = 29451
LIMIT_S = 120.0
STREAM_BYTES = 32 << 20
# Weights are of the order of 0.1. Sums in another order differ by some units in the last place of float32, which is
# 7e-9 there, in each step; a sum that lacks one worker is off by what that worker moves the weights.
LARGEST_ERROR = 5e-7


class WrongWeightsError(Exception):
    """Training did not give the weights that one process gets from the batches of all workers."""


@contextlib.contextmanager
def hosts_of(workers: int) -> Iterator[list[Host]]:
    """Hosts for so many workers and twice as many servers."""
    with namespaces(3 * workers, sshd=False) as hosts:
        for host in hosts:
            host.shape(RATE, BURST, QUEUE)
        yield hosts


def train(hosts: list[Host], system: str, workers: int, key_file: str, steps: int = STEPS) -> dict[str, Any]:
    """Train once.

    Args:
        hosts: As many as workers and servers; the scheduler, which moves no data, is on the first worker's.
        system: Key of `SERVERS`.
        workers: Their number.
        key_file: Holds a key of 32 bytes for ringcore.
        steps: Timed ones.

    Returns:
        What the first worker found, and the number of machines.

    Raises:
        SystemExit: A process failed or did not end.
        WrongWeightsError: See there.
    """
    servers = SERVERS[system](workers)
    common = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    root = hosts[0].address
    mxnet = {
        "DMLC_PS_ROOT_URI": root, "DMLC_PS_ROOT_PORT": str(SCHEDULER_PORT), "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers), "DMLC_INTERFACE": "eth0",
        "MXNET_KVSTORE_BIGARRAY_BOUND": str(BIGARRAY_BOUND),
    }  # fmt: skip
    ring = {
        "WORLD_SIZE": str(workers), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "RINGCORE_KEY_FILE": key_file,
        "RINGCORE_SERVERS": str(servers),
        "RINGCORE_RENDEZVOUS": f"tcp:{root}:{RENDEZVOUS_PORT}",
        "RINGCORE_SPIN_US": "0",  # what one machine spins away, the others lack: all share this one's cores
    }  # fmt: skip
    helpers, lasting, started = [], [], []  # ringcore's servers wait for the next job
    try:
        places = hosts[workers : workers + servers]
        if not is_ours(system):
            roles = [("scheduler", hosts[0]), *(("server", host) for host in places)]
            for role, host in roles:
                environ = {**common, **mxnet, "DMLC_ROLE": role}
                helpers.append(host.popen([sys.executable, "-c", "import mxnet"], env=environ))
        for number, host in enumerate(places if is_ours(system) else ()):
            own = {**ring, "RANK": str(workers + number), "LOCAL_RANK": "0"}
            lasting.append(host.popen([sys.executable, "-m", "ringcore.job.server"], env={**common, **own}))
        store = "ringcore" if is_ours(system) else "dist_sync"
        for rank, host in enumerate(hosts[:workers]):
            command = [sys.executable, str(HERE / "worker.py"), store, str(rank), str(workers), str(steps)]
            own = {**ring, "RANK": str(rank)} if is_ours(system) else {**mxnet, "DMLC_ROLE": "worker"}
            started.append(host.popen(command, env={**common, **own}, stdout=subprocess.PIPE))
        found = [_found(worker, f"{system}, {workers} workers: worker {rank}") for rank, worker in enumerate(started)]
        for helper in helpers:
            helper.wait(LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise SystemExit(f"{system}, {workers} workers: a process did not end: {error}") from None
    finally:
        for process in [*helpers, *lasting, *started]:
            process.kill()
            process.wait()
    check_weights(found)
    return {"machines": workers + servers, **found[0]}


def _found(worker: subprocess.Popen[bytes], name: str) -> dict[str, Any]:
    printed = worker.communicate(timeout=LIMIT_S)[0].decode()
    if worker.returncode != 0:
        raise SystemExit(f"{name} exited with {worker.returncode}")
    line: dict[str, Any] = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    return line


def check_weights(found: list[dict[str, Any]]) -> None:
    """Raise WrongWeightsError unless all workers hold the same weights, and those of one process."""
    if len({one["digest"] for one in found}) != 1:
        raise WrongWeightsError("the workers ended with different weights")
    error, moved = found[0]["error"], found[0]["moved"]
    if not error <= LARGEST_ERROR < moved / 100:
        raise WrongWeightsError(f"weights are off by {error}; training moved them by {moved}")


def write_key(path: Path) -> str:
    """A key for ringcore; returns the path."""
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(os.urandom(32))
    return str(path)


def measure(path: Path, repeats: int, workers: list[int]) -> None:
    """Train with each system and each number of workers in turn, and append a JSON line for each to a file.

    A line of wrong weights says so, and has no times.
    """
    # So that the hosts go when the benchmark is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with tempfile.TemporaryDirectory() as folder:
        key_file = write_key(Path(folder, "key"))
        for repeat, count in itertools.product(range(repeats), workers):
            with hosts_of(count) as hosts:
                rate = goodput(hosts, STREAM_BYTES)
                for system in SERVERS:
                    print(f"parameter server, repeat {repeat + 1}: {system}, {count} workers", flush=True)
                    row: dict[str, Any] = {"system": system, "workers": count, "stream_bytes_per_s": rate}
                    try:
                        row |= train(hosts, system, count, key_file)
                    except WrongWeightsError as error:
                        print(error, flush=True)
                        row["wrong"] = str(error)
                    with path.open("a") as file:
                        file.write(json.dumps(row) + "\n")
