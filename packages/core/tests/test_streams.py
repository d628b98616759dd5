"""Rates of streams, where whoever measures had no processor."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from ringcore import ResourceError
from ringcore.job.streams import Streams

SECONDS = 0.1
LEAST_SPAN = 0.35 * SECONDS


class Late(Streams):
    """Looks up what has come for the second time when its time is over."""

    looked = 0

    def received(self, source: int) -> int:
        self.looked += 1
        if self.looked == 2:
            time.sleep(1.5 * SECONDS)
        return super().received(source)


@contextlib.contextmanager
def connected(sends: type[Streams], takes: type[Streams]) -> Iterator[tuple[Streams, Streams]]:
    """Host 0, which sends to host 1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        out = socket.create_connection(listener.getsockname())
        into, _ = listener.accept()
    sender, receiver = sends({1: out}, {}), takes({}, {0: into})
    try:
        sender.prepare()
        receiver.prepare()
        yield sender, receiver
    finally:
        sender.close()
        receiver.close()


@pytest.mark.parametrize("kind", [Streams, Late])
def test_no_rate_is_higher_than_what_came_in_the_time_that_it_took(kind: type[Streams]) -> None:
    with connected(Streams, kind) as (sender, receiver):
        thread = threading.Thread(target=sender.run, args=([1], [], SECONDS))
        thread.start()
        rates = receiver.run([], [0], SECONDS)
        thread.join()
        assert 0 < rates.received[0] <= 8 * receiver.received(0) / LEAST_SPAN


def test_no_rate_is_higher_than_what_went_in_the_time_that_it_took() -> None:
    with connected(Streams, Streams) as (sender, receiver):
        thread = threading.Thread(target=receiver.run, args=([], [0], SECONDS))
        thread.start()
        rates = sender.run([1], [], SECONDS)
        thread.join()
        assert 0 < rates.sent <= 8 * sender.acknowledged(1) / LEAST_SPAN


def test_whoever_begins_late_is_sent_to_until_it_has_measured() -> None:
    with connected(Streams, Streams) as (sender, receiver):
        thread = threading.Thread(target=sender.run, args=([1], [], SECONDS))
        thread.start()
        thread.join(2 * SECONDS)
        assert thread.is_alive()
        before = receiver.received(0)
        rates = receiver.run([], [0], SECONDS)
        thread.join()
        assert 0 < rates.received[0] <= 8 * (receiver.received(0) - before) / LEAST_SPAN


class Far(Streams):
    """Whose round trips are longer than a round."""

    def latency_s(self, host: int, *, least: bool) -> float:
        return SECONDS / 4


def test_a_round_takes_several_round_trips_at_least() -> None:
    with connected(Far, Far) as (sender, receiver):
        thread = threading.Thread(target=sender.run, args=([1], [], 1e-3))
        thread.start()
        begin = time.monotonic()
        rates = receiver.run([], [0], 1e-3)
        thread.join()
        assert rates.received[0] > 0
        assert time.monotonic() - begin >= 8 * SECONDS / 2


def test_as_much_is_handed_to_the_kernel_as_leaves_in_a_moment() -> None:
    with connected(Streams, Streams) as (sender, receiver):
        thread = threading.Thread(target=sender.run, args=([1], [], SECONDS))
        thread.start()
        rates = receiver.run([], [0], SECONDS)
        thread.join()
        # In this host that is more than what is let wait before anything is known.
        assert rates.received[0] > 1e9
        assert sender.out[1].getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) > 16 * 1024


def test_a_host_that_breaks_off_is_named() -> None:
    with connected(Streams, Streams) as (sender, receiver):
        sender.out[1].close()
        with pytest.raises(ResourceError, match="host 0 broke off while it was measured"):
            receiver.run([], [0], SECONDS)
