"""One file tells what every rank did: spans of operations and of the steps of their plans, on one clock."""

from __future__ import annotations

import json
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
