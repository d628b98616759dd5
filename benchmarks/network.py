"""Measures allreduce between four hosts (network namespaces) with links shaped to 1 Gbit/s, beside gloo. Needs root.

    python benchmarks/network.py [--repeats 2]

The ring's bound is 2 (R - 1) / R of the data at the goodput of one bulk TCP stream, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.namespaces import Host, namespaces  # noqa: E402

HOSTS = 4
STREAM_BYTES = 128 << 20
STREAM_PORT = 29440
RECEIVE = f"""
import socket, time
listener = socket.create_server(("", {STREAM_PORT}))
print("listening", flush=True)
connection, _ = listener.accept()
got, begin = 0, None
while piece := connection.recv(1 << 20):
    begin = begin or time.perf_counter()
    got += len(piece)
print(got / (time.perf_counter() - begin))
"""
SEND = f"""
import socket, sys
connection = socket.create_connection((sys.argv[1], {STREAM_PORT}))
piece = bytes(1 << 20)
for _ in range({STREAM_BYTES >> 20}):
    connection.sendall(piece)
"""


def goodput(hosts: list[Host]) -> float:
    """Bytes a second of one TCP stream between two hosts."""
    receiver = hosts[1].popen([sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
    if receiver.stdout is None or b"listening" not in receiver.stdout.readline():
        raise SystemExit("the receiver did not start")
    hosts[0].run([sys.executable, "-c", SEND, hosts[1].address], check=True)
    return float(receiver.communicate(timeout=60)[0])


def run_once(hosts: list[Host], library: str, key_file: str) -> dict[int, dict[str, float]]:
    """Bytes -> median milliseconds and wire bytes, from one start on all hosts."""
    command = [sys.executable, str(HERE / "network_rank.py"), library]
    ranks = [
        host.popen([*command, str(rank), str(HOSTS), hosts[0].address, key_file], stdout=subprocess.PIPE)
        for rank, host in enumerate(hosts)
    ]
    outputs = [rank.communicate(timeout=200)[0].decode() for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        raise SystemExit(f"{library} failed")
    found = [json.loads(line) for line in outputs[0].splitlines() if line.startswith("{")]
    return {one["bytes"]: {"ms": statistics.median(one["milliseconds"]), "wire": one["wire_bytes"]} for one in found}


def main() -> None:
    """The comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder, namespaces(HOSTS, rate="1gbit", sshd=False) as hosts:
        key_file = str(Path(folder, "key"))
        with open(os.open(key_file, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(os.urandom(32))
        for _ in range(options.repeats):
            rate = goodput(hosts)
            for library in ("ringcore", "gloo"):
                for nbytes, one in run_once(hosts, library, key_file).items():
                    bound = 2 * (HOSTS - 1) / HOSTS * nbytes / rate * 1e3
                    lines.append(
                        {
                            "library": library, "bytes": nbytes, "milliseconds": one["ms"], "bound_ms": bound,
                            "over_bound": one["ms"] / bound - 1, "wire_bytes": one["wire"], "stream_bytes_per_s": rate,
                        }
                    )  # fmt: skip
                    print(json.dumps(lines[-1]), flush=True)
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "network-4-hosts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
