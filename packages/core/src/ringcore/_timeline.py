"""The timeline: what every rank did, in one file that chrome://tracing and Perfetto read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ringcore._context import context
from ringcore._errors import InvalidArgument

_path: Path | None = None


def start_timeline(path: str | Path) -> None:
    """Start recording on every rank. Collective.

    Args:
        path: The file that rank 0 writes at `stop_timeline()` or `shutdown()`.

    Raises:
        InvalidArgument: A timeline is being recorded already.
    """
    global _path
    if _path is not None:
        raise InvalidArgument(f"a timeline is being recorded already, to {_path}; call stop_timeline() first")
    _path = Path(path)
    context().runtime.start_timeline()


def stop_timeline() -> None:
    """Stop recording; rank 0 writes the file. Collective.

    Raises:
        InvalidArgument: No timeline is being recorded.
    """
    global _path
    current = context()
    if _path is None:
        raise InvalidArgument("no timeline is being recorded; call start_timeline(path) first")
    path, _path = _path, None
    from ringcore._objects import gather_bytes

    # The same instant on both clocks lets rank 0 shift every rank's spans onto its own clock.
    report = {
        "spans": current.runtime.stop_timeline(),
        "monotonic_ns": time.monotonic_ns(),
        "wall_ns": time.time_ns(),
        "host": current.host_of[current.rank],
    }
    reports = gather_bytes(json.dumps(report).encode(), current.next_name("timeline"))
    if current.rank == 0:
        path.write_text(json.dumps(merge([json.loads(text) for text in reports])), encoding="utf-8")


def write_pending() -> None:
    """At shutdown: finish a timeline that was not stopped, if all ranks are still there."""
    global _path
    if _path is None:
        return
    try:
        stop_timeline()
    except Exception:  # shutdown must not fail because another rank is gone
        _path = None


def merge(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Chrome trace events of all ranks: a process a rank, a thread a lane, microseconds since the first span.

    Ranks of one host share the monotonic clock. Between hosts the wall clocks, kept by NTP, are the common measure.
    """
    first = reports[0]
    events: list[dict[str, Any]] = []
    for rank, report in enumerate(reports):
        shift = 0
        if report["host"] != first["host"]:
            shift = (report["wall_ns"] - report["monotonic_ns"]) - (first["wall_ns"] - first["monotonic_ns"])
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        for name, activity, lane, begin, end, nbytes in report["spans"]:
            events.append(
                {
                    "ph": "X",
                    "name": activity,
                    "cat": activity,
                    "pid": rank,
                    "tid": lane,
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
