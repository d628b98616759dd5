"""Measures allreduce and training between four hosts (network namespaces) with links of 1 Gbit/s, beside gloo.

    python benchmarks/network.py [--repeats 2]

Needs root. The ring's bound is 2 (R - 1) / R of the data at the goodput of one bulk TCP stream, measured in the same
run.
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
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.namespaces import Host, namespaces  # noqa: E402

HOSTS = 4
STREAM_BYTES = 128 << 20
STREAM_PORT = 29440
MLP_BYTES = 4 * 24_979_680
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
for _ in range(int(sys.argv[2]) >> 20):
    connection.sendall(piece)
"""


def goodput(hosts: list[Host], nbytes: int = STREAM_BYTES) -> float:
    """Bytes a second of one TCP stream of so many bytes between two hosts."""
    receiver = hosts[1].popen([sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
    if receiver.stdout is None or b"listening" not in receiver.stdout.readline():
        raise SystemExit("the receiver did not start")
    hosts[0].run([sys.executable, "-c", SEND, hosts[1].address, str(nbytes)], check=True)
    return float(receiver.communicate(timeout=60)[0])


def run_once(hosts: list[Host], library: str, key_file: str) -> list[dict[str, Any]]:
    """What rank 0 prints, from one start on all hosts."""
    command = [sys.executable, str(HERE / "network_rank.py"), library]
    ranks = [
        host.popen([*command, str(rank), str(HOSTS), hosts[0].address, key_file], stdout=subprocess.PIPE)
        for rank, host in enumerate(hosts)
    ]
    outputs = [rank.communicate(timeout=200)[0].decode() for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        raise SystemExit(f"{library} failed")
    return [json.loads(line) for line in outputs[0].splitlines() if line.startswith("{")]


def row(library: str, found: dict[str, Any], rate: float) -> dict[str, Any]:
    """A finding beside the bound, which is that of the ring for the bytes that are summed."""
    nbytes = MLP_BYTES if "model" in found else found["bytes"]
    bound = 2 * (HOSTS - 1) / HOSTS * nbytes / rate * 1e3
    common = {"library": library, "bytes": nbytes, "bound_ms": bound, "stream_bytes_per_s": rate}
    if "model" not in found:
        taken = statistics.median(found["milliseconds"])
        return {**common, "milliseconds": taken, "over_bound": taken / bound - 1, "wire_bytes": found["wire_bytes"]}
    alone, averaged = (statistics.median(found["milliseconds"][name]) for name in ("alone", "averaged"))
    over = averaged / max(bound, alone) - 1
    return {**common, "model": found["model"], "alone_ms": alone, "milliseconds": averaged, "over_bound": over}


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
                for found in run_once(hosts, library, key_file):
                    lines.append(row(library, found, rate))
                    print(json.dumps(lines[-1]), flush=True)
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "network-4-hosts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
