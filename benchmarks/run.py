"""Measures allreduce of ringcore beside its peers, interleaved in one run; writes JSON lines, a table and a plot.

    python benchmarks/run.py [--ranks 2] [--repeats 3] [--max-bytes 268435456]

Each MPI comes from its wheel into an environment of its own. A repeat starts every library once;
the figure is the median over the repeats, the spread their smallest and largest value.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.mpis import PACKAGES, installed  # noqa: E402

PLOT = HERE.parent / "docs" / "images" / "allreduce.png"
WORKER = str(HERE / "allreduce.py")
PYTHON = Path(sys.executable)
LIMIT_S = 300

LABELS = {
    "ringcore-registered": "ringcore, registered memory",
    "ringcore": "ringcore, any memory",
    "gloo": "PyTorch gloo",
}


def commands(ranks: int, most: int) -> dict[str, tuple[list[str], Path]]:
    """How each library's worker is started: the command, and the folder of its programs."""
    here = PYTHON.parent
    worker = [WORKER]
    started = {}
    for name in ("ringcore-registered", "ringcore"):
        started[name] = (["ringrun", "-np", str(ranks), str(PYTHON), *worker, name, str(most)], here)
    started["gloo"] = (["ringrun", "-np", str(ranks), str(PYTHON), *worker, "gloo", str(most)], here)
    for name in PACKAGES:
        mpi = installed(name)
        python = str(mpi.programs / "python")
        started[name] = ([*mpi.launch(ranks), python, *worker, "mpi", str(most)], mpi.programs)
    return started


def run_once(command: list[str], programs: Path) -> dict[int, float]:
    """Bytes -> microseconds, from one start of a library."""
    path = f"{programs}:{os.environ['PATH']}"
    variables = {"PATH": path, "OMP_NUM_THREADS": "1", "I_MPI_PIN": "0", "FI_PROVIDER": "tcp"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **variables}, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    times = {}
    for line in done.stdout.splitlines():
        _, brace, rest = line.partition("{")
        if brace:
            sample = json.loads(brace + rest)
            times[sample["bytes"]] = sample["median_us"]
    return times


def table(results: dict[str, dict[int, list[float]]]) -> str:
    """Microseconds, a row a size."""
    names = list(results)
    lines = [
        "| bytes | " + " | ".join(LABELS.get(name, name) for name in names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for nbytes in results[names[0]]:
        cells = [f"{statistics.median(results[name][nbytes]):.4g}" for name in names]
        lines.append(f"| {nbytes} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(results: dict[str, dict[int, list[float]]], ranks: int) -> None:
    """Time over size, with the spread over the repeats."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    for name, by_size in results.items():
        sizes = sorted(by_size)
        middle = [statistics.median(by_size[size]) for size in sizes]
        ours = name.startswith("ringcore")
        (line,) = axes.plot(sizes, middle, marker="o", ms=3, lw=2.5 if ours else 1.2, label=LABELS.get(name, name))
        low, high = [min(by_size[size]) for size in sizes], [max(by_size[size]) for size in sizes]
        axes.fill_between(sizes, low, high, color=line.get_color(), alpha=0.15)
    axes.set(
        xscale="log", yscale="log", xlabel="bytes", ylabel="microseconds",
        title=f"allreduce, {ranks} ranks on one host, float32 sum in place, from Python",
    )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT, dpi=110)


def main() -> None:
    """The whole comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-bytes", type=int, default=256 << 20)
    options = parser.parse_args()
    started = commands(options.ranks, options.max_bytes)
    results: dict[str, dict[int, list[float]]] = {name: {} for name in started}
    for repeat in range(options.repeats):
        for name, (command, programs) in started.items():
            print(f"repeat {repeat + 1} of {options.repeats}: {LABELS.get(name, name)}", flush=True)
            for nbytes, microseconds in run_once(command, programs).items():
                results[name].setdefault(nbytes, []).append(microseconds)
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    stem = f"allreduce-{options.ranks}-ranks"
    with (folder / f"{stem}.jsonl").open("w") as file:
        machine = {"machine": platform.machine(), "cores": os.cpu_count(), "ranks": options.ranks}
        for name, by_size in results.items():
            for nbytes, values in by_size.items():
                file.write(json.dumps({**machine, "library": name, "bytes": nbytes, "microseconds": values}) + "\n")
    text = table(results)
    (folder / f"{stem}.md").write_text(text + "\n")
    print(text)
    if options.ranks == 2:
        plot(results, options.ranks)
        print(f"plot: {PLOT.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
