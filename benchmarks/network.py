"""Measures allreduce and training between hosts (network namespaces) with links of 1 Gbit/s, beside the peers.

    python benchmarks/network.py 4-hosts [--libraries ringcore gloo "Open MPI" MPICH] [--repeats 2]
    python benchmarks/network.py 2-networks     # one network a host, and two: as quick, and half as quick
    python benchmarks/network.py 2-by-2         # two ranks on each of two hosts: hierarchical, and a flat ring
    python benchmarks/network.py far-apart      # four hosts, 100 Mbit/s, 80 ms there and back, without and with loss;
                                                # of the libraries also pccl, and neither MPI

Needs root. The ring's bound is 2 (R - 1) / R of the data at the goodput of one bulk TCP stream, measured in the same
run; far apart at the rate of the cables. Lines are added to results/network-SETTING.jsonl; --fresh begins the file
anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from network_rank import PORT  # noqa: E402
from pccl_rank import BUILT, FOLDER  # noqa: E402
from support.mpis import PACKAGES, installed  # noqa: E402
from support.namespaces import Host, environ_with_ssh, far_apart, namespaces  # noqa: E402

RATE = "1gbit"
FAR_BYTES_PER_S, FAR_ROUND_TRIP_S = 12.5e6, 0.08
STREAM_BYTES = 128 << 20
STREAM_PORT = 29440
MLP_BYTES = 4 * 24_979_680
LIMIT_S = 400
FAR_LIMIT_S = 1500  # of gloo, whose connections lose most of their rate
# By library: with as many connections as it takes to fill a long way, and with one. PCCL's threads spin while they
# wait: where ranks share few processors, more of them are quicker only if packets are lost.
FAR_WAYS = {
    "ringcore": [{"RINGCORE_CONNECTIONS": "0"}, {"RINGCORE_CONNECTIONS": "1"}],
    "pccl": [{"PCCL_AT_ONCE": "16"}, {"PCCL_AT_ONCE": "1"}],
}
RANK = str(HERE / "network_rank.py")
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


def goodput(hosts: Sequence[Host], nbytes: int = STREAM_BYTES) -> float:
    """Bytes a second of one TCP stream of so many bytes between two hosts."""
    receiver = hosts[1].popen([sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
    if receiver.stdout is None or b"listening" not in receiver.stdout.readline():
        raise SystemExit("the receiver did not start")
    hosts[0].run([sys.executable, "-c", SEND, hosts[1].address, str(nbytes)], check=True)
    return float(receiver.communicate(timeout=60)[0])


@contextlib.contextmanager
def key_file() -> Iterator[str]:
    """A job's key."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "key"))
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(os.urandom(32))
        yield path


def run_ranks(
    places: Sequence[Host], library: str, *words: str, env: Mapping[str, str] | None = None, script: str = RANK,
    limit_s: float = LIMIT_S, python: str = sys.executable, servers: Sequence[Host] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """What rank 0 prints; rank r runs `script` on the host `places[r]`, and each of `servers` has one of ringcore's."""
    with key_file() as key, contextlib.ExitStack() as helpers:
        ranks = []
        env = {**(env or {}), "RINGCORE_SERVERS": str(len(servers))}
        for number, host in enumerate(servers):
            own = {
                "RANK": str(len(places) + number), "WORLD_SIZE": str(len(places)), "LOCAL_RANK": "0",
                "RINGCORE_RENDEZVOUS": f"tcp:{places[0].address}:{PORT}", "RINGCORE_KEY_FILE": key,
            }  # fmt: skip
            command = [sys.executable, "-m", "ringcore.job.server"]
            server = helpers.enter_context(host.popen(command, env={**os.environ, **env, **own}))
            helpers.callback(server.kill)  # it waits for the next job
        for rank, host in enumerate(places):
            local = {"LOCAL_RANK": str(places[:rank].count(host))}
            command = [python, script, library, str(rank), str(len(places)), places[0].address, key, *words]
            environ = {**os.environ, **local, **env}
            ranks.append(host.popen(command, stdout=subprocess.PIPE, env=environ))
        outputs = [rank.communicate(timeout=limit_s)[0].decode() for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        raise SystemExit(f"{library} failed")
    return parsed(outputs[0])


def run_mpi(hosts: Sequence[Host], library: str) -> list[dict[str, Any]]:
    """What rank 0 prints, of one rank a host that this MPI starts over ssh."""
    mpi = installed(library)
    names = ",".join(host.name for host in hosts)
    where = {
        "Open MPI": ["--host", names, "--mca", "btl_tcp_if_include", "eth0"],
        "MPICH": ["-hosts", names, "-launcher", "ssh"],
    }[library]
    command = [*mpi.launch(len(hosts)), *where, str(mpi.programs / "python"), RANK, "mpi"]
    done = hosts[0].run(command, env=environ_with_ssh(hosts[0], {**os.environ, **mpi.environ()}), timeout=LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"{library} failed: {done.stderr}")
    return parsed(done.stdout)


def far(hosts: Sequence[Host], loss: float) -> contextlib.AbstractContextManager[None]:
    """Hosts far apart, with so large a part of the packets lost."""
    return far_apart(hosts, bytes_per_s=FAR_BYTES_PER_S, round_trip_s=FAR_ROUND_TRIP_S, loss=loss)


def parsed(output: str) -> list[dict[str, Any]]:
    """The lines that are findings."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def row(library: str, found: dict[str, Any], hosts: int, rate: float) -> dict[str, Any]:
    """A finding beside the bound, which is that of the ring for the bytes that are summed."""
    nbytes = MLP_BYTES if "model" in found else found["bytes"]
    bound = 2 * (hosts - 1) / hosts * nbytes / rate * 1e3
    common = {"library": library, "bytes": nbytes, "bound_ms": bound, "stream_bytes_per_s": rate}
    if "model" not in found:
        taken = statistics.median(found["milliseconds"])
        return {**common, "milliseconds": taken, "over_bound": taken / bound - 1, "wire_bytes": found["wire_bytes"]}
    alone, averaged = (statistics.median(found["milliseconds"][name]) for name in ("alone", "averaged"))
    over = averaged / max(bound, alone) - 1
    return {**common, "model": found["model"], "alone_ms": alone, "milliseconds": averaged, "over_bound": over}


def four_hosts(libraries: Sequence[str], note: Callable[[dict[str, Any]], None]) -> None:
    """One rank on each of four hosts."""
    with namespaces(4, rate=RATE) as hosts:
        rate = goodput(hosts)
        for library in libraries:
            found = run_mpi(hosts, library) if library in PACKAGES else run_ranks(hosts, library, "train")
            for line in found:
                note(row(library, line, 4, rate))


def two_networks(_: Sequence[str], note: Callable[[dict[str, Any]], None]) -> None:
    """One rank on each of two hosts that have a cable to each of two networks: over each alone, and over both."""
    first, second = "10.213.0.0/16", "10.214.0.0/16"
    for rates in ((RATE, RATE), (RATE, "500mbit")):
        with namespaces(2, rate=rates, sshd=False, networks=2) as hosts:
            rate = goodput(hosts)
            for networks in ([first], [second], [first, second]):
                carried = [rates[(first, second).index(network)] for network in networks]
                for line in run_ranks(hosts, "ringcore", env={"RINGCORE_NETWORK": ",".join(networks)}):
                    note({**row("ringcore", line, 2, rate), "rates": carried})


def two_by_two(_: Sequence[str], note: Callable[[dict[str, Any]], None]) -> None:
    """Two ranks on each of two hosts, host after host and in turns; without shared memory the engine takes a ring."""
    with namespaces(2, rate=RATE, sshd=False) as hosts:
        rate = goodput(hosts)
        for order, places in (("host by host", [0, 0, 1, 1]), ("in turns", [0, 1, 0, 1])):
            for plan, transport in (("hierarchical", "auto"), ("flat ring", "tcp")):
                env = {"RINGCORE_TRANSPORT": transport}
                for line in run_ranks([hosts[place] for place in places], "ringcore", env=env):
                    note({**row("ringcore", line, 2, rate), "plan": plan, "order": order})


def hosts_far_apart(libraries: Sequence[str], note: Callable[[dict[str, Any]], None]) -> None:
    """One rank on each of four hosts, each in a place of its own; in all of FAR_WAYS."""
    for loss in (0.0, 0.001):
        with namespaces(4, sshd=False) as hosts, far(hosts, loss):
            for library in libraries:
                for env in FAR_WAYS.get(library, [{}]):
                    for line in run_ranks(hosts, library, "far", env=env, limit_s=FAR_LIMIT_S):
                        note({**row(library, line, 4, FAR_BYTES_PER_S), "loss": loss, **env})


SETTINGS = {"4-hosts": four_hosts, "2-networks": two_networks, "2-by-2": two_by_two, "far-apart": hosts_far_apart}


def main() -> None:
    """One setting."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=BUILT, formatter_class=formatter)
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--libraries", nargs="+", default=["ringcore", "gloo", "Open MPI", "MPICH"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    if "pccl" in options.libraries and not FOLDER:
        parser.error("PCCL_FOLDER is not set")
    results = HERE / "results" / f"network-{options.setting}.jsonl"
    results.parent.mkdir(exist_ok=True)
    with results.open("w" if options.fresh else "a") as file:

        def note(line: dict[str, Any]) -> None:
            print(json.dumps(line), flush=True)
            file.write(json.dumps(line) + "\n")

        for _ in range(options.repeats):
            SETTINGS[options.setting](options.libraries, note)


if __name__ == "__main__":
    main()
