"""What simulated jobs take, as a table and as a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO

from ringcore._display import new_figure, print_table
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


def print_times(job: Simulation, file: IO[str] | None = None) -> None:
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
    print_table(_HEADINGS, rows, title=title, right=True, file=file)
    agreement = job.agreement
    print(
        f"agreement: {time_text(agreement.again_s)} for an operation ({time_text(agreement.first_s)} the first time), "
        f"{time_text(agreement.step_s)} for a step of many, for which a rank sends at most "
        f"{bytes_text(agreement.step_bytes)} in {agreement.step_records} records to {agreement.neighbours} others",
        file=file or sys.stdout,
    )
    start = job.start
    print(
        f"start: {time_text(start.connected_s)} from when all processes run; all have met after "
        f"{time_text(start.met_s)}, each knows {bytes_text(start.table_bytes)} of all others after "
        f"{time_text(start.told_s)}, and a rank connects with at most {start.links}",
        file=file or sys.stdout,
    )


def draw(jobs: Sequence[Simulation], path: str) -> None:
    """Draw what the jobs' algorithms and agreement take over the number of ranks.

    Args:
        jobs: Of ascending numbers of ranks.
        path: Of the picture; its ending says which kind.

    Raises:
        InvalidArgument: matplotlib is not installed.
    """
    figure = new_figure(6.4, 4)
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
