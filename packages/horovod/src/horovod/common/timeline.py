"""The timeline as Horovod writes it: rank 0's operations, under Horovod's labels, while the job runs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ringcore.adapter import before_shutdown, context

_INTERVAL_S = 0.05
# In names of operations; the others reduce gradients.
_KINDS = ("allgather", "broadcast", "alltoall", "reducescatter", "barrier")
_LABELS = {
    "negotiate": "NEGOTIATE_{}",
    "queue": "QUEUE",
    "copy": "MEMCPY_IN_FUSION_BUFFER",
    "pack": "MEMCPY_IN_FUSION_BUFFER",
    "unpack": "MEMCPY_OUT_FUSION_BUFFER",
}


class _Recorder:
    """Writes what the engine records to a file, from a thread.

    Args:
        path: The file: a JSON array, of which only the end is missing as long as it is written.
        mark_cycles: Mark when operations were released.
        runtime: Of the engine.
    """

    def __init__(self, path: str, mark_cycles: bool, runtime: Any) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - `stop` closes it
        self._mark_cycles = mark_cycles
        self._runtime = runtime
        self._origin_ns = time.monotonic_ns()
        self._rows: dict[str, int] = {}
        self._released_ns = 0
        self._stopped = threading.Event()
        start = {"name": "start_time_since_epoch_in_micros", "ph": "M", "pid": 0}
        self._file.write("[\n" + json.dumps({**start, "args": {"start_time_since_epoch_in_micros": _epoch_us()}}))
        self._file.flush()
        runtime.start_timeline()
        self._thread = threading.Thread(target=self._run, name="horovod-timeline", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            self._write(self._runtime.take_timeline())

    def stop(self) -> None:
        """Write what is left, and the end."""
        self._stopped.set()
        self._thread.join()
        self._write(self._runtime.stop_timeline())
        self._file.write("\n]\n")
        self._file.close()

    def _write(self, spans: Iterable[tuple[Any, ...]]) -> None:
        events = [event for span in spans if span[3] < 0 for event in self._events(*span)]
        self._file.write("".join(f",\n{json.dumps(event)}" for event in events))
        self._file.flush()

    def _events(
        self, name: str, activity: str, lane: int, channel: int, begin: int, end: int, nbytes: int
    ) -> Iterator[dict[str, Any]]:
        del lane, channel
        if name not in self._rows:
            self._rows[name] = len(self._rows) + 1
            yield {"name": "process_name", "ph": "M", "pid": self._rows[name], "args": {"name": name}}
        kind = next((kind for kind in _KINDS if kind in name), "allreduce").upper()
        # The short cut of small operations negotiates with what it sends.
        parts = [("negotiate", begin, begin)] if activity == "short cut" else []
        for part, since, until in [*parts, (activity, begin, end)]:
            yield {
                "name": _LABELS.get(part, "{}").format(kind), "ph": "X", "pid": self._rows[name],
                "ts": self._us(since), "dur": (until - since) / 1000, "args": {"activity": activity, "bytes": nbytes},
            }  # fmt: skip
            if self._mark_cycles and part == "negotiate" and until != self._released_ns:
                self._released_ns = until
                yield {"name": "CYCLE_START", "ph": "i", "pid": 0, "ts": self._us(until), "s": "g"}

    def _us(self, ns: int) -> float:
        return (ns - self._origin_ns) / 1000


def _epoch_us() -> int:
    return time.time_ns() // 1000


_recorder: _Recorder | None = None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin to record on rank 0.

    Args:
        file_path: Where to; it can be read while it grows.
        mark_cycles: Mark when operations were released.

    Raises:
        NotInitializedError: Before `init()`.
        OSError: The file cannot be written.
    """
    global _recorder
    stop_timeline()
    if context().rank == 0:
        _recorder = _Recorder(file_path, mark_cycles, context().runtime)


def stop_timeline() -> None:
    """Write the rest of what was recorded, and close the file."""
    global _recorder
    if _recorder is not None:
        recorder, _recorder = _recorder, None
        recorder.stop()


def start_from_environment() -> None:
    """As `HOROVOD_TIMELINE` and `HOROVOD_TIMELINE_MARK_CYCLES` say."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if path and path != "DYNAMIC" and _recorder is None:
        start_timeline(path, os.environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0"))


before_shutdown.append(stop_timeline)
