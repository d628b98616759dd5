"""Simulated beside measured: allreduces between hosts (network namespaces) with links of 100 Mbit/s.

    python benchmarks/simulated.py --program build/native/benchmark/ringcore_network [--hosts 2 4 8 16] [--repeats 3]

Needs root. Each plan runs over TCP between the hosts; `ringcore.simulation` is told the goodput of a stream and half
the time of a round trip, both measured in the same run, and by how much the shaping lets messages come sooner or later
than another, and nothing else. Writes results/simulated.json.
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

from network import parsed  # noqa: E402
from ringcore.simulation import CollectiveTime, Network, simulate  # noqa: E402
from support.namespaces import Host, namespaces  # noqa: E402

RATE = "100mbit"
# What passes at once when a cable was idle, and how long a queue may get: nothing is lost, as with a switch that waits.
SHAPE = ("64kb", "1s")
# What passes at once comes by so much sooner than what has to wait for its turn.
JITTER_S = 64 * 1024 * 8 / 100e6
DRAWS = 15  # of which the median counts
STREAM_BYTES = 16 << 20
NBYTES = 4 << 20
RUNS = 6  # of which the first one warms connections up
LIMIT_S = 120
PORT = 29600
# They hardly compute, but wake up when something arrives, whatever else the machine does: 16 hosts share its cores.
PROMPTLY = ["chrt", "--rr", "10"]
# Ranks of a host, by algorithm.
ALGORITHMS = {"ring": 1, "binomial_tree": 1, "double_tree": 1, "pat": 1, "hierarchical": 2}


BOTH_WAYS = f"""
import socket, sys, threading, time
if sys.argv[1] == "listen":
    listener = socket.create_server(("", {PORT - 2}))
    print("listening", flush=True)
    connection, _ = listener.accept()
else:
    connection = socket.create_connection((sys.argv[1], {PORT - 2}))
total = {STREAM_BYTES}
sender = threading.Thread(target=connection.sendall, args=(bytes(total),))
sender.start()
got, begin = 0, None
while got < total:
    got += len(connection.recv(1 << 20))
    begin = begin or time.perf_counter()
print(total / (time.perf_counter() - begin))
sender.join()
"""
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


def goodput(hosts: Sequence[Host]) -> float:
    """Bytes a second each way, of a stream both ways between two hosts: acknowledgements take their part."""
    other = hosts[1].popen([*PROMPTLY, sys.executable, "-c", BOTH_WAYS, "listen"], stdout=subprocess.PIPE)
    if other.stdout is None or b"listening" not in other.stdout.readline():
        raise SystemExit("the receiver did not start")
    done = hosts[0].run([*PROMPTLY, sys.executable, "-c", BOTH_WAYS, hosts[1].address], check=True)
    return (float(done.stdout) + float(other.communicate(timeout=LIMIT_S)[0])) / 2


def message_cost(hosts: Sequence[Host]) -> float:
    """Half the time of a round trip of a byte over TCP: what lies between, and what both processors do."""
    echo = hosts[1].popen([*PROMPTLY, sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
    if echo.stdout is None or b"listening" not in echo.stdout.readline():
        raise SystemExit("there is no echo")
    done = hosts[0].run([*PROMPTLY, sys.executable, "-c", ASK, hosts[1].address], check=True)
    echo.wait(timeout=LIMIT_S)
    return float(done.stdout) / 2


def measured(hosts: Sequence[Host], program: str, algorithm: str, parts: int) -> list[float]:
    """Seconds of each run, of the slowest rank."""
    local = ALGORITHMS[algorithm]
    addresses = [host.address for host in hosts]
    ranks = []
    for rank in range(len(hosts) * local):
        words = [algorithm, parts, NBYTES, RUNS, rank, local, PORT, *addresses]
        ranks.append(hosts[rank // local].popen([*PROMPTLY, program, *map(str, words)], stdout=subprocess.PIPE))
    outputs = [rank.communicate(timeout=LIMIT_S)[0].decode() for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        raise SystemExit(f"{algorithm} failed")
    times = [parsed(output)[0]["seconds"] for output in outputs]
    return [max(run) for run in zip(*times, strict=True)][1:]


def simulated(ranks: int, hosts: int, network: Network, algorithm: str) -> CollectiveTime:
    """Of several draws of what comes sooner and later, the middle one."""
    draws = [
        simulate(ranks, hosts=hosts, network=network, nbytes=NBYTES, algorithms=[algorithm], jitter=JITTER_S, seed=seed)
        for seed in range(1, DRAWS + 1)
    ]
    return sorted((draw.best for draw in draws), key=lambda time: time.seconds)[DRAWS // 2]


def compared(hosts: Sequence[Host], program: str, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for each algorithm."""
    network = Network(goodput(hosts) * 8, message_cost(hosts), message_s=0)
    for algorithm, local in ALGORITHMS.items():
        if len(hosts) * local < 4 and algorithm in ("double_tree", "pat"):
            continue
        ranks = len(hosts) * local
        best = simulated(ranks, len(hosts), network, algorithm)
        times = [run for _ in range(repeats) for run in measured(hosts, program, algorithm, best.parts)]
        took = statistics.median(times)
        yield {
            "hosts": len(hosts),
            "ranks": ranks,
            "algorithm": algorithm,
            "parts": best.parts,
            "bytes": NBYTES,
            "bits_per_s": network.bits_per_s,
            "latency_s": network.latency_s,
            "jitter_s": JITTER_S,
            "measured_s": took,
            "quickest_s": min(times),
            "slowest_s": max(times),
            "simulated_s": best.seconds,
            "simulated_over_measured": best.seconds / took,
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
        with namespaces(count, sshd=False) as hosts:
            for host in hosts:
                host.shape(RATE, *SHAPE)  # what it sends, and what it gets
                # Streams that pause between chunks go on as they were.
                host.run(["sysctl", "-w", "net.ipv4.tcp_slow_start_after_idle=0"], check=True)
            for row in compared(hosts, str(Path(options.program).resolve()), options.repeats):
                print(json.dumps(row), flush=True)
                rows.append(row)
    options.results.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
