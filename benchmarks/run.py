"""Measures ringcore beside its peers, interleaved; writes JSON lines, a table and plots.

    python benchmarks/run.py [allreduce] [training] [lightning] [images] [jax] [tensorflow] [keras] [mxnet]
                             [parameter_server] [mpi] [mpi_hosts] [collectives] [OPTIONS]

Without names the first four run; the others need environments of their frameworks, and KERAS_BACKEND. Each MPI comes
from its wheel into an environment of its own. A repeat starts every library once; the figure is the median over the
repeats, the spread their smallest and largest value. Results are verified by the ranks: a wrong one ends the benchmark.

Few ranks beside each MPI, in a few minutes, and the same beside a program that takes a quarter of each processor:

    python benchmarks/run.py collectives --ranks 2 --repeats 1 --max-bytes 67108864 [--neighbour 0.25] [--tcp]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from neighbour import neighbours  # noqa: E402
from support.mpis import PACKAGES, RINGCORE, Mpi, installed, only_packages  # noqa: E402

RESULTS = HERE / "results"
PLOT = HERE.parent / "docs" / "images" / "allreduce.png"
PYTHON = Path(sys.executable)
LIMIT_S = 300

# All ranks are on one host; over TCP they are to be treated as if they were not.
OVER_TCP = {
    "RINGCORE_TRANSPORT": "tcp",
    "MPIR_CVAR_NOLOCAL": "1",
    "FI_PROVIDER": "tcp",
    "I_MPI_FABRICS": "ofi",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_pml": "ob1",
}

LABELS = {
    "limit": "the machine's limit",
    "ringcore-registered": "ringcore, registered memory",
    "ringcore": "ringcore, any memory",
    "gloo": "PyTorch gloo",
}
# Model -> batch a rank, steps a round.
TRAINED = {"mlp": (8, 20), "resnet18": (8, 5), "tensors": (8, 40)}
MODEL_LABELS = {
    "mlp": "MLP, 25 M parameters in 60 tensors",
    "resnet18": "ResNet-18-shaped, 11.7 M parameters",
    "tensors": "1000 tensors of 256 parameters",
}
ROUNDS = 7


def lines_of(command: list[str], programs: Path, **more: str) -> Iterator[dict[str, Any]]:
    """Run a command of which one rank prints JSON lines."""
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=HERE,
        env={**os.environ, **variables, "I_MPI_PIN": "0", "FI_PROVIDER": "tcp"},
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    for line in done.stdout.splitlines():
        _, brace, rest = line.partition("{")
        if brace:
            yield json.loads(brace + rest)


def under_ringrun(ranks: int, *worker: str) -> list[str]:
    """How a worker of this environment is started."""
    return [str(PYTHON.with_name("ringrun")), "-np", str(ranks), str(PYTHON), *worker]


def record(name: str, rows: list[dict[str, Any]], text: str) -> None:
    """Write what a benchmark found, and show its table."""
    RESULTS.mkdir(exist_ok=True)
    machine = {"machine": platform.machine(), "cores": os.cpu_count()}
    with (RESULTS / f"{name}.jsonl").open("w") as file:
        for row in rows:
            file.write(json.dumps({**machine, **row}) + "\n")
    (RESULTS / f"{name}.md").write_text(text + "\n")
    print(f"\n{name}\n\n{text}\n", flush=True)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def spread(values: list[float]) -> str:
    """Median (smallest to largest)."""
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


# ---- Allreduce ----


def libraries(ranks: int, most: int, limit_program: Path | None) -> dict[str, tuple[list[str], Path]]:
    """How each library's worker is started: the command, and the folder of its programs."""
    here = PYTHON.parent
    started: dict[str, tuple[list[str], Path]] = {}
    if limit_program is not None:
        started["limit"] = ([str(limit_program), str(ranks)], here)
    for name in ("ringcore-registered", "ringcore", "gloo"):
        started[name] = (under_ringrun(ranks, "allreduce_rank.py", name, str(most)), here)
    for name in PACKAGES:
        mpi = installed(name)
        worker = [str(mpi.programs / "python"), "allreduce_rank.py", "mpi", str(most)]
        started[name] = ([*mpi.launch(ranks), *worker], mpi.programs)
    return started


def allreduce(options: argparse.Namespace) -> None:
    """Sizes from 8 bytes on, and 1000 tensors of 4 KiB, with each number of ranks."""
    for ranks in options.ranks:
        allreduce_of(ranks, options)


def allreduce_of(ranks: int, options: argparse.Namespace) -> None:
    """With one number of ranks."""
    started = libraries(ranks, options.max_bytes, options.limit_program)
    sizes: dict[str, dict[int, list[float]]] = {name: {} for name in started}
    many: dict[str, list[float]] = {}
    for repeat in range(options.repeats):
        for name, (command, programs) in started.items():
            print(f"allreduce, {ranks} ranks, repeat {repeat + 1}: {LABELS.get(name, name)}", flush=True)
            for line in lines_of(command, programs):
                if "way" in line:
                    many.setdefault(f"{LABELS.get(name, name)}, {line['way']}", []).append(line["median_us"])
                elif line.get("case", "limit") == "limit" and line["bytes"] <= options.max_bytes:
                    sizes[name].setdefault(line["bytes"], []).append(line["median_us"])
    shown = sorted(sizes["ringcore"])
    rows: list[dict[str, Any]] = [
        {"ranks": ranks, "library": name, "bytes": size, "microseconds": values}
        for name, by_size in sizes.items()
        for size, values in by_size.items()
    ]
    rows += [{"ranks": ranks, "library": name, "tensors": 1000, "microseconds": v} for name, v in many.items()]
    cells = [
        [str(size), *(f"{statistics.median(sizes[n][size]):.4g}" if size in sizes[n] else "" for n in sizes)]
        for size in shown
    ]
    text = table(["bytes", *(LABELS.get(name, name) for name in sizes)], cells)
    if "limit" in sizes:
        ratios = [
            [str(size), f"{statistics.median(sizes['ringcore-registered'][size]) / statistics.median(limits):.3g}"]
            for size, limits in sorted(sizes["limit"].items())
            if size in sizes["ringcore-registered"]
        ]
        text += "\n\nRegistered memory, from Python, over the machine's limit:\n\n" + table(["bytes", "ratio"], ratios)
    milliseconds = [[name, spread([value / 1e3 for value in values])] for name, values in many.items()]
    text += "\n\n1000 tensors of 4 KiB:\n\n" + table(["", "ms"], milliseconds)
    record(f"allreduce-{ranks}-ranks", rows, "Microseconds, medians:\n\n" + text)
    if ranks == 2:
        plot(sizes, ranks)


def mpi(options: argparse.Namespace) -> None:
    """An allreduce of ringcore under an MPI's launcher, beside that MPI's own, in the same ranks of one host."""
    for ranks, (name, transport) in itertools.product(options.ranks, (("mpi", "mpi"), ("mpi-launched", "auto"))):

        def start(library: Mpi, environ: dict[str, str], ranks: int = ranks) -> Iterator[dict[str, Any]]:
            worker = [str(library.programs / "python"), "mpi_rank.py", str(options.max_bytes)]
            return lines_of([*library.launch(ranks), *worker], library.programs, **environ)

        compare_mpi(f"{name}-{ranks}-ranks", f"{ranks} ranks of one host", transport, start, options.repeats)


def collectives(options: argparse.Namespace) -> None:
    """All collectives of ringcore beside those of each MPI, in the same ranks of one host."""
    for ranks in options.ranks:
        collectives_of(ranks, options)


def collectives_of(ranks: int, options: argparse.Namespace) -> None:
    """With one number of ranks: beside each MPI, and the ratio of a given array to the best of them."""
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        environ = {"PYTHONPATH": str(only_packages(RINGCORE, Path(folder))), "RINGCORE_TRANSPORT": "auto"}
        if options.tcp:
            environ.update(OVER_TCP)
        for repeat, each in itertools.product(range(options.repeats), PACKAGES):
            print(f"collectives, {ranks} ranks, repeat {repeat + 1}: {each}", flush=True)
            library = installed(each)
            worker = [str(library.programs / "python"), "collectives_rank.py", str(options.max_bytes)]
            for line in lines_of([*library.launch(ranks), *worker], library.programs, **environ):
                by_way = found.setdefault((line["collective"], line["bytes"]), {})
                for way, median in line["median_us"].items():
                    by_way.setdefault(each if way == "MPI" else way, []).append(median)
    ways = list(next(iter(found.values())))
    ours = [way for way in ways if way not in PACKAGES]
    rows, cells = [], []
    for (collective, size), times in found.items():
        rows += [
            {"ranks": ranks, "collective": collective, "library": way, "bytes": size, "microseconds": values}
            for way, values in times.items()
        ]
        medians = {way: statistics.median(each) for way, each in times.items()}
        best = min((medians[each] for each in PACKAGES if each in medians), default=float("nan"))
        shown = [f"{medians[way]:.4g}" if way in medians else "" for way in ways]
        cells.append([collective, str(size), *shown, *(f"{medians[way] / best:.2f}" for way in ours)])
    header = ["", "bytes", *ways, *(f"{way} / best MPI" for way in ours)]
    beside = "-neighbour" if options.neighbour > 0 else ""
    where = f"{ranks} ranks of one host" + (f", {options.neighbour:.0%} of each core taken" if beside else "")
    where += ", over TCP" if options.tcp else ""
    name = f"collectives-{ranks}-ranks{beside}" + ("-tcp" if options.tcp else "")
    record(name, rows, f"{where}, microseconds:\n\n{table(header, cells)}")


def mpi_hosts(options: argparse.Namespace) -> None:
    """The same with one rank on each of two hosts, started over ssh."""
    from support.namespaces import environ_with_ssh, namespaces

    with namespaces(2, rate="1gbit") as hosts:
        names = ",".join(host.name for host in hosts)

        def start(library: Mpi, environ: dict[str, str]) -> Iterator[dict[str, Any]]:
            # Not by a list of variables: MPICH loses the last one.
            where = ["-hosts", names, "-ppn", "1", "-launcher", "ssh", "-genvall"]
            if library.name == "Open MPI":
                where = [
                    "--host",
                    names,
                    "--mca",
                    "btl_tcp_if_include",
                    "eth0",
                    *(word for variable in environ for word in ("-x", variable)),
                ]
            worker = [str(library.programs / "python"), str(HERE / "mpi_rank.py"), str(options.max_bytes)]
            done = hosts[0].run(
                [*library.launch(2), *where, *worker], timeout=LIMIT_S,
                env=environ_with_ssh(hosts[0], {**os.environ, **library.environ(), **environ}),
            )  # fmt: skip
            if done.returncode != 0:
                raise SystemExit(f"{library.name} failed:\n{done.stdout}\n{done.stderr}")
            yield from (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))

        for name, transport in (("mpi-2-hosts", "mpi"), ("mpi-launched-2-hosts", "auto")):
            compare_mpi(name, "One rank on each of 2 hosts, 1 Gbit/s", transport, start, options.repeats)


def compare_mpi(
    name: str,
    title: str,
    transport: str,
    start: Callable[[Mpi, dict[str, str]], Iterator[dict[str, Any]]],
    repeats: int,
) -> None:
    """Every MPI in turns."""
    found: dict[str, dict[int, dict[str, list[float]]]] = {each: {} for each in PACKAGES}
    with tempfile.TemporaryDirectory() as folder:
        environ = {"PYTHONPATH": str(only_packages(RINGCORE, Path(folder))), "RINGCORE_TRANSPORT": transport}
        for repeat, each in itertools.product(range(repeats), PACKAGES):
            print(f"{name}, repeat {repeat + 1}: {each}", flush=True)
            for line in start(installed(each), environ):
                by_way = found[each].setdefault(line["bytes"], {})
                for way, median in line["median_us"].items():
                    by_way.setdefault(way, []).append(median)
    rows, cells = [], []
    for size in found["MPICH"]:
        cell = [str(size)]
        for each, by_size in found.items():
            times = by_size[size]
            rows += [{"mpi": each, "library": way, "bytes": size, "microseconds": v} for way, v in times.items()]
            ratios = [a / b for a, b in zip(times["ringcore"], times["MPI_Allreduce"], strict=True)]
            cell += [f"{statistics.median(v):.4g}" for v in times.values()] + [spread(ratios)]
        cells.append(cell)
    header = ["bytes", *(column for each in PACKAGES for column in ("ringcore", each, "ratio"))]
    record(name, rows, f"{title}, `RINGCORE_TRANSPORT={transport}`, microseconds:\n\n{table(header, cells)}")


def plot(results: dict[str, dict[int, list[float]]], ranks: int) -> None:
    """Time over size, with the spread over the repeats."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    for name, by_size in results.items():
        sizes = sorted(by_size)
        middle = [statistics.median(by_size[size]) for size in sizes]
        style = {"lw": 2.5} if name.startswith("ringcore") else {"lw": 1.2}
        if name == "limit":
            style = {"lw": 1.2, "ls": "--", "color": "black"}
        (line,) = axes.plot(sizes, middle, marker="o", ms=3, label=LABELS.get(name, name), **style)
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
    print(f"plot: {PLOT.relative_to(HERE.parent)}")


# ---- Training ----


def training(options: argparse.Namespace) -> None:
    """A step with ringcore and with DistributedDataParallel, beside the same ranks that do not communicate."""
    rows, cells = [], []
    for model, (batch, steps) in TRAINED.items():
        found: dict[str, list[float]] = {}
        for repeat in range(options.repeats):
            print(f"training, repeat {repeat + 1}: {MODEL_LABELS[model]}", flush=True)
            worker = ["training_rank.py", model, str(batch), str(steps), str(ROUNDS), "alone", "ringcore", "ddp"]
            for line in lines_of(under_ringrun(2, *worker), PYTHON.parent):
                for strategy, values in line["milliseconds"].items():
                    # The first round finds memory that nobody has touched yet.
                    found.setdefault(strategy, []).append(statistics.median(values[1:]))
        over = {
            strategy: [value - alone for value, alone in zip(found[strategy], found["alone"], strict=True)]
            for strategy in ("ringcore", "ddp")
        }
        ratio = statistics.median(a / b for a, b in zip(over["ringcore"], over["ddp"], strict=True))
        rows += [
            {"ranks": 2, "model": model, "strategy": name, "milliseconds": values} for name, values in found.items()
        ]
        cells.append(
            [MODEL_LABELS[model], spread(found["alone"]), spread(over["ringcore"]), spread(over["ddp"]), f"{ratio:.2f}"]
        )
    header = ["2 ranks, batch 8", "a step alone, ms", "more with ringcore, ms", "more with DDP and gloo, ms", "ratio"]
    record("training", rows, table(header, cells))


def lightning(options: argparse.Namespace) -> None:
    """`Trainer.fit` with "ring", with "ddp" over gloo and over ringcore, beside the same ranks that train alone."""
    rows, cells = [], []
    strategies = ("alone", "ring", "ring_ddp", "ddp")
    for model, steps in {"mlp": 60, "resnet18": 30}.items():
        found: dict[str, list[float]] = {}
        for repeat in range(options.repeats):
            print(f"lightning, repeat {repeat + 1}: {MODEL_LABELS[model]}", flush=True)
            for strategy in strategies:
                worker = ["lightning_rank.py", model, "8", str(steps), strategy]
                for line in lines_of(under_ringrun(2, *worker), PYTHON.parent):
                    found.setdefault(strategy, []).append(statistics.mean(line["milliseconds"]))
        over = {
            strategy: [value - alone for value, alone in zip(found[strategy], found["alone"], strict=True)]
            for strategy in strategies[1:]
        }
        ratio = statistics.median(over["ring"]) / statistics.median(over["ddp"])
        rows += [{"ranks": 2, "model": model, "strategy": name, "milliseconds": found[name]} for name in strategies]
        cells.append(
            [
                MODEL_LABELS[model],
                spread(found["alone"]),
                *(spread(over[name]) for name in strategies[1:]),
                f"{ratio:.2f}",
            ]
        )
    header = [
        "Lightning, 2 ranks, batch 8", "a step alone, ms", 'more with "ring", ms', 'more with "ring_ddp", ms',
        'more with "ddp" and gloo, ms', "ring / ddp",
    ]  # fmt: skip
    record("lightning", rows, table(header, cells))


def jax(options: argparse.Namespace) -> None:
    """A step of optax with ringcore and with JAX's own data parallelism, beside the same ranks that train alone."""
    found: dict[str, list[float]] = {}
    for repeat in range(options.repeats):
        print(f"jax, repeat {repeat + 1}", flush=True)
        for line in lines_of(under_ringrun(2, "jax_rank.py", "8", "10", str(ROUNDS)), PYTHON.parent):
            for strategy, values in line["milliseconds"].items():
                # The first round compiles.
                found.setdefault(strategy, []).append(statistics.median(values[1:]))
    rows = [{"ranks": 2, "model": "mlp", "strategy": name, "milliseconds": values} for name, values in found.items()]
    over = {
        strategy: [value - alone for value, alone in zip(found[strategy], found["alone"], strict=True)]
        for strategy in ("ringcore", "jax")
    }
    ratio = statistics.median(a / b for a, b in zip(over["ringcore"], over["jax"], strict=True))
    cells = [
        MODEL_LABELS["mlp"], spread(found["alone"]), spread(over["ringcore"]), spread(over["jax"]), f"{ratio:.2f}",
    ]  # fmt: skip
    header = [
        "JAX, 2 ranks, batch 8",
        "a step alone, ms",
        "more with ringcore, ms",
        "more with JAX and gloo, ms",
        "ratio",
    ]
    record("jax", rows, table(header, [cells]))


def images(options: argparse.Namespace) -> None:
    """Images a second of a ResNet-50-shaped net on synthetic data, as Horovod publishes it."""
    batch = 8
    rows: list[dict[str, Any]] = []
    found: dict[int, list[float]] = {}
    for repeat in range(options.repeats):
        for ranks in (1, 2, 4):
            print(f"images, repeat {repeat + 1}: {ranks} ranks", flush=True)
            worker = ["training_rank.py", "resnet50", str(batch), "2", "4", "ringcore"]
            for line in lines_of(under_ringrun(ranks, *worker), PYTHON.parent):
                step = statistics.median(line["milliseconds"]["ringcore"][1:])
                found.setdefault(ranks, []).append(batch * ranks / step * 1e3)
    one = statistics.median(found[1])
    cores = os.cpu_count() or 1
    cells = []
    for ranks, values in found.items():
        rows.append({"ranks": ranks, "model": "resnet50", "batch": batch, "images_per_second": values})
        efficiency = statistics.median(values) / (one * min(ranks, cores))
        cells.append([str(ranks), spread(values), f"{efficiency:.0%}"])
    header = ["ranks", "images/s", f"efficiency (of {cores} cores)"]
    record("images", rows, f"ResNet-50-shaped, 64 x 64 pixels, batch {batch} a rank:\n\n" + table(header, cells))


def tensorflow(options: argparse.Namespace) -> None:
    """A loop with a tape, beside MultiWorkerMirroredStrategy and the same ranks alone; many gradients; single ops."""
    steps: dict[str, list[float]] = {}
    many: dict[str, list[float]] = {}
    single: dict[str, list[float]] = {}
    for repeat in range(options.repeats):
        print(f"tensorflow, repeat {repeat + 1}", flush=True)
        for line in lines_of(under_ringrun(2, "tensorflow_rank.py", "10", str(ROUNDS)), PYTHON.parent):
            for found, key in ((steps, "milliseconds"), (many, "many"), (single, "microseconds")):
                for name, values in line[key].items():
                    # The first round traces.
                    found.setdefault(name, []).append(statistics.median(values[1:]))
    rows = [{"ranks": 2, "model": "mlp", "strategy": name, "milliseconds": values} for name, values in steps.items()]
    rows += [{"ranks": 2, "variables": 160, "way": name, "milliseconds": values} for name, values in many.items()]
    rows += [{"ranks": 2, "op": name, "microseconds": values} for name, values in single.items()]
    over = {name: more(steps, name) for name in ("ringcore", "mwms")}
    reduced = more(many, "ringcore")
    text = table(
        ["TensorFlow, 2 ranks, batch 8", "a step alone, ms", "more with ringcore, ms",
         "more with MultiWorkerMirroredStrategy, ms", "ratio"],
        [[MODEL_LABELS["mlp"], spread(steps["alone"]), spread(over["ringcore"]), spread(over["mwms"]),
          f"{ratio_of(over['ringcore'], over['mwms']):.2f}"]],
    )  # fmt: skip
    text += "\n\n160 variables of 160 000 floats, whose gradients cost nothing:\n\n" + table(
        ["a step alone, ms", "more with the tape, ms", "the core's allreduce of as many arrays, ms", "ratio"],
        [[spread(many["alone"]), spread(reduced), spread(many["core"]), f"{ratio_of(reduced, many['core']):.2f}"]],
    )
    text += "\n\nAn allreduce of two floats, microseconds:\n\n" + table(
        list(single), [[spread(values) for values in single.values()]]
    )
    record("tensorflow", rows, text)


def keras(options: argparse.Namespace) -> None:
    """`model.fit` on the backend of this environment, beside the same ranks that train alone."""
    backend = os.environ["KERAS_BACKEND"]
    strategies = ["alone", "ringcore", *(["keras"] if backend == "jax" else [])]
    found: dict[str, list[float]] = {}
    core = []
    for repeat in range(options.repeats):
        print(f"keras on {backend}, repeat {repeat + 1}", flush=True)
        for strategy in strategies:
            for line in lines_of(under_ringrun(2, "keras_rank.py", "20", "4", strategy), PYTHON.parent):
                # The first epoch compiles.
                found.setdefault(strategy, []).append(statistics.median(line["milliseconds"][1:]))
                core += [line["core"]] if line["core"] else []
    rows = [
        {"ranks": 2, "model": "mlp", "backend": backend, "strategy": name, "milliseconds": values}
        for name, values in found.items()
    ]
    over = {name: more(found, name) for name in strategies[1:]}
    header = [
        "2 ranks, batch 8",
        "a step alone, ms",
        "more with ringcore, ms",
        "the core's allreduce of as much, ms",
        "ratio",
    ]
    cells = [
        f"Keras on {backend}: {MODEL_LABELS['mlp']}", spread(found["alone"]), spread(over["ringcore"]), spread(core),
        f"{statistics.median(over['ringcore']) / statistics.median(core):.2f}",
    ]  # fmt: skip
    if "keras" in over:
        header += ["more with keras.distribution, ms", "ringcore / keras.distribution"]
        cells += [spread(over["keras"]), f"{ratio_of(over['ringcore'], over['keras']):.2f}"]
    record(f"keras-{backend}", rows, table(header, [cells]))


def parameter_server(options: argparse.Namespace) -> None:
    """Training with ringcore and with MXNet's parameter server, between hosts with narrow cables."""
    from parameter_server import measure, report

    RESULTS.mkdir(exist_ok=True)
    lines = RESULTS / "parameter-server.jsonl"
    if not options.add:
        lines.unlink(missing_ok=True)
    measure.measure(lines, options.repeats, options.workers)
    found = report.Measured(lines)
    text = report.tables(found, table, spread)
    (RESULTS / "parameter-server.md").write_text(text + "\n")
    print(f"\nparameter server\n\n{text}\n", flush=True)
    if options.scaling_program is not None:
        report.plot(found, options.scaling_program, PLOT.with_name("parameter-server.png"))


def mxnet(options: argparse.Namespace) -> None:
    """What a call costs, and how much of the communication is hidden, between two hosts with a link of 1 Gbit/s."""
    from support.namespaces import namespaces

    found: dict[int, dict[str, list[float]]] = {256: {}, 1024: {}}
    enqueued: list[float] = []
    with tempfile.TemporaryDirectory() as folder, namespaces(2, rate="1gbit", sshd=False) as hosts:
        key_file = Path(folder, "key")
        with open(os.open(key_file, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(os.urandom(32))
        job = {
            "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1",
            "RINGCORE_RENDEZVOUS": f"tcp:{hosts[0].address}:29443", "RINGCORE_KEY_FILE": str(key_file),
            "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN": "2",  # as docs/mxnet.md says; alone a step takes as long with 15
            "RINGCORE_SPIN_US": "0",  # what one host spins away, the other lacks: both share this machine's cores
        }  # fmt: skip
        for repeat, (batch, of_batch) in itertools.product(range(options.repeats), found.items()):
            print(f"mxnet, repeat {repeat + 1}: batch {batch}", flush=True)
            ranks = [
                host.popen(
                    [str(PYTHON), str(HERE / "mxnet_rank.py"), str(batch), "8", "4"], stdout=subprocess.PIPE,
                    env={**os.environ, **job, "RANK": str(rank)},
                )
                for rank, host in enumerate(hosts)
            ]  # fmt: skip
            output, _ = [rank.communicate(timeout=LIMIT_S)[0].decode() for rank in ranks]
            if any(rank.returncode != 0 for rank in ranks):
                raise SystemExit("mxnet failed")
            line = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
            enqueued.append(statistics.median(line["enqueue_us"][1:]))
            for name, values in line["milliseconds"].items():
                of_batch.setdefault(name, []).append(statistics.median(values[1:]))
    rows: list[dict[str, Any]] = [{"ranks": 2, "op": "allreduce_", "enqueue_us": enqueued}]
    cells = []
    for batch, took in found.items():
        rows += [{"ranks": 2, "batch": batch, "what": name, "milliseconds": took[name]} for name in took]
        parts = zip(took["alone"], took["communication"], took["last"], strict=True)
        bounds = [max(alone, communication) + last for alone, communication, last in parts]
        shared = [beside + last for beside, last in zip(took["beside"], took["last"], strict=True)]
        shown = [spread(took[name]) for name in ("alone", "communication", "beside", "last", "ringcore")]
        ratios = [f"{ratio_of(took['ringcore'], each):.2f}" for each in (bounds, shared)]
        cells.append([str(batch), *shown, *ratios])
    header = [
        "batch a rank", "a step alone, ms", "its gradients' allreduce, ms", "both at once, neither waiting, ms",
        "that of the first layer, ms", "a step with ringcore, ms", "ratio to the longer one and the first layer's",
        "ratio to both at once and the first layer's",
    ]  # fmt: skip
    record(
        "mxnet", rows,
        "MXNet, 2 hosts, 1 Gbit/s, 20 layers, 5.25 M parameters. Both hosts, and the network between them, share this\n"
        "machine's cores: what the communication itself takes of them, a net that waits for nothing lacks as well\n"
        f"(\"both at once\").\n\n{table(header, cells)}\n\n"
        f"A call of `allreduce_` returns after {spread(enqueued)} microseconds.",
    )  # fmt: skip


def more(found: dict[str, list[float]], name: str) -> list[float]:
    """What a step takes longer than alone, repeat by repeat."""
    return [value - alone for value, alone in zip(found[name], found["alone"], strict=True)]


def ratio_of(ours: list[float], theirs: list[float]) -> float:
    """The median over the repeats."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    """The whole comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    comparisons = {
        each.__name__: each
        for each in (
            allreduce,
            training,
            lightning,
            images,
            jax,
            tensorflow,
            keras,
            mxnet,
            parameter_server,
            mpi,
            mpi_hosts,
            collectives,
        )
    }
    names = list(comparisons)
    parser.add_argument("what", nargs="*", choices=[*names, []])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--neighbour", type=float, default=0.0, help="a program takes this share of each processor")
    parser.add_argument("--tcp", action="store_true", help="as if the ranks were on hosts of their own")
    parser.add_argument("--max-bytes", type=int, default=256 << 20)
    parser.add_argument("--limit-program", type=Path, help="ringcore_benchmark, which measures the machine's limit")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], help="of parameter_server")
    parser.add_argument("--add", action="store_true", help="parameter_server: keep the repeats of earlier calls")
    parser.add_argument("--scaling-program", type=Path, help="ringcore_scaling, which predicts up to 64 workers")
    options = parser.parse_args()
    if (options.neighbour > 0 or options.tcp) and options.what != ["collectives"]:
        parser.error("--neighbour and --tcp go with collectives, whose results have a file of their own for them")
    with neighbours(options.neighbour):
        for name in options.what or names[:4]:
            comparisons[name](options)


if __name__ == "__main__":
    main()
