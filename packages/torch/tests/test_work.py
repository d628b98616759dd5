"""Who waits for whom when work of tensors on a GPU is waited for: which calls of torch.cuda are made, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ringcore_torch.distributed.completer import Completer
from ringcore_torch.distributed.work import CoalescedWork, RingWork

GPU = torch.device("cuda", 1)


class Stream:
    """Notes what it is told to wait for."""

    def __init__(self) -> None:
        self.waits: list[Any] = []
        self.has_come_there = True

    def record_event(self) -> Any:
        return SimpleNamespace(of=self, query=lambda: self.has_come_there)

    def wait_event(self, event: Any) -> None:
        self.waits.append(event.of)


class Handle:
    """Notes in which stream it was waited for; has landed when it is told."""

    name = "work"

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.waits: list[Stream] = []
        self.has_landed = False

    def wait(self, timeout_s: float = 0.0) -> bool:
        self.waits.append(self._streams.current)
        return True

    def landed(self) -> bool:
        return self.has_landed

    def done(self, timeout_s: float = 0.0) -> bool:
        return True


class Streams:
    """The streams of one GPU."""

    def __init__(self) -> None:
        self.current = Stream()

    def current_stream(self, device: torch.device) -> Stream:
        assert device == GPU
        return self.current


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()
    monkeypatch.setattr(torch.cuda, "current_stream", made.current_stream)
    return made


def work(handle: Handle, written_in: list[Stream], streams: Streams) -> RingWork:
    return RingWork(handle, [], None, lambda _: written_in.append(streams.current), device=GPU)


def test_results_are_written_in_the_stream_that_waits_first_and_others_wait_for_it(streams: Streams) -> None:
    handle, written_in = Handle(streams), []
    started = work(handle, written_in, streams)
    first, second = streams.current, Stream()
    started.wait()
    assert written_in == [first] and set(handle.waits) == {first} and first.waits == []
    streams.current = second
    assert started.result() == []
    started.block_current_stream()
    assert written_in == [first], "results were written twice"
    assert second in handle.waits and second.waits == [first, first]


def test_asking_whether_it_has_ended_holds_no_stream_back_before(streams: Streams) -> None:
    handle, written_in = Handle(streams), []
    started = work(handle, written_in, streams)
    assert not started.is_completed() and not started.is_success() and started.exception() is None
    assert handle.waits == [] and written_in == []
    handle.has_landed = True
    streams.current.has_come_there = False  # what writes the results is on its way
    assert not started.is_completed()
    streams.current.has_come_there = True
    assert started.is_completed() and started.is_success()
    assert written_in == [streams.current]


def test_the_thread_that_sets_futures_holds_no_stream_back(streams: Streams) -> None:
    handle, completer = Handle(streams), Completer("test")
    ended: torch.futures.Future[None] = torch.futures.Future()
    completer.watch(handle, ended)
    ended.wait()
    completer.close()
    assert handle.waits == []


def test_coalesced_work_is_where_its_parts_are(streams: Streams) -> None:
    handles = [Handle(streams), Handle(streams)]
    written_in: list[Stream] = []
    on_host = RingWork(handles[0], [], None)
    together = CoalescedWork([on_host, work(handles[1], written_in, streams)], None, 1.0)
    assert together.device == GPU
    together.wait()
    assert written_in == [streams.current] and all(handle.waits for handle in handles)
