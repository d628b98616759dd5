"""What simulated jobs take, as a table and as a picture."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

from ringcore._errors import InvalidArgument
from ringcore.simulation.job import Simulation

_HEADINGS = ("algorithm", "time", "parts", "a rank sends", "its program", "peers")


def in_units(value: float, units: Sequence[tuple[float, str]]) -> str:
    """A value in the largest unit of which it is at least one."""
    size, name = next((unit for unit in units if value >= unit[0]), units[-1])
    return f"{value / size:.3g} {name}"


def time_text(seconds: float) -> str:
    """`1.5 ms`."""
    return in_units(seconds, [(1.0, "s"), (1e-3, "ms"), (1e-6, "us")])


def bytes_text(nbytes: float) -> str:
    """`1.5 MB`."""
    return in_units(nbytes, [(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])


def print_table(job: Simulation, file: IO[str] | None = None) -> None:
    """Print what a job takes; with rich where that is installed.

    Args:
        job: The job.
        file: Where to; `None` is standard output.
    """
    rows: list[tuple[str, ...]] = [
        (
            each.algorithm,
            time_text(each.seconds),
            str(each.parts),
            bytes_text(each.sent_bytes),
            bytes_text(each.program_bytes),
            str(each.peers),
        )
        for each in job.times
    ]
    title = f"{job.collective} of {bytes_text(job.nbytes)} among {job.ranks} ranks on {job.hosts} hosts"
    _printer()(title, rows, file or sys.stdout)
    agreement = job.agreement
    print(
        f"agreement: {time_text(agreement.again_s)} for an operation ({time_text(agreement.first_s)} the first time), "
        f"{time_text(agreement.step_s)} for a step of many, for which a rank sends at most "
        f"{bytes_text(agreement.step_bytes)} in {agreement.step_records} records to {agreement.neighbours} others",
        file=file or sys.stdout,
    )


def _printer() -> Callable[[str, list[tuple[str, ...]], IO[str]], None]:
    try:
        importlib.import_module("rich")
    except ImportError:
        return _print_plain
    return _print_rich


def _print_plain(title: str, rows: list[tuple[str, ...]], file: IO[str]) -> None:
    table = [_HEADINGS, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEADINGS))]
    print(title, file=file)
    for row in table:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells), file=file)


def _print_rich(title: str, rows: list[tuple[str, ...]], file: IO[str]) -> None:
    table: Any = importlib.import_module("rich.table").Table(title=title)
    for column, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="right" if column else "left")
    for row in rows:
        table.add_row(*row)
    importlib.import_module("rich.console").Console(file=file).print(table)


def draw(jobs: Sequence[Simulation], path: str) -> None:
    """Draw what the jobs' algorithms and agreement take over the number of ranks.

    Args:
        jobs: Of ascending numbers of ranks.
        path: Of the picture; its ending says which kind.

    Raises:
        InvalidArgument: matplotlib is not installed.
    """
    try:
        figure: Any = importlib.import_module("matplotlib.figure").Figure(figsize=(6.4, 4))
    except ImportError:
        raise InvalidArgument("a picture needs matplotlib: pip install 'ringcore[simulate]'") from None
    axes = figure.subplots()
    names = sorted({each.algorithm for job in jobs for each in job.times})
    for name in names:
        points = [(job.ranks, each.seconds) for job in jobs for each in job.times if each.algorithm == name]
        axes.plot(*zip(*points, strict=True), marker=".", label=name.replace("_", " "))
    axes.plot(
        [job.ranks for job in jobs], [job.agreement.again_s for job in jobs], "k--", linewidth=1, label="agreement"
    )
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="seconds")
    rate = jobs[-1].network.bits_per_s / 1e9
    axes.set_title(f"{jobs[-1].collective} of {bytes_text(jobs[-1].nbytes)}, {rate:g} Gbit/s", fontsize=10)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
