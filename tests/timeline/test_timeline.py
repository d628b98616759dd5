"""One file tells what every rank did: spans of operations and of the steps of their plans, on one clock."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore
from ringcore.job.timeline import merge
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
    span = ["t", "ring", 1, -1]
    first = {"spans": [[*span, 1_000_000, 2_000_000, 8]], "met_ns": [5_000_000, 6_000_000, 7_000_000], "host": 0}
    # Another host, whose clock is 90 ms ahead; it came late out of one barrier.
    other = {"spans": [[*span, 91_500_000, 92_000_000, 8]], "met_ns": [95_000_000, 99_000_000, 97_000_000], "host": 1}
    # The same host: one clock, whatever the barriers say.
    same = {"spans": [[*span, 1_250_000, 2_000_000, 8]], "met_ns": [5_100_000, 6_100_000, 7_100_000], "host": 0}
    events = [event for event in merge([first, other, same])["traceEvents"] if event["ph"] == "X"]
    assert [(event["pid"], event["ts"], event["dur"]) for event in events] == [
        (0, 0.0, 1000.0),
        (1, 500.0, 500.0),
        (2, 250.0, 750.0),
    ]


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
    assert second.stderr == ""
