"""Measures what a running elastic job loses while strangers connect to it: a step's time with them and without.

    python benchmarks/strangers.py [--seconds 120] [--rate 1000] [--step-ms 2]

Needs root. ringrun and a rank run on one host, a second rank on another; a third host, which has no key, connects to
everything that the job listens on: the listeners of the ranks, and that of ringrun, where whoever joins would ask. Of
the strangers some are silent, some send nonsense, and some greet well and prove another key. Hosts are network
namespaces of this machine, and the strangers have a processor of their own, which they share with ringrun: what is
measured is what their connections cost the ranks.

Windows with and without strangers take turns in one job; which of a pair comes first is drawn by lot. The median over
all pairs of the ratio of a step's mean time, with an interval of 95 % (bootstrap over pairs), and the same of the
processor time that the ranks use for a step. Writes benchmarks/results/strangers.json.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from ringcore.bootstrap.auth import MESH, Hello
from windows import Window, median_with_bounds, step_times

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.namespaces import Host, environ_with_ssh, namespaces  # noqa: E402
from support.processes import RINGRUN, clean_environ  # noqa: E402

RANK = str(HERE / "looking_rank.py")
OF_RANKS, OF_STRANGERS = ["taskset", "-c", "0"], ["taskset", "-c", "1"]
WINDOW_S = 1.0
TICK_S = 0.01
# So many strangers are silent at a time, and as many have spoken and wait for an answer.
HELD = 200
LIMIT_S = 60.0
TCP_LISTENS = "0A"
SSH_PORT = 22


def words_of(number: int) -> bytes:
    """What a stranger says."""
    generator = random.Random(number)
    hello = Hello(MESH, 0, 0, 1).pack() + generator.randbytes(32)
    return [
        b"", b"GET / HTTP/1.1\r\n\r\n", generator.randbytes(1000), b"\0" * 64, hello[: generator.randrange(len(hello))],
        hello, hello + generator.randbytes(32),
    ][number % 7]  # fmt: skip


def knock(rate: int, addresses: Sequence[tuple[str, int]]) -> None:
    """Connect so many times a second until SIGTERM; then print how many that were."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    silent: collections.deque[tuple[socket.socket, bytes]] = collections.deque()
    spoken: collections.deque[socket.socket] = collections.deque()
    number = 0
    try:
        while True:
            next_tick = time.monotonic() + TICK_S
            for _ in range(max(1, round(rate * TICK_S))):
                stranger = socket.socket()
                stranger.setblocking(False)
                stranger.connect_ex(addresses[number % len(addresses)])
                silent.append((stranger, words_of(number)))
                number += 1
                if len(silent) > HELD:
                    speaks, words = silent.popleft()
                    with contextlib.suppress(OSError):  # refused meanwhile, or not accepted
                        speaks.send(words)
                    spoken.append(speaks)
                if len(spoken) > HELD:
                    spoken.popleft().close()
            time.sleep(max(0.0, next_tick - time.monotonic()))
    finally:
        print(number, flush=True)


def await_file(path: Path, job: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not path.exists():
        if job.poll() is not None or time.monotonic() > limit:
            raise SystemExit(f"the job does not come to {path.name}")
        time.sleep(0.05)


@contextlib.contextmanager
def running_job(hosts: Sequence[Host], folder: Path, step_ms: float) -> Iterator[None]:
    """An elastic job of a rank on each of two hosts, until `stop` is there."""
    words = [*OF_STRANGERS, *RINGRUN, "-H", f"{hosts[0].name}:1,{hosts[1].name}:1", "-np", "2", "--min-np", "1"]
    command = [*words, *OF_RANKS, sys.executable, RANK, str(folder), str(step_ms)]
    environ = environ_with_ssh(hosts[0], clean_environ() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    with (folder / "output").open("wb") as output:
        job = hosts[0].popen(command, cwd=folder, env=environ, stdout=output, stderr=output)
        try:
            for rank in range(2):
                await_file(folder / f"{rank}.trains", job)
            yield
            (folder / "stop").touch()
            if job.wait(LIMIT_S) != 0:
                raise SystemExit(f"the job has failed:\n{(folder / 'output').read_text()}")
        finally:
            job.terminate()
            job.wait()


def listeners(host: Host) -> list[tuple[str, int]]:
    """Where anything listens on a host's network but ssh."""
    found = []
    for line in host.run(["cat", "/proc/net/tcp"]).stdout.splitlines()[1:]:
        words = line.split()
        address, port = words[1].split(":")
        if words[3] == TCP_LISTENS and int(port, 16) != SSH_PORT:
            found.append((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
    return [(address, port) for address, port in found if address == host.address]


def strangers_by_turns(
    host: Host, targets: Sequence[tuple[str, int]], rate: int, seconds: float
) -> tuple[list[Window], int]:
    """Windows in pairs, one with strangers and one without; and how many strangers there were."""
    addresses = [f"{address}:{port}" for address, port in targets]
    command = [*OF_STRANGERS, sys.executable, __file__, "--knock", str(rate), *addresses]
    crowd = host.popen(command, stdout=subprocess.PIPE, text=True)
    windows = []
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for disturbed in random.sample([True, False], 2):
                crowd.send_signal(signal.SIGCONT if disturbed else signal.SIGSTOP)
                begin = time.monotonic()
                time.sleep(WINDOW_S)
                windows.append(Window(disturbed, begin, time.monotonic()))
        crowd.send_signal(signal.SIGCONT)
        crowd.terminate()
        said, _ = crowd.communicate(timeout=LIMIT_S)
    finally:
        crowd.kill()
        crowd.wait()
    return windows, int(said)


def compare(windows: Sequence[Window], ranks: Sequence[np.ndarray]) -> dict[str, object]:
    """What the pairs tell: of a step's time, and of the processor time for it."""
    among = np.array([step_times(window, ranks) for window in windows if window.disturbed])
    alone = np.array([step_times(window, ranks) for window in windows if not window.disturbed])
    found: dict[str, object] = {"pairs": len(alone), "step_ms": float(np.median(alone[:, 0]))}
    for i, name in enumerate(("wall", "processor")):
        median, *bounds = median_with_bounds(among[:, i] / alone[:, i])
        found[name] = {"ratio": median, "bounds": bounds}
        print(f"{name}: {median:.4f} ({bounds[0]:.4f} to {bounds[1]:.4f}) of a step without strangers")
    return found


def main() -> None:
    """Measure, or be the strangers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rate", type=int, default=1000, help="strangers a second")
    parser.add_argument("--step-ms", type=float, default=2.0, help="processor time of a rank in a step")
    parser.add_argument("--knock", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.knock:
        rate, *addresses = options.knock
        return knock(int(rate), [(host, int(port)) for host, port in (each.split(":") for each in addresses)])
    with namespaces(3) as hosts, tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with running_job(hosts, folder, options.step_ms):
            targets = [listeners(host) for host in hosts[:2]]
            if not all(targets):
                raise SystemExit(f"not all hosts of the job listen: {targets}")
            windows, count = strangers_by_turns(
                hosts[2], [address for each in targets for address in each], options.rate, options.seconds
            )
        ranks = [np.load(folder / f"{rank}.npy") for rank in range(2)]
    print(f"{count} strangers at {targets}")
    found = {
        "machine": platform.machine(), "cores": os.cpu_count(), "strangers": count, "rate": options.rate,
        "listeners": [len(each) for each in targets], **compare(windows, ranks),
    }  # fmt: skip
    (HERE / "results" / "strangers.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
