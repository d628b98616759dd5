"""`ringcore top`: a running job as it goes, rank by rank."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringcore.commands import _jobs
from ringcore.commands.status import counted, last_to_come, waits_of

if TYPE_CHECKING:
    from rich.table import Table


def main(argv: Sequence[str] | None = None) -> int:
    """Show a job until it ends, or Ctrl-C.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 1 where there is no such job, or rich is not installed.
    """
    found = _parser().parse_args(argv)
    if importlib.util.find_spec("rich") is None:
        print("ringcore top draws with rich, which is not installed: pip install 'ringcore[top]'", file=sys.stderr)
        return 1
    try:
        before = _jobs.ask(found.job, "status")
    except _jobs.JobError as error:
        print(f"ringcore top: {error}", file=sys.stderr)
        return 1
    try:
        _show(before, found.interval, found.count)
    except KeyboardInterrupt:
        pass
    except _jobs.JobError as error:  # it was there a moment ago
        print(error)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ringcore top", description="Shows a running job until it ends, or Ctrl-C.")
    parser.add_argument("job", nargs="?", metavar="JOB", help=f"{_jobs.JOB_HELP} (the only one)")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between two looks (2)")
    parser.add_argument("--count", type=int, metavar="N", help="look so often (until the end)")
    return parser


def _show(before: _jobs.Answer, interval_s: float, count: int | None) -> None:
    from rich.live import Live

    looks = 0
    with Live(table(before, before)) as live:
        while count is None or looks < count:
            time.sleep(interval_s)
            now = _jobs.ask(before.about["job"], "status")
            live.update(table(before, now), refresh=True)
            before = now
            looks += 1


def table(before: _jobs.Answer, now: _jobs.Answer) -> Table:
    """What has changed between two looks.

    Args:
        before: The first.
        now: The second; the same where there was only one yet.
    """
    from rich.table import Table

    last = last_to_come(now.ranks)
    # A rank that does not wait takes one line of 80 columns.
    drawn = Table(box=None, padding=(0, 2, 0, 0), title=f"{now.about['job']}: {counted(now.about['size'], 'rank')}")
    drawn.caption = "\n".join(now.notes) or None
    for head in ("rank", "host", "steps/s", "ops/s", "sent, received", "memory", "waits"):
        left = head in ("host", "waits", "sent, received")
        drawn.add_column(head, justify="left" if left else "right", no_wrap=head != "waits")
    for rank, what in sorted(now.ranks.items()):
        if "silent" in what:
            drawn.add_row(str(rank), "", "", "", "", "", what["silent"])
            continue
        seconds, earlier = _since(before.ranks.get(rank), what)
        drawn.add_row(
            f"{rank} last" if rank == last else str(rank),
            str(what["host"]),
            f"{(what['steps'] - earlier['steps']) / seconds:.1f}" if what["steps"] else "-",
            f"{(what['operations'] - earlier['operations']) / seconds:.0f}",
            _traffic(earlier, what, seconds),
            f"{what['memory_bytes'] / (1 << 20):.0f} MiB",
            waits_of(what) if any(wait["seconds"] >= _SHORT_WAIT_S for wait in what["waits"]) else "-",
            style="yellow" if rank == last else None,
        )
    return drawn


# Whoever looks at a job that goes on sees some rank wait for a moment, each time another one.
_SHORT_WAIT_S = 0.1
_NOTHING: dict[str, Any] = {"steps": 0, "operations": 0, "bytes_sent": {}, "bytes_received": {}, "seconds": 0.0}


def _since(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
    """How long ago the last look was, and what it saw; without one, all since the start."""
    same = before is not None and before.get("pid") == now["pid"] and before["seconds"] < now["seconds"]
    earlier = before if same and before is not None else _NOTHING
    return max(now["seconds"] - earlier["seconds"], 1e-6), earlier


def _traffic(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> str:
    parts = []
    for transport in now["bytes_sent"]:
        rates = [
            (now[key][transport] - before[key].get(transport, 0)) / seconds for key in ("bytes_sent", "bytes_received")
        ]
        parts.append(f"{transport} {rates[0] / 1e6:.1f}, {rates[1] / 1e6:.1f} MB/s")
    return "; ".join(parts) or "-"
