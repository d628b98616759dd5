"""Measures what many ranks cost, beside peers, over TCP on one machine; some minutes.

    python benchmarks/many_ranks/run.py [small] [ring] [memory] [start] [idle] [--repeats 3]
                                        [--libraries ringcore "ringcore, elastic" MPICH "Open MPI" gloo]

small: processor time of an allreduce of 8 bytes, 32 ranks. ring: sockets of a rank after one of 64 MiB, 64 ranks.
memory: of a rank after a small allreduce, 128 ranks and 2. start: from the launch to the first result, 64 ranks. idle:
share of a core of a rank that has nothing to do, 128 ranks. The libraries take turns, repeat by repeat; the figure is
the median over the repeats of the median over the ranks, with the smallest and the largest. Goes to
benchmarks/results/many-ranks.jsonl, where other cases stay, and many-ranks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from support.mpis import installed  # noqa: E402

RESULTS = HERE.parent / "results"
LIMIT_S = 600
LIBRARIES = ["ringcore", "ringcore, elastic", "MPICH", "Open MPI", "gloo"]
# Case -> what the ranks do, the numbers of ranks, and the figures that are shown.
CASES = {
    "small": ("small", [32], ["cpu_us", "wall_us"]),
    "ring": ("ring", [64], ["sockets", "most_sockets"]),
    "memory": ("start", [2, 128], ["resident_kib", "private_kib", "sockets"]),
    "start": ("start", [64], ["most_wall_s", "cpu_s"]),
    "idle": ("idle", [128], ["core_percent", "most_core_percent"]),
}
# All ranks are on one host; over TCP they are to be treated as if they were not.
TCP = {
    "RINGCORE_TRANSPORT": "tcp",
    "MPIR_CVAR_NOLOCAL": "1",
    "FI_PROVIDER": "tcp",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_pml": "ob1",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}


def command_of(library: str, ranks: int, case: str) -> tuple[list[str], str]:
    """How the ranks are started, and the folder of the programs that this takes."""
    library, _, elastic = library.partition(", ")
    if library in ("ringcore", "gloo"):
        python = Path(sys.executable)
        started = [
            str(python.with_name("ringrun")),
            "-np",
            str(ranks),
            *(["--min-np", "1"] if elastic else []),
            str(python),
        ]
    else:
        mpi = installed(library)
        python = mpi.programs / "python"
        started = [*mpi.launch(ranks), str(python)]
    return [*started, str(HERE / "rank.py"), library, case], str(python.parent)


def measure(library: str, ranks: int, case: str) -> dict[str, float]:
    """One start of the ranks; what rank 0 has printed."""
    command, programs = command_of(library, ranks, case)
    port = 20_000 + secrets.randbelow(10_000)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=HERE,
        env={
            **os.environ, **TCP, "PATH": f"{programs}:{os.environ['PATH']}",
            "RINGCORE_BENCHMARK_BEGIN": str(time.time()),
            # Where all have much to do, a rank may not come to its turn for longer than the default of 2 s.
            **({"RINGCORE_HEARTBEAT_S": "60"} if case == "ring" else {}),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        },
    )  # fmt: skip
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if "{" in line]
    if done.returncode != 0 or len(lines) != 1:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    found: dict[str, float] = json.loads(lines[0])
    return found


def spread(values: Sequence[float]) -> str:
    """Median (smallest to largest)."""
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all of them, where none is named")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--ranks", type=int, nargs="+", help="other numbers of ranks")
    options = parser.parse_args()
    results = RESULTS / "many-ranks.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    for case in options.cases or CASES:
        work, sizes, _ = CASES[case]
        for ranks in options.ranks or sizes:
            found: dict[str, list[dict[str, float]]] = {library: [] for library in options.libraries}
            for repeat in range(options.repeats):
                for library in options.libraries:
                    print(f"{case}, {ranks} ranks, repeat {repeat + 1}: {library}", flush=True)
                    found[library].append(measure(library, ranks, work))
            rows = [row for row in rows if (row["case"], row["ranks"]) != (case, ranks) or row["library"] not in found]
            machine = {"machine": platform.machine(), "cores": os.cpu_count()}
            rows += [
                {**machine, "case": case, "ranks": ranks, "library": library, "repeats": repeats}
                for library, repeats in found.items()
            ]
            results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (RESULTS / "many-ranks.md").write_text(table_of(rows))
    print("\n" + table_of(rows), flush=True)


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """All results, in the order of the cases."""
    lines = ["| case | ranks | library | figure | median (smallest to largest) |", "| --- " * 5 + "|"]
    for case, (_, _, figures) in CASES.items():
        for row in rows:
            for figure in figures if row["case"] == case else ():
                values = [repeat[figure] for repeat in row["repeats"]]
                lines.append(f"| {case} | {row['ranks']} | {row['library']} | {figure} | {spread(values)} |")
    return "\n".join(lines) + "\n"


main()
