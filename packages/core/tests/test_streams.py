"""Rates of streams, where whoever measures had no processor."""

from __future__ import annotations

import selectors
import socket
import threading
import time

import pytest
from ringcore.job.streams import Streams

SECONDS = 0.1


class Late(Streams):
    """Looks up first when the round is over."""

    def _turn(self, selector: selectors.BaseSelector, begin: float, seconds: float) -> None:
        time.sleep(max(0.0, begin + 1.5 * seconds - time.monotonic()))
        super()._turn(selector, begin, seconds)


@pytest.mark.parametrize("kind", [Streams, Late])
def test_no_rate_is_higher_than_what_came_in_the_time_that_it_took(kind: type[Streams]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        out = socket.create_connection(listener.getsockname())
        into, _ = listener.accept()
    sender, receiver = Streams({1: out}, {}), kind({}, {0: into})
    sender.prepare()
    receiver.prepare()
    thread = threading.Thread(target=sender.run, args=([1], [], SECONDS))
    thread.start()
    rates = receiver.run([], [0], SECONDS)
    thread.join()
    came = receiver._received(0)
    sender.close()
    receiver.close()
    assert 0 < rates[0] <= 8 * came / (0.35 * SECONDS)
