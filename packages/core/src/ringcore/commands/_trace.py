"""Reads timelines: the file of all ranks, or what each rank had written when its job ended early."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class TraceError(ValueError):
    """What was named is no timeline; the message says what to do."""


@dataclass(frozen=True)
class Span:
    """Something that a rank did, in microseconds since the timeline began.

    Attributes:
        rank: Whose.
        tensor: What the operation is called.
        activity: "negotiate", "ring", "wait" ...
        category: "operation", "step" of a plan, or "wait" of the program.
        begin: When it began.
        end: When it ended.
        nbytes: Of the tensor.
        submitted: When the operation was submitted: with the tensor that tells which one it is.
        awaited: The program stood still for it all the while.
    """

    rank: int
    tensor: str
    activity: str
    category: str
    begin: float
    end: float
    nbytes: int
    submitted: float
    awaited: bool


# What ranks say to each other when they begin to record.
_OWN = "timeline.start.noname"
# No job runs for thirty years; behind that pictures lose their numbers.
_MOST_MICROSECONDS = 1e15


def files_of(path: Path) -> list[Path]:
    """The file itself, or those of the ranks, which are there as long as it is not whole."""
    pattern = re.compile(re.escape(path.name) + r"\.rank(\d+)")
    folder = path.parent
    found = [
        (match, file)
        for file in (folder.iterdir() if folder.is_dir() else ())
        if (match := pattern.fullmatch(file.name))
    ]
    ranks = [file for match, file in sorted(found, key=lambda pair: int(pair[0][1]))]
    return ranks or [path]


def read(paths: Sequence[Path]) -> list[Span]:
    """What is in all of these files but the steps of plans.

    Raises:
        TraceError: One of them is no timeline.
    """
    spans: list[Span] = []
    for path in paths:
        for event in events_of(path):
            if event.get("ph") != "X" or event.get("cat") == "step":
                continue
            span = _span_of(event, path)
            if not span.tensor.startswith(_OWN):
                spans.append(span)
    if not spans:
        names = ", ".join(map(str, paths))
        raise TraceError(f"{names}: nothing was recorded. Remedy: record a part of the run that has collectives in it")
    return spans


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a file, one a line; the last line may be cut where its writer was killed.

    Raises:
        TraceError: It is no timeline of ringcore, or cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline().strip()
            if first != "[" and not (first.startswith("{") and first.endswith("[")):
                raise TraceError(_why_none(path, first))
            yield from _events_in(file, path)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}. Remedy: {_REMEDY}") from None


_REMEDY = "name the file that --timeline-filename named, or start_timeline()"


def _why_none(path: Path, first: str) -> str:
    if not first:
        return (
            f"{path} is empty, and there are no files {path.name}.rank0 and so on beside it: its job has recorded "
            f"nothing. Remedy: {_REMEDY}"
        )
    return f"{path} is no timeline of ringcore: it begins with {first[:40]!r}. Remedy: {_REMEDY}"


def _events_in(lines: Iterator[str], path: Path) -> Iterator[dict[str, Any]]:
    broken = ""
    for line in lines:
        text = line.strip().rstrip(",")
        if broken:
            raise TraceError(f"{path} is no timeline of ringcore: it has a line {broken[:40]!r}. Remedy: {_REMEDY}")
        if text in ("", "]", "]}"):
            continue
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            broken = text
            continue
        if isinstance(event, dict):
            yield event


def _span_of(event: dict[str, Any], path: Path) -> Span:
    try:
        begin, took, more = float(event["ts"]), float(event["dur"]), event["args"]
        submitted = float(more.get("submitted", begin))
        if took < 0 or not all(abs(time) < _MOST_MICROSECONDS for time in (begin, took, submitted)):
            raise ValueError("no times of a job")
        return Span(
            int(event["pid"]), str(more["tensor"]), str(event["name"]), str(event["cat"]), begin, begin + took,
            int(more["bytes"]), submitted, bool(more.get("awaited", False)),
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise TraceError(f"{path} is a trace of something else than ringcore. Remedy: {_REMEDY}") from None
