"""Measures what is gained where links differ, by plans that know it, and what knowing costs; hosts are namespaces.

    python benchmarks/uneven.py --program build/native/benchmark/ringcore_uneven [--cases star4 ...] [--record]

`star4`: four hosts with cables of their own between any two: 200 Mbit/s from the first one, 40 Mbit/s among the others.
`racks`: two racks of three hosts with 100 Mbit/s, and 25 Mbit/s between the racks.
`slow-host`: four and eight hosts with 100 Mbit/s, one of them with a quarter.
`uniform`: two, four and eight hosts with 100 Mbit/s: a job that was told so beside one that was not.
`probe`: `ringcore topology` of eight hosts with 100 Mbit/s.
`planning`: from the question to a verified plan for 16 hosts with random cables.
`python-plan`: the engine's ring beside the same in Python, and its packed trees beside those of `examples/plans`.

In the first three and the last one 16 MiB of float32 are summed, in `uniform` 4 MiB. The ways of a case are jobs that
stand side by side: each in turn makes one sum while the others wait, and every result is checked on every rank. The
time is that of the slowest rank. `told` is the engine with `--topology-file`; other plans are forced on it by
registering them. Bounds are those of the rates that cables were given, of which 1448 of 1514 bytes are data: no way
can have more than 0.956 of its bound. Needs root. With --record lines are added to results/uneven.jsonl (with --fresh
it is begun anew).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from network import HERE, key_file
from ringcore.network import Host as NamedHost
from ringcore.network import Link, Topology
from ringcore.network.units import parse_rate
from ringcore.plans import Plan, Request
from support.namespaces import Host, environ_with_ssh, move_to_rack, namespaces
from uneven_plans import PARTS, ring

RANK = str(HERE / "uneven_rank.py")
PORT = 29450
NBYTES, UNIFORM_BYTES = 16 << 20, 4 << 20
SPOKE, RIM, PORT_RATE, QUARTER = "200mbit", "40mbit", "100mbit", "25mbit"
STAR_BOUND = "240mbit"  # of packed trees
BURST, QUEUE = "32kb", "50ms"
# Of a cable's frames so much is data.
DATA = 1448 / 1514
# Two lanes take turns; each tries the candidates one after the other, and keeps its own quickest. So nothing is tried
# any more when, of so many sums, each went the way of the last but one. Jobs that are told nothing first look at the
# network, which may take eight sums of a lane.
SETTLED, SETTLED_UNTOLD = 4, 18
OTHERS = ("direct", "halving_doubling", "double_tree")
PLANNED_HOSTS, PLANNED_NETWORKS = 16, 15
LIMIT_S = 120


@dataclasses.dataclass(frozen=True)
class Way:
    """How sums are made.

    Attributes:
        name: In results.
        told: The network that rank 0 has a file of.
        plan: That is registered: a file, or a generator of `uneven_plans.py`.
        library: That makes them.
        settled: So many sums tell whether anything is still tried.
    """

    name: str
    told: Topology | None = None
    plan: str = ""
    library: str = "ringcore"
    settled: int = SETTLED


def start_ranks(
    hosts: Sequence[Host], library: str, port: int, key: str, *words: str, env: Mapping[str, str] | None = None
) -> list[subprocess.Popen[bytes]]:
    """One on each host; see `uneven_rank.py`."""
    # Hosts that share two processors may be silent for long.
    environ = {**os.environ, "RINGCORE_ENCRYPTION": "off", "RINGCORE_HEARTBEAT_S": "60", **(env or {})}
    ranks = []
    for rank, host in enumerate(hosts):
        place = [str(rank), str(len(hosts)), hosts[0].address, str(port), key]
        command = [sys.executable, RANK, library, *place, *words]
        ranks.append(host.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ))
    return ranks


def read_lines(ranks: Sequence[subprocess.Popen[bytes]]) -> list[dict[str, Any]]:
    """The next one of each rank."""
    lines = []
    for number, rank in enumerate(ranks):
        assert rank.stdout is not None
        # It writes one line for each that it reads, so that nothing waits in a buffer of this process.
        in_time = select.select([rank.stdout], [], [], LIMIT_S)[0]
        lines.append(rank.stdout.readline() if in_time else b"")
        if not lines[-1]:
            raise SystemExit(f"rank {number} has failed" if in_time else f"rank {number} said nothing for {LIMIT_S} s")
    return [json.loads(line) for line in lines]


def end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Nobody tells them anything more, so they end."""
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.close()
    for rank in ranks:
        rank.wait(LIMIT_S)


class Job:
    """A rank on each host, which sum when they are told to."""

    def __init__(self, way: Way, hosts: Sequence[Host], port: int, nbytes: int, key: str, folder: Path) -> None:
        self.way = way
        env = {}
        if way.told is not None:
            file = folder / f"{port}.json"
            way.told.save(file)
            env["RINGCORE_TOPOLOGY_FILE"] = str(file)
        words = [str(nbytes), *filter(None, [way.plan])]
        self.ranks = start_ranks(hosts, way.library, port, key, *words, env=env)
        self.ready_s = max(line["ready_s"] for line in read_lines(self.ranks))

    def sum(self) -> dict[str, Any]:
        """Make one; it took as long as on the slowest rank."""
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write(b"\n")
            rank.stdin.flush()
        lines = read_lines(self.ranks)
        if any(line["digest"] != lines[0]["digest"] for line in lines):
            raise SystemExit(f"{self.way.name}: ranks have different sums")
        return {**lines[0], "milliseconds": max(line["milliseconds"] for line in lines)}

    def settle(self) -> None:
        """Sum until it has tried what it tries."""
        taken: list[list[str]] = []
        while len(taken) < self.way.settled or any(one != other for one, other in zip(taken, taken[2:], strict=False)):
            taken = [*taken, self.sum()["taken"]][-self.way.settled :]


def compare(
    hosts: Sequence[Host], ways: Sequence[Way], nbytes: int, bound: str, repeats: int
) -> Iterator[dict[str, Any]]:
    """A line for each way; the first one is what others are compared with. `bound` is the rate of a sum's data."""
    bound_ms = nbytes * 8 / parse_rate(bound) * 1e3
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        key = stack.enter_context(key_file())
        jobs = []
        for number, way in enumerate(ways):
            jobs.append(Job(way, hosts, PORT + number, nbytes, key, folder))
            stack.callback(end, jobs[-1].ranks)
            jobs[-1].settle()
        found: dict[str, list[dict[str, Any]]] = {way.name: [] for way in ways}
        for repeat in range(repeats):
            for job in jobs if repeat % 2 == 0 else reversed(jobs):
                found[job.way.name].append(job.sum())
    anchor = statistics.median(each["milliseconds"] for each in found[ways[0].name])
    for job in jobs:
        sums = found[job.way.name]
        times = [each["milliseconds"] for each in sums]
        yield {
            "hosts": len(hosts), "way": job.way.name, "bytes": nbytes, "ready_s": job.ready_s,
            "taken": sorted({name for each in sums for name in each["taken"]}), "milliseconds": times,
            "median": statistics.median(times), "least": min(times), "most": max(times),
            "anchor": ways[0].name, "anchor_over_median": anchor / statistics.median(times),
            "of_bound": bound_ms / statistics.median(times), "digests": sorted({each["digest"] for each in sums}),
        }  # fmt: skip


def saved(program: str, generator: str, hosts: int, folder: Path, nbytes: int = NBYTES) -> str:
    """A file with the plan of one of the engine's generators."""
    file = str(folder / f"{generator}-{hosts}.bin")
    rate = f"{parse_rate(PORT_RATE):.0f}"
    subprocess.run([program, "save", generator, str(hosts), rate, str(nbytes), file], check=True)
    return file


def ring_bound(hosts: int) -> str:
    """The rate of a sum's data where all ports are alike: nothing is quicker than a ring."""
    return f"{parse_rate(PORT_RATE) * hosts / (2 * (hosts - 1)):.0f}bit"


def own_cables(rates: Mapping[tuple[str, str], str]) -> Topology:
    """Hosts with a cable of its own for each direction between two of them."""
    names = dict.fromkeys(itertools.chain.from_iterable(rates))
    links = [Link(start, end, parse_rate(rate), 50e-6) for (start, end), rate in rates.items()]
    return Topology(tuple(map(NamedHost, names)), (), tuple(links))


def switched(hosts: Sequence[Host], rates: Sequence[str], racks: int = 1, between: str = PORT_RATE) -> Topology:
    """Hosts at a switch, or two racks of them with a cable between."""
    switches = tuple(f"switch{number}" for number in range(racks))
    ends = [(host.name, switches[i * racks // len(hosts)], rates[i]) for i, host in enumerate(hosts)]
    ends += [(one, other, between) for one, other in itertools.pairwise(switches)]
    links = [Link(start, end, parse_rate(rate), 25e-6) for a, b, rate in ends for start, end in ((a, b), (b, a))]
    return Topology(tuple(NamedHost(host.name) for host in hosts), switches, tuple(links))


@contextlib.contextmanager
def star() -> Iterator[tuple[list[Host], Topology]]:
    """Four hosts with cables of their own, quick ones from the first one, and what a job is told of it."""
    with namespaces(4, sshd=False) as hosts:
        pairs = list(itertools.permutations(hosts, 2))
        rates = {(one.name, other.name): SPOKE if hosts[0] in (one, other) else RIM for one, other in pairs}
        for host in hosts:
            host.shape_towards({other.address: rates[one.name, other.name] for one, other in pairs if one is host})
        yield hosts, own_cables(rates)


@contextlib.contextmanager
def ports(rates: Sequence[str]) -> Iterator[list[Host]]:
    """Hosts at one switch, each with a port of its rate."""
    with namespaces(len(rates), sshd=False) as hosts:
        for host, rate in zip(hosts, rates, strict=True):
            host.shape(rate, BURST, QUEUE)
        yield hosts


def star4(program: str, repeats: int) -> Iterator[dict[str, Any]]:
    """Packed trees beside every other plan, several rings at once, and gloo."""
    with star() as (hosts, network), tempfile.TemporaryDirectory() as folder:
        forced = [Way(name, plan=saved(program, name, 4, Path(folder)), settled=2) for name in ("ring", *OTHERS)]
        others = [Way("rings", plan="rings", settled=2), Way("gloo", library="gloo", settled=1)]
        yield from compare(hosts, [*forced, *others, Way("told", network)], NBYTES, STAR_BOUND, repeats)


def racks(program: str, repeats: int) -> Iterator[dict[str, Any]]:
    """A sum passes the narrow cable once each way."""
    with ports([PORT_RATE] * 6) as hosts, tempfile.TemporaryDirectory() as folder:
        move_to_rack(hosts[3:], QUARTER)
        network = switched(hosts, [PORT_RATE] * 6, 2, QUARTER)
        around = Way("ring", plan=saved(program, "ring", 6, Path(folder)), settled=2)
        yield from compare(hosts, [around, Way("told", network)], NBYTES, QUARTER, repeats)


def slow_host(program: str, repeats: int) -> Iterator[dict[str, Any]]:
    """A sum passes the slow port once each way."""
    for size in (4, 8):
        rates = [QUARTER if number == 1 else PORT_RATE for number in range(size)]
        with ports(rates) as hosts, tempfile.TemporaryDirectory() as folder:
            around = Way("ring", plan=saved(program, "ring", size, Path(folder)), settled=2)
            yield from compare(hosts, [around, Way("told", switched(hosts, rates))], NBYTES, QUARTER, repeats)


def uniform(program: str, repeats: int) -> Iterator[dict[str, Any]]:  # noqa: ARG001
    """A job that knows beside one that does not."""
    for size in (2, 4, 8):
        with ports([PORT_RATE] * size) as hosts:
            ways = [
                Way("untold", settled=SETTLED_UNTOLD),
                Way("told", switched(hosts, [PORT_RATE] * size), settled=SETTLED_UNTOLD),
            ]
            yield from compare(hosts, ways, UNIFORM_BYTES, ring_bound(size), repeats)


def probe(program: str, repeats: int) -> Iterator[dict[str, Any]]:  # noqa: ARG001
    """The command, which starts a rank on each host over ssh, and the measurement alone."""
    expected = parse_rate(PORT_RATE) * DATA
    with namespaces(8) as hosts:
        for host in hosts:
            host.shape(PORT_RATE, BURST, QUEUE)
        names = ",".join(host.name for host in hosts)
        command = [sys.executable, "-m", "ringcore", "topology", "-H", names]
        for _ in range(repeats):
            begin = time.perf_counter()
            hosts[0].run(command, env=environ_with_ssh(hosts[0]), check=True, timeout=LIMIT_S)
            seconds = time.perf_counter() - begin
            with key_file() as key:
                ranks = start_ranks(hosts, "probe", PORT, key)
                found = read_lines(ranks)[0]
                end(ranks)
            errors = {kind: max(abs(rate / expected - 1) for rate in found[kind]) for kind in ("ports", "pairs")}
            yield {
                "hosts": len(hosts), "command_s": seconds, "seconds": found["seconds"],
                "error_of_ports": errors["ports"], "error_of_pairs": errors["pairs"],
                "switches": found["switches"], "shared_ports_found": all(map(all, found["share_a_port"])),
            }  # fmt: skip


def planning(program: str, repeats: int) -> Iterator[dict[str, Any]]:  # noqa: ARG001
    """Networks as `nox -s packings` draws them."""
    for seed in range(PLANNED_NETWORKS):
        words = ["ready", str(PLANNED_HOSTS), str(seed), str(NBYTES)]
        yield json.loads(subprocess.run([program, *words], capture_output=True, check=True, timeout=LIMIT_S).stdout)


def python_plan(program: str, repeats: int) -> Iterator[dict[str, Any]]:
    """What Python has made beside the engine's own."""
    with ports([PORT_RATE] * 4) as hosts, tempfile.TemporaryDirectory() as folder:
        builtin = Plan.load(saved(program, "ring", 4, Path(folder)))
        same = builtin == ring(Request("allreduce", NBYTES, tuple(range(4)))) and builtin.chunks == 4 * PARTS
        # Who is told that nothing but a ring's links are quick takes the ring.
        pairs = itertools.permutations(range(4), 2)
        quick = {(hosts[i].name, hosts[j].name): PORT_RATE if j == (i + 1) % 4 else "1mbit" for i, j in pairs}
        ways = [Way("ring", own_cables(quick)), Way("in Python", plan="ring", settled=2)]
        lines = list(compare(hosts, ways, NBYTES, ring_bound(4), repeats))
        equal = lines[0]["digests"] == lines[1]["digests"] and len(lines[0]["digests"]) == 1
        for line in lines:
            yield {**line, "plan": "ring", "same_steps": same, "bitwise_equal": equal}
    with star() as (hosts, network):
        ways = [Way("packed_trees", network), Way("in Python", network, plan="packed", settled=2)]
        for line in compare(hosts, ways, NBYTES, STAR_BOUND, repeats):
            yield {**line, "plan": "packed"}


CASES = {
    "star4": star4, "racks": racks, "slow-host": slow_host, "uniform": uniform, "probe": probe, "planning": planning,
    "python-plan": python_plan,
}  # fmt: skip


def main() -> None:
    """All cases, or some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="ringcore_uneven")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--record", action="store_true", help="add what was found to results/uneven.jsonl")
    parser.add_argument("--fresh", action="store_true", help="begin the file anew")
    options = parser.parse_args()
    results = HERE / "results" / "uneven.jsonl"
    if options.fresh:
        results.unlink(missing_ok=True)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    machine = {"date": date, "machine": platform.machine(), "cores": os.cpu_count()}
    for case in options.cases:
        for line in CASES[case](options.program, options.repeats):
            text = json.dumps({**machine, "case": case, **line})
            print(text, flush=True)
            if options.record:
                with results.open("a") as file:
                    file.write(text + "\n")


if __name__ == "__main__":
    main()
