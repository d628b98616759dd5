"""`ringcore timeline`: what it finds in a timeline, and what it says of files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ringcore.commands import cli
from ringcore.commands._findings import common, find, united
from ringcore.commands._trace import Span


def operation(rank: int, tensor: str, submitted: float, end: float, activity: str = "ring", **more: Any) -> Span:
    awaited = more.get("awaited", False)
    return Span(rank, tensor, activity, "operation", more.get("begin", submitted), end, 1 << 20, submitted, awaited)


def wait(rank: int, tensor: str, begin: float, end: float, submitted: float) -> Span:
    return Span(rank, tensor, "wait", "wait", begin, end, 0, submitted, True)


# Rank 1 comes 300 us late to the first "a", and 100 to "b". Rank 0 computes until 200 and then waits; the second "a" is
# hidden on both. In the end nobody waits.
SPANS = [
    operation(0, "a", 100, 400, "negotiate"),
    operation(0, "a", 100, 500, begin=400),
    operation(1, "a", 400, 500),
    wait(0, "a", 200, 500, 100),
    operation(0, "b", 600, 720, "short cut", awaited=True),
    operation(1, "b", 700, 720, "short cut", awaited=True),
    operation(0, "a", 800, 900),
    operation(1, "a", 800, 910),
    operation(1, "end", 1100, 1100),
    operation(1, "timeline.start.noname.0", 0, 50, awaited=True),
    operation(0, "end", 1100, 1100),
]


def test_it_finds_who_waited_for_whom_and_what_was_not_hidden() -> None:
    findings = find([span for span in SPANS if not span.tensor.startswith("timeline")])
    assert findings.waits == {(0, 1): 300.0}  # 200 to 400, and 600 to 700
    first = findings.shares[0]
    assert (first.recorded, first.communicated, first.stood_still, first.for_others) == (1000, 620, 420, 300)
    assert (findings.shares[1].stood_still, findings.shares[1].for_others) == (20, 0)
    slowest = findings.slowest(2)
    assert [(found.tensor, found.number, found.took, found.last, found.late) for found in slowest] == [
        ("a", 0, 400, 1, 300),
        ("b", 0, 120, 1, 100),
    ]
    assert [found.tensor for found in findings.operations] == ["a", "b", "a", "end"]


def test_intervals_are_united_and_intersected() -> None:
    assert united([(5, 6), (1, 3), (2, 4), (4, 5)]) == [(1, 6)]
    assert common([(0, 10), (20, 30)], [(1, 2), (5, 22), (29, 40)]) == [(1, 2), (5, 10), (20, 22), (29, 30)]


def write(path: Path, spans: list[Span], *, cut: bool = False) -> Path:
    events = [
        {
            "ph": "X", "name": span.activity, "cat": span.category, "pid": span.rank, "tid": 0, "ts": span.begin,
            "dur": span.end - span.begin,
            "args": {"tensor": span.tensor, "bytes": span.nbytes, "submitted": span.submitted, "awaited": span.awaited},
        }
        for span in spans
    ]  # fmt: skip
    text = "[\n" + "".join(json.dumps(event) + ",\n" for event in events)
    path.write_text(text[:-20] if cut else text)
    return path


def test_it_tells_what_it_found_and_draws_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        write(tmp_path / f"t.json.rank{rank}", [span for span in SPANS if span.rank == rank], cut=rank == 1)
        for rank in (0, 1)
    ]
    assert cli.main(["timeline", *map(str, files), "--html", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert "rank 0 waited 0.300 ms for rank 1 (30.0% of its time)" in said and "timeline.start" not in said
    assert "0.400 ms  a at 0.100 ms (1.0 MiB, ring), 0.300 ms of it until rank 1 came" in said
    page = (tmp_path / "page.html").read_text()
    assert page.count('<text x="0"') == 4  # two ranks, in two pictures
    assert "for rank 1" in page


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file or directory"),
        ("", "is empty, and there are no files trace.json.rank0"),
        ("step loss\n1 0.5\n", "is no timeline of ringcore: it begins with 'step loss'"),
        ('{"traceEvents": [\n{"ph":"X","name":"aten::add","ts":1,"dur":2}\n]}', "is a trace of something else"),
        ("[\nbroken\n{}\n", "it has a line 'broken'"),
        ("[\n]\n", "nothing was recorded"),
    ],
)
def test_it_says_what_to_do_about_what_is_no_timeline(
    text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    if text is not None:
        path.write_text(text)
    assert cli.main(["timeline", str(path)]) == 2
    said = capsys.readouterr().err
    assert words in said and "Remedy: " in said
