"""Simulated beside measured: allreduces between hosts (network namespaces) with links of 100 Mbit/s.

    python benchmarks/simulated.py --program build/native/benchmark/ringcore_network [--hosts 2 4 8 16] [--repeats 3]

Needs root. Each plan runs over TCP between the hosts; `ringcore.simulation` is told the goodput of a stream and half
the time of a round trip, both measured in the same run, and nothing else. Writes results/simulated.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from network import goodput, parsed  # noqa: E402
from ringcore.simulation import Network, simulate  # noqa: E402
from support.namespaces import Host, namespaces  # noqa: E402

RATE = "100mbit"
STREAM_BYTES = 16 << 20
NBYTES = 4 << 20
RUNS = 4  # of which the first one warms connections up
LIMIT_S = 120
PORT = 29600
# Ranks of a host, by algorithm.
ALGORITHMS = {"ring": 1, "binomial_tree": 1, "double_tree": 1, "pat": 1, "hierarchical": 2}


ECHO = f"""
import socket
listener = socket.create_server(("", {PORT - 1}))
print("listening", flush=True)
connection, _ = listener.accept()
while piece := connection.recv(1):
    connection.sendall(piece)
"""
ASK = f"""
import socket, statistics, sys, time
connection = socket.create_connection((sys.argv[1], {PORT - 1}))
times = []
for _ in range(200):
    begin = time.perf_counter()
    connection.sendall(b"x")
    connection.recv(1)
    times.append(time.perf_counter() - begin)
print(statistics.median(times))
"""


def message_cost(hosts: Sequence[Host]) -> float:
    """Half the time of a round trip of a byte over TCP: what lies between, and what both processors do."""
    echo = hosts[1].popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
    if echo.stdout is None or b"listening" not in echo.stdout.readline():
        raise SystemExit("there is no echo")
    done = hosts[0].run([sys.executable, "-c", ASK, hosts[1].address], check=True)
    echo.wait(timeout=LIMIT_S)
    return float(done.stdout) / 2


def measured(hosts: Sequence[Host], program: str, algorithm: str, parts: int) -> list[float]:
    """Seconds of each run, of the slowest rank."""
    local = ALGORITHMS[algorithm]
    addresses = [host.address for host in hosts]
    ranks = []
    for rank in range(len(hosts) * local):
        words = [algorithm, parts, NBYTES, RUNS, rank, local, PORT, *addresses]
        ranks.append(hosts[rank // local].popen([program, *map(str, words)], stdout=subprocess.PIPE))
    outputs = [rank.communicate(timeout=LIMIT_S)[0].decode() for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        raise SystemExit(f"{algorithm} failed")
    times = [parsed(output)[0]["seconds"] for output in outputs]
    return [max(run) for run in zip(*times, strict=True)][1:]


def compared(hosts: Sequence[Host], program: str, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for each algorithm."""
    network = Network(goodput(hosts, STREAM_BYTES) * 8, message_cost(hosts), message_s=0)
    for algorithm, local in ALGORITHMS.items():
        if len(hosts) * local < 4 and algorithm in ("double_tree", "pat"):
            continue
        ranks = len(hosts) * local
        job = simulate(ranks, hosts=len(hosts), network=network, nbytes=NBYTES, algorithms=[algorithm])
        times = [run for _ in range(repeats) for run in measured(hosts, program, algorithm, job.best.parts)]
        took = statistics.median(times)
        yield {
            "hosts": len(hosts),
            "ranks": ranks,
            "algorithm": algorithm,
            "parts": job.best.parts,
            "bytes": NBYTES,
            "bits_per_s": network.bits_per_s,
            "latency_s": network.latency_s,
            "measured_s": took,
            "spread_s": max(times) - min(times),
            "simulated_s": job.best.seconds,
            "simulated_over_measured": job.best.seconds / took,
        }


def main() -> None:
    """All numbers of hosts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="ringcore_network")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "simulated.json")
    options = parser.parse_args()
    rows = []
    for count in options.hosts:
        with namespaces(count, rate=RATE, sshd=False) as hosts:
            for row in compared(hosts, str(Path(options.program).resolve()), options.repeats):
                print(json.dumps(row), flush=True)
                rows.append(row)
    options.results.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
