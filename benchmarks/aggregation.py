"""Measures sums that a switch makes on the way, beside our ring's in the same run; hosts are network namespaces.

    python benchmarks/aggregation.py [--cases bulk lossy small] [--ranks 2 4 8] [--repeats 5]

Needs root. Cables of ranks carry 100 Mbit/s in each direction, that of the switch as much as there is: a switch has a
port for each. Jobs with and without the switch take turns, and so does which of the two is first. Lines are added to
results/aggregation.jsonl (--fresh begins it anew); the table that is printed is made of what this run has found.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from network import run_ranks  # noqa: E402
from support.namespaces import Host, namespaces  # noqa: E402
from support.switches import switch, write_key  # noqa: E402

RANK = str(HERE / "aggregation_rank.py")
RATE, BURST, QUEUE = "100mbit", "32kb", "50ms"
BULK, SMALL = 16 << 20, 4 << 10


@dataclasses.dataclass(frozen=True)
class Case:
    """How many ranks there are, what part of the packets is lost, and what is measured."""

    ranks: Sequence[int]
    lost: Sequence[float]
    word: str


CASES = {
    "bulk": Case((2, 4, 8), (0,), "bulk"),
    "lossy": Case((4,), (0, 0.001, 0.01), "bulk"),
    "small": Case((2, 4, 8), (0,), "small"),
}


@contextlib.contextmanager
def losing(hosts: Sequence[Host], part: float) -> Iterator[None]:
    """On the cables of these hosts."""
    with contextlib.ExitStack() as stack:
        for host in hosts if part else ():
            stack.enter_context(host.losing(part))
        yield


def measure(name: str, repeats: int, ranks: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The lines of one case: each is of one job."""
    case = CASES[name]
    for size in [size for size in case.ranks if size in ranks]:
        with namespaces(size + 1, sshd=False) as (at, *hosts), tempfile.TemporaryDirectory() as folder:
            key = write_key(Path(folder, "switch-key"))
            for host in hosts:
                host.shape(RATE, BURST, QUEUE)
            for repeat in range(repeats):
                for lost in case.lost:
                    # Only UDP loses here: the plans are not measured beside it.
                    ways = ["switch"] if name == "lossy" else ["switch", "plans"]
                    for way in ways if repeat % 2 == 0 else reversed(ways):
                        with switch(at, key) as running, losing(hosts, lost):
                            env = {"RINGCORE_ENCRYPTION": "off"}
                            if way == "switch":
                                env |= {"RINGCORE_SWITCH": running.address, "RINGCORE_SWITCH_KEY_FILE": str(key)}
                            found = run_ranks(hosts, "ringcore", case.word, env=env, script=RANK)
                            running.end()
                        for line in found:
                            yield {
                                "case": name, "ranks": size, "lost": lost, "way": way, "packets": running.counts[0],
                                **line,
                            }  # fmt: skip


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Medians over jobs of the medians of each, the least and the most of those, and who carried the calls out."""
    rows = ["| case | ranks | lost | way | taken | ms | from | to |", "|---|---|---|---|---|---|---|---|"]
    keys = ("case", "ranks", "lost", "way")
    for values in dict.fromkeys(tuple(line[key] for key in keys) for line in lines):
        jobs = [line for line in lines if tuple(line[key] for key in keys) == values]
        times = [statistics.median(line["milliseconds"]) for line in jobs]
        taken = "/".join(sorted({way for line in jobs for way in line["taken"]}))
        row = f"| {' | '.join(map(str, values))} | {taken} | {statistics.median(times):.1f} |"
        rows.append(f"{row} {min(times):.1f} | {max(times):.1f} |")
    return "\n".join(rows)


def main() -> None:
    """All cases, or some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    results = HERE / "results" / "aggregation.jsonl"
    lines = []
    date = time.strftime("%Y-%m-%d", time.gmtime())
    machine = {"date": date, "machine": platform.machine(), "cores": os.cpu_count()}
    with results.open("w" if options.fresh else "a") as file:
        for name in options.cases:
            for line in measure(name, options.repeats, options.ranks):
                text = json.dumps({**machine, **line})
                file.write(text + "\n")
                print(text, flush=True)
                lines.append(line)
    print(table(lines))


if __name__ == "__main__":
    main()
