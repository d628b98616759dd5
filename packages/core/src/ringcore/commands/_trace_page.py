"""The picture of a timeline: one HTML page that needs nothing else, neither a network nor a script."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from ringcore.commands._findings import Findings, Interval, Operation

_WIDTH = 1100
_LEFT = 70
_ROW = 34
_TICKS = 8
_SLOWEST = 10

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --paper: #fff; --line: #d5dce3; --busy: #4c8bd0; --still: #d9822b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --paper: #12171d; --line: #36414c; --busy: #6aa5e6; --still: #f0a04b; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1200px; padding: 0 1rem; }
svg { width: 100%; height: auto; } text { fill: var(--ink); font-size: 12px; }
.scroll { overflow-x: auto; } .scroll svg { min-width: 700px; }
.busy { fill: var(--busy); } .still { fill: var(--still); } .grid { stroke: var(--line); }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; } th, td { text-align: right; padding: 0.2rem 0.8rem;
  border-bottom: 1px solid var(--line); white-space: nowrap; } td.name, th.name { text-align: left; }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 7.5rem; } h1, h2 { overflow-wrap: anywhere; }
.key { display: inline-block; width: 0.9em; height: 0.9em; vertical-align: -0.1em; }
"""

_KEY = (
    '<p><span class="key" style="background:var(--busy)"></span> an operation is under way &ensp; '
    '<span class="key" style="background:var(--still)"></span> the program stands still for one</p>'
)


def page(findings: Findings, title: str) -> str:
    """Draw it.

    Args:
        findings: What is in the timeline.
        title: Its file's name.
    """
    begin = min((operation.begin for operation in findings.operations), default=0.0)
    end = max((operation.begin + operation.took for operation in findings.operations), default=1.0)
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        _KEY,
        _picture(findings, (begin, end)),
        *_shares(findings),
        *_waits(findings),
        *_slowest(findings),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n"
    )


def _picture(findings: Findings, window: Interval) -> str:
    ranks = sorted(findings.busy)
    height = _ROW * len(ranks) + 24
    bars = [bar for row, rank in enumerate(ranks) for bar in _row(findings, rank, row * _ROW, window)]
    return (
        f'<div class="scroll"><svg viewBox="0 0 {_LEFT + _WIDTH} {height}" role="img" aria-label="what each rank did">'
        + "".join([*_grid(window, height), *bars])
        + "</svg></div>"
    )


def _row(findings: Findings, rank: int, top: int, window: Interval) -> Iterator[str]:
    yield f'<text x="0" y="{top + 20}">rank {rank}</text>'
    yield from _bars(findings.busy[rank], window, top + 4, "busy")
    yield from _bars(findings.still[rank], window, top + 17, "still")


def _bars(intervals: Sequence[Interval], window: Interval, top: int, kind: str) -> Iterator[str]:
    """What is less than a pixel apart is drawn as one: a page of a long run is no larger."""
    scale = _WIDTH / max(window[1] - window[0], 1e-9)
    drawn: list[Interval] = []
    for begin, end in intervals:
        left, right = ((min(max(time, window[0]), window[1]) - window[0]) * scale for time in (begin, end))
        if right <= left:
            continue
        if drawn and left - drawn[-1][1] < 1:
            drawn[-1] = drawn[-1][0], max(right, drawn[-1][1])
        else:
            drawn.append((left, right))
    for left, right in drawn:
        width = max(right - left, 0.6)
        yield f'<rect class="{kind}" x="{_LEFT + left:.1f}" y="{top}" width="{width:.1f}" height="11"/>'


def _grid(window: Interval, height: int) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        x = _LEFT + tick * _WIDTH / _TICKS
        moment = (tick * (window[1] - window[0]) / _TICKS) / 1000
        anchor = "end" if tick == _TICKS else "middle" if tick else "start"
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 18}"/>'
        yield f'<text x="{x:.1f}" y="{height - 4}" text-anchor="{anchor}">{moment:.4g} ms</text>'


def _shares(findings: Findings) -> Iterator[str]:
    yield "<h2>What was not hidden</h2>"
    rows = [
        [
            rank, _ms(share.recorded), _ms(share.communicated), _ms(share.stood_still),
            _percent(share.stood_still, share.recorded), _ms(share.for_others),
        ]
        for rank, share in findings.shares.items()
    ]  # fmt: skip
    yield _table(["rank", "recorded", "communicated", "not hidden", "share", "of it for others"], rows)


def _waits(findings: Findings) -> Iterator[str]:
    yield "<h2>Who waited for whom</h2>"
    ranks = sorted(findings.shares)
    lates = sorted({late for _, late in findings.waits})
    if not lates:
        yield "<p>Nobody for anybody.</p>"
        return
    rows = [[f"rank {rank}", *(_ms(findings.waits.get((rank, late), 0.0)) for late in lates)] for rank in ranks]
    yield _table(["", *(f"for rank {late}" for late in lates)], rows)


def _slowest(findings: Findings) -> Iterator[str]:
    yield "<h2>The slowest operations</h2>"
    chosen = findings.slowest(_SLOWEST)
    rows = [_facts(operation) for operation in chosen]
    yield _table(["tensor", "bytes", "how", "at", "took", "last to come", "late by"], rows)
    if chosen:
        slow = chosen[0]
        margin = slow.took / 2
        yield f"<h2>Around the slowest: {html.escape(slow.tensor)}</h2>"
        yield _picture(findings, (slow.begin - margin, slow.begin + slow.took + margin))


def _facts(operation: Operation) -> list[object]:
    how = "failed" if operation.failed else operation.how
    took, late = _ms(operation.took), _ms(operation.late)
    return [operation.tensor, operation.nbytes, how, _ms(operation.begin), took, f"rank {operation.last}", late]


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    def line(cells: Sequence[object], tag: str) -> str:
        first = f'<{tag} class="name">{html.escape(str(cells[0]))}</{tag}>'
        return f"<tr>{first}" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells[1:]) + "</tr>"

    return (
        '<div class="scroll"><table>' + line(heads, "th") + "".join(line(row, "td") for row in rows) + "</table></div>"
    )


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.3f} ms"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
