"""Measures what many ranks cost, beside peers, over TCP on one machine; some minutes.

    python benchmarks/many_ranks/run.py [small] [ring] [memory] [start] [idle] [--repeats 3]
                                        [--libraries ringcore MPICH "Open MPI" gloo]

small: processor time of an allreduce of 8 bytes, 32 ranks. ring: sockets of a rank after one of 64 MiB, 64 ranks.
memory: of a rank after a small allreduce, 128 ranks and 2. start: from the launch to the first result, 64 ranks. idle:
share of a core of a rank that has nothing to do, 128 ranks. The libraries take turns, repeat by repeat; the figure is
the median over the repeats of the median over the ranks, with the smallest and the largest. Writes
benchmarks/results/many-ranks.jsonl and .md.
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

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from support.mpis import installed  # noqa: E402

RESULTS = HERE.parent / "results"
LIMIT_S = 600
LIBRARIES = ["ringcore", "MPICH", "Open MPI", "gloo"]
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
    if library in ("ringcore", "gloo"):
        python = Path(sys.executable)
        started = [str(python.with_name("ringrun")), "-np", str(ranks), str(python)]
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
    rows = []
    lines = ["| case | ranks | library | figure | median (smallest to largest) |", "| --- " * 5 + "|"]
    for case in options.cases or CASES:
        work, sizes, figures = CASES[case]
        for ranks in options.ranks or sizes:
            found: dict[str, list[dict[str, float]]] = {library: [] for library in options.libraries}
            for repeat in range(options.repeats):
                for library in options.libraries:
                    print(f"{case}, {ranks} ranks, repeat {repeat + 1}: {library}", flush=True)
                    found[library].append(measure(library, ranks, work))
            for library, repeats in found.items():
                rows.append({"case": case, "ranks": ranks, "library": library, "repeats": repeats})
                for figure in figures:
                    values = [repeat[figure] for repeat in repeats]
                    lines.append(f"| {case} | {ranks} | {library} | {figure} | {spread(values)} |")
    RESULTS.mkdir(exist_ok=True)
    machine = {"machine": platform.machine(), "cores": os.cpu_count()}
    with (RESULTS / "many-ranks.jsonl").open("w") as file:
        file.writelines(json.dumps({**machine, **row}) + "\n" for row in rows)
    (RESULTS / "many-ranks.md").write_text("\n".join(lines) + "\n")
    print("\n" + "\n".join(lines), flush=True)


main()
