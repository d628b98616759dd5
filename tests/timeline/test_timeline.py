"""One file tells what every rank did: spans of operations and of the steps of their plans, on one clock."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore
from ringcore.commands import cli
from ringcore.job.timeline import origin_of
from support import ranks
from support.rank import caught


def records(path: str) -> list:
    ringcore.init()
    tensor = np.ones(1 << 20, np.float32)
    ringcore.allreduce_(tensor, name="before")
    ringcore.start_timeline(path)
    twice = caught(ringcore.start_timeline, path)["type"]
    ringcore.allreduce_(tensor, name="large")
    small = [np.ones(100, np.float32) for _ in range(3)]
    handles = [ringcore.allreduce_async_(one, name=f"small.{i}") for i, one in enumerate(small)]
    for handle in handles:
        ringcore.synchronize(handle)
    for _ in range(30):
        ringcore.allreduce_(np.ones(2, np.float32), name="tiny")
    ringcore.stop_timeline()
    ringcore.allreduce_(tensor, name="after")
    return [twice, caught(ringcore.stop_timeline)["type"]]


def spans(events: list[dict[str, Any]], rank: int, tensor: str, category: str) -> list[dict[str, Any]]:
    return [
        event
        for event in events
        if event["ph"] == "X" and (event["pid"], event["args"]["tensor"], event["cat"]) == (rank, tensor, category)
    ]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_operations_and_steps_of_all_ranks_are_in_one_file(tmp_path: Path, transport: str) -> None:
    path = tmp_path / "timeline.json"
    results = ranks.run(records, 2, tmp_path, str(path), env={"RINGCORE_TRANSPORT": transport})
    assert results == [["InvalidArgument", "InvalidArgument"]] * 2
    events = json.loads(path.read_text())["traceEvents"]
    tensors = {event["args"]["tensor"] for event in events if event["ph"] == "X"}
    assert {"large", "small.0", "small.1", "small.2"} <= tensors
    assert not {"before", "after"} & tensors
    names = {(event["pid"], event["args"]["name"]) for event in events if event["name"] == "process_name"}
    assert names == {(0, "rank 0"), (1, "rank 1")}
    for rank in (0, 1):
        tiny = [span["name"] for span in spans(events, rank, "tiny", "operation")]
        assert tiny.count("short cut") == 30, tiny
        whole = {span["name"]: span for span in spans(events, rank, "large", "operation")}
        assert {"negotiate", "queue"} < set(whole)
        (plan,) = set(whole) - {"negotiate", "queue", "copy"}
        begin, end = whole[plan]["ts"], whole[plan]["ts"] + whole[plan]["dur"]
        steps = spans(events, rank, "large", "step")
        assert any(step["name"].startswith("send chunk") for step in steps), steps
        assert any("reduce chunk" in step["name"] and f"from rank {1 - rank}" in step["name"] for step in steps)
        for step in steps:
            # The clock is read once for the one and once for the other; written in microseconds, both are exact.
            assert begin - 20 <= step["ts"] <= step["ts"] + step["dur"] <= end + 20
    # Both ranks took part at the same time: the later start is before the earlier end.
    both = [spans(events, rank, "large", "step") for rank in (0, 1)]
    assert max(min(s["ts"] for s in steps) for steps in both) < min(
        max(s["ts"] + s["dur"] for s in steps) for steps in both
    )


def test_clocks_of_other_hosts_are_shifted_onto_the_first_ones() -> None:
    # Rank 1 is on another host, whose clock is 90 ms ahead; it came late out of one barrier. Rank 2 has rank 0's clock,
    # whatever the barriers say.
    clocks = [
        [5_000_000, 6_000_000, 7_000_000],
        [95_000_000, 99_000_000, 97_000_000],
        [5_100_000, 6_100_000, 7_100_000],
    ]
    assert [origin_of(rank, clocks, [0, 1, 0]) for rank in range(3)] == [7_000_000, 97_000_000, 7_000_000]


def many_pieces(path: str) -> None:
    from ringcore.job import timeline

    timeline._PIECE_BYTES = 500
    ringcore.init()
    ringcore.start_timeline(path)
    for i in range(20 + 20 * ringcore.rank()):
        ringcore.allreduce(np.ones(2), name=f"x.{i}") if i < 20 else None
    ringcore.stop_timeline()


def test_the_ranks_files_are_put_together_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    ranks.run(many_pieces, 2, tmp_path, str(path))
    events = json.loads(path.read_text())["traceEvents"]
    for rank in (0, 1):
        assert [span["name"] for i in range(20) for span in spans(events, rank, f"x.{i}", "operation")].count(
            "short cut"
        ) == 20
    assert not list(tmp_path.glob("timeline.json.rank*"))


def is_killed(path: str) -> None:
    ringcore.init()
    ringcore.start_timeline(path)
    for i in range(5):
        ringcore.allreduce(np.ones(2), name=f"x.{i}")
    if ringcore.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    caught(ringcore.allreduce, np.ones(2), name="never")


def test_what_was_recorded_before_a_rank_was_killed_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "timeline.json"
    with ranks.started(is_killed, 2, tmp_path, str(path)) as job:
        first, second = job.wait()
    assert (first.exit_code, second.exit_code) == (0, -9)
    assert f"`ringcore timeline {path}` reads what each rank has recorded" in first.stderr
    for rank in (0, 1):
        text = (tmp_path / f"timeline.json.rank{rank}").read_text()
        assert [f'"x.{i}"' in text for i in range(5)] == [True] * 5
    assert cli.main(["timeline", str(path)]) == 0
    said = capsys.readouterr().out
    assert "the job ended early" in said
    assert re.search(r"never at .* \(16 B, failed\)", said), said
    page = path.with_suffix(".html").read_text()
    assert page.count("<svg") == 2 and "never" in page and "http" not in page


def cannot_write(path: str) -> list:
    ringcore.init()
    return [caught(ringcore.start_timeline, path), float(ringcore.allreduce(np.ones(3), op=ringcore.Sum)[0])]


def cannot_write_what_the_environment_names() -> list:
    found = caught(ringcore.init)
    del os.environ["RINGCORE_TIMELINE"]
    started = ringcore.is_initialized()
    ringcore.init()
    return [found, started, float(ringcore.allreduce(np.ones(3), op=ringcore.Sum)[0])]


def test_a_timeline_that_cannot_be_written_is_refused_at_its_start_on_every_rank(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "timeline.json"
    for error, after in ranks.run(cannot_write, 2, tmp_path, str(path)):
        assert error["type"] == "InvalidArgument", error
        assert str(path) in error["message"] and "No such file or directory" in error["message"]
        assert after == 2.0
    env = {"RINGCORE_TIMELINE": str(path)}
    for error, started, after in ranks.run(cannot_write_what_the_environment_names, 2, tmp_path, env=env):
        assert error["type"] == "InvalidArgument" and str(path) in error["message"], error
        assert (started, after) == (False, 2.0)


def loses_its_folder(path: str) -> None:
    ringcore.init()
    ringcore.start_timeline(path)
    ringcore.allreduce(np.ones(3))
    if ringcore.rank() == 0:
        os.rename(Path(path).parent, Path(path).parent.with_name("elsewhere"))
    ringcore.shutdown()


def test_a_timeline_that_is_lost_at_the_end_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "here" / "timeline.json"
    path.parent.mkdir()
    with ranks.started(loses_its_folder, 2, tmp_path, str(path)) as job:
        first, second = job.wait()
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert f"the timeline {path} was not written" in first.stderr and "No such file" in first.stderr
