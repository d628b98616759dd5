"""`ringcore timeline`: what a timeline tells, in words and in a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ringcore.commands import _trace
from ringcore.commands._findings import Findings, Operation, find
from ringcore.commands._trace_page import page

_SLOWEST = 10
_MOST_PAIRS = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Tell what is in a timeline.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 2 where a file is no timeline.
    """
    found = _parser().parse_args(argv)
    try:
        files = [file for path in found.files for file in _trace.files_of(path)]
        if files != found.files:
            print(f"the job ended early; what each rank had recorded: {', '.join(map(str, files))}\n")
        findings = find(_trace.read(files))
        target = found.html or found.files[0].with_suffix(".html")
        if not found.no_html:
            target.write_text(page(findings, found.files[0].name), encoding="utf-8")
    except (_trace.TraceError, OSError) as error:
        print(f"ringcore timeline: {error}", file=sys.stderr)
        return 2
    print("\n".join(report(findings)))
    if not found.no_html:
        print(f"\npicture: {target}; every step of it: https://ui.perfetto.dev opens {', '.join(map(str, files))}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringcore timeline", description="Tells who waited for whom, and what was slow, in a timeline."
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="a timeline, or what several ranks had recorded of one"
    )
    parser.add_argument(
        "--html", type=Path, metavar="PAGE", help="the page with a picture (FILE with .html at its end)"
    )
    parser.add_argument("--no-html", action="store_true", help="make no page")
    return parser


def report(findings: Findings) -> Iterator[str]:
    """What there is to say, line by line."""
    yield f"{'rank':<6}{'recorded':>12}{'communicated':>14}{'not hidden':>12}{'share':>8}{'for others':>12}"
    for rank, share in findings.shares.items():
        part = share.stood_still / share.recorded if share.recorded else 0.0
        yield (
            f"{rank:<6}{_ms(share.recorded):>12}{_ms(share.communicated):>14}{_ms(share.stood_still):>12}{part:>8.1%}"
            f"{_ms(share.for_others):>12}"
        )
    if not any(findings.still.values()):
        yield "The framework has waited for its results itself: what was not hidden is not known."
    yield from ["", "who waited for whom:", *_pairs(findings)]
    yield from ["", f"the {_SLOWEST} slowest operations:", *map(describe, findings.slowest(_SLOWEST))]


def _pairs(findings: Findings) -> Iterator[str]:
    pairs = sorted(findings.waits.items(), key=lambda item: -item[1])
    for (rank, late), waited in pairs[:_MOST_PAIRS]:
        recorded = findings.shares[rank].recorded
        share = waited / recorded if recorded else 0.0
        yield f"  rank {rank} waited {_ms(waited)} for rank {late} ({share:.1%} of its time)"
    if len(pairs) > _MOST_PAIRS:
        yield f"  and {len(pairs) - _MOST_PAIRS} more pairs of ranks, each less than that"
    if not pairs:
        yield "  nobody for anybody"


def describe(operation: Operation) -> str:
    """A line about one operation."""
    how = "failed" if operation.failed else operation.how
    late = f", {_ms(operation.late)} of it until rank {operation.last} came" if operation.late > 0 else ""
    at = f"at {_ms(operation.begin)} ({_size(operation.nbytes)}, {how})"
    return f"  {_ms(operation.took):>10}  {operation.tensor} {at}{late}"


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.3f} ms" if abs(microseconds) < 100_000 else f"{microseconds / 1e6:.3f} s"


def _size(nbytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"
