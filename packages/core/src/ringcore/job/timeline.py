"""The timeline: what every rank did, in one file that chrome://tracing and Perfetto read."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from ringcore._errors import InvalidArgument, ResourceError
from ringcore.job.agreement import gather_bytes, meet
from ringcore.job.state import context

_log = logging.getLogger("ringcore")
_path: Path | None = None
# Barriers that the clocks of several hosts are compared at.
_MEETINGS = 9


def start_timeline(path: str | Path) -> None:
    """Start recording on every rank. Collective.

    Args:
        path: The file that rank 0 writes at `stop_timeline()` or `shutdown()`.

    Raises:
        InvalidArgument: A timeline is being recorded already, or rank 0 cannot write the file. On every rank.
    """
    global _path
    if _path is not None:
        raise InvalidArgument(f"a timeline is being recorded already, to {_path}; call stop_timeline() first")
    current = context()
    path = Path(path).absolute()  # the program may go elsewhere until it is written
    problem = _why_not_writable(path) if current.rank == 0 else ""
    problem = gather_bytes(problem.encode(), current.next_name("timeline.start"))[0].decode()
    if problem:
        raise InvalidArgument(
            f"rank 0 cannot write the timeline: {problem}. Remedy: name a file in a folder that is there and may be "
            "written"
        )
    _path = path
    current.runtime.start_timeline()
    _log.info("rank %d: a timeline is being recorded, to %s", current.rank, path)


def _why_not_writable(path: Path) -> str:
    """Empty if it is. What the file holds stays until the timeline is stopped."""
    try:
        with path.open("ab"):
            return ""
    except OSError as error:
        return str(error)


def stop_timeline() -> None:
    """Stop recording; rank 0 writes the file. Collective.

    Raises:
        InvalidArgument: No timeline is being recorded.
        ResourceError: Rank 0 could not write the file. On rank 0.
    """
    global _path
    current = context()
    if _path is None:
        raise InvalidArgument("no timeline is being recorded; call start_timeline(path) first")
    path, _path = _path, None
    report = {
        "spans": current.runtime.stop_timeline(),
        "met_ns": [_meet() for _ in range(_MEETINGS)],
        "host": current.host_of[current.rank],
    }
    reports = gather_bytes(json.dumps(report).encode(), current.next_name("timeline"))
    if current.rank != 0:
        return
    try:
        path.write_text(json.dumps(merge([json.loads(text) for text in reports])), encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"the timeline was recorded, but not written: {error}") from error
    _log.info("rank 0: the timeline of %d ranks is in %s", current.size, path)


def _meet() -> int:
    """This rank's clock at a moment that is about the same on all ranks: the end of a barrier."""
    meet(context().next_name("barrier"))
    return time.monotonic_ns()


def write_pending() -> None:
    """At shutdown: finish a timeline that was not stopped, if all ranks are still there."""
    global _path
    if _path is None:
        return
    path = _path
    try:
        stop_timeline()
    except Exception as error:  # shutdown must not fail because another rank is gone
        _path = None
        if context().rank == 0:
            _log.warning("the timeline %s was not written: %s", path, error)


def _tid(lane: int, channel: int) -> int:
    return lane * 1000 + channel + 1


def merge(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Chrome trace events of all ranks: a process a rank, a thread a lane, one below it for each channel of its plans.

    Times are microseconds since the first span. Ranks of one host share the monotonic clock; another host's is shifted
    by the median difference at barriers, which end everywhere within a round trip.
    """
    import statistics  # Loading it takes as long as a rank's start; few jobs have a timeline.

    first = reports[0]
    events: list[dict[str, Any]] = []
    for rank, report in enumerate(reports):
        shift = 0
        if report["host"] != first["host"]:
            pairs = zip(first["met_ns"], report["met_ns"], strict=True)
            shift = int(statistics.median(ours - theirs for ours, theirs in pairs))
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        for lane, channel in sorted({(span[2], span[3]) for span in report["spans"]}):
            name = f"lane {lane}" if channel < 0 else f"lane {lane}, channel {channel}"
            row = {"ph": "M", "pid": rank, "tid": _tid(lane, channel)}
            events.append({**row, "name": "thread_name", "args": {"name": name}})
            events.append({**row, "name": "thread_sort_index", "args": {"sort_index": row["tid"]}})
        for name, activity, lane, channel, begin, end, nbytes in report["spans"]:
            events.append(
                {
                    "ph": "X",
                    "name": activity,
                    "cat": "operation" if channel < 0 else "step",
                    "pid": rank,
                    "tid": _tid(lane, channel),
                    "ts": (begin + shift) / 1000,
                    "dur": (end - begin) / 1000,
                    "args": {"tensor": name, "bytes": nbytes},
                }
            )
    origin = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] -= origin
    return {"traceEvents": events, "displayTimeUnit": "ns"}
