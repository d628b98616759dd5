"""Measures what encryption between hosts costs, beside clear text in the same run; hosts are network namespaces.

    python benchmarks/encryption.py [--cases bulk-1gbit bulk-10gbit latency start-up] [--repeats 5] [--openssl PATH]

Needs root. Jobs with and without encryption take turns, and so does which of the two is first. Lines are added to
results/encryption.jsonl (--fresh begins it anew); the table that is printed is made of what this run has found.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from network import run_ranks  # noqa: E402
from support.namespaces import namespaces  # noqa: E402

RANK = str(HERE / "encryption_rank.py")
TRANSPORT = {"off": "tcp", "on": "tls"}


@dataclasses.dataclass(frozen=True)
class Case:
    """Hosts, what each sends at most, ranks of each, and what the ranks are told to measure."""

    hosts: int
    rate: str | None
    each: int
    words: Sequence[str]


CASES = {
    "bulk-1gbit": Case(4, "1gbit", 1, ["bulk"]),
    "bulk-10gbit": Case(2, "10gbit", 1, ["bulk", "one-core"]),
    "latency": Case(2, None, 1, ["latency"]),
    "start-up": Case(4, None, 2, ["start"]),
}


def measure(name: str, repeats: int, openssl: str) -> list[dict[str, Any]]:
    """The lines of one case: each is of one job and size. `openssl`: the library that encrypts; empty: the system's."""
    case, lines = CASES[name], []
    with namespaces(case.hosts, rate=case.rate, sshd=False) as hosts:
        places = [host for host in hosts for _ in range(case.each)]
        for repeat in range(repeats):
            for encryption in ("off", "on") if repeat % 2 == 0 else ("on", "off"):
                env = {"RINGCORE_ENCRYPTION": encryption, "RINGCORE_OPENSSL_LIBRARY": openssl}
                for found in run_ranks(places, "ringcore", *case.words, env=env, script=RANK):
                    if TRANSPORT[encryption] not in found["transports"]:
                        raise SystemExit(f"{name} with encryption {encryption} went over {found['transports']}")
                    lines.append({"case": name, "encryption": encryption, **found})
                    print(json.dumps(lines[-1]), flush=True)
    return lines


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Medians over jobs of the medians of each, the least and the most of those, and processor seconds a call."""
    rows = ["| case | bytes | encryption | ms | from | to | processor s a call |", "|---|---|---|---|---|---|---|"]
    for case, nbytes in dict.fromkeys((line["case"], line["bytes"]) for line in lines):
        for encryption in TRANSPORT:
            jobs = [line for line in lines if (line["case"], line["bytes"]) == (case, nbytes)]
            jobs = [line for line in jobs if line["encryption"] == encryption]
            times = [statistics.median(line["milliseconds"]) for line in jobs]
            used = [line["processor_s"] for line in jobs if "processor_s" in line]
            spent = f"{statistics.median(used):.6f}" if used else ""
            row = f"| {case} | {nbytes} | {encryption} | {statistics.median(times):.3f} |"
            rows.append(f"{row} {min(times):.3f} | {max(times):.3f} | {spent} |")
    return "\n".join(rows)


def main() -> None:
    """All cases, or some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--openssl", default="", help="path of the library that encrypts: the system's")
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    results = HERE / "results" / "encryption.jsonl"
    lines = []
    with results.open("w" if options.fresh else "a") as file:
        for name in options.cases:
            found = measure(name, options.repeats, options.openssl)
            file.writelines(json.dumps(line) + "\n" for line in found)
            lines += found
    print(table(lines))


if __name__ == "__main__":
    main()
