"""Streams of zeros between hosts, whose rates are what the network gives."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringcore._errors import ResourceError

# Not more than this is handed to the kernel before it can send it: the rest would still arrive when others measure. As
# much as leaves in so many seconds, as soon as it is known; first what a host that sends to seven at once through
# 100 Mbit/s needs 10 ms for.
_UNSENT_S = 1.5e-3
_LEAST_UNSENT, _MOST_UNSENT = 16 * 1024, 1 << 20
_ZEROS = memoryview(bytes(_MOST_UNSENT))
_END = b"\1"
# What comes first was sent while queues on the way were empty, and TCP did not know its window.
_RAMP = 0.3
# Of a round so much lies between the two moments that are compared. Whoever had no processor at the first one saw both
# at once, and what came between would be divided by next to nothing.
_LEAST_SPAN = 0.35
_LIMIT_S = 30.0
# In Linux's tcp_info: smoothed and least round trip, in microseconds, and bytes received.
_INFO_BYTES, _RTT_AT, _RECEIVED_AT, _MIN_RTT_AT = 256, 68, 128, 148


@dataclass
class Mark:
    """What had come at a moment, in seconds since the round began, by source."""

    at: float = 0.0
    received: dict[int, int] = field(default_factory=dict)


@dataclass
class Streams:
    """Connections to and from the other hosts that measure.

    Attributes:
        out: By number of the host: what is sent to it.
        into: What comes from it.
    """

    out: Mapping[int, socket.socket]
    into: Mapping[int, socket.socket]
    _unsent: dict[int, int] = field(default_factory=dict)  # what is handed to the kernel at once, by target
    _sent: dict[int, int] = field(default_factory=dict)  # in this round

    def prepare(self) -> None:
        """Let nothing wait in the sockets."""
        for connection in (*self.out.values(), *self.into.values()):
            connection.setblocking(False)
        for target in self.out:
            self._limit_unsent(target, _LEAST_UNSENT)

    def _limit_unsent(self, target: int, nbytes: int) -> None:
        self._unsent[target] = min(max(nbytes, _LEAST_UNSENT), _MOST_UNSENT)
        self.out[target].setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._unsent[target])

    def run(self, targets: Sequence[int], sources: Sequence[int], seconds: float) -> dict[int, float]:
        """Send to some hosts for so long, and take what others send at the same time.

        Returns:
            Bits a second, by source.

        Raises:
            ResourceError: A host broke off, or its data did not come.
        """
        begin = time.monotonic()
        start = Mark(0.0, {source: self._received(source) for source in sources})
        marks = [(_RAMP * seconds, Mark()), (seconds, Mark())]
        self._sent = dict.fromkeys(targets, 0)
        is_ramp = True
        with selectors.DefaultSelector() as selector:
            for target in targets:
                selector.register(self.out[target], selectors.EVENT_WRITE, target)
            for source in sources:
                selector.register(self.into[source], selectors.EVENT_READ, source)
            while selector.get_map():
                self._turn(selector, begin, seconds)
                now = time.monotonic() - begin
                if is_ramp and now >= _RAMP * seconds:
                    is_ramp = False
                    for target, sent in self._sent.items():
                        self._limit_unsent(target, int(sent / now * _UNSENT_S))
                for due, mark in marks:
                    if now >= due and not mark.received:
                        mark.at, mark.received = now, {source: self._received(source) for source in sources}
        for _, mark in marks:  # where the others ended a little earlier
            if not mark.received:
                mark.at, mark.received = (
                    time.monotonic() - begin,
                    {source: self._received(source) for source in sources},
                )
        first, last = marks[0][1], marks[1][1]
        least = _LEAST_SPAN * seconds
        if last.at - first.at < least:
            first = start
        span = max(last.at - first.at, least)
        return {source: 8 * (last.received[source] - first.received[source]) / span for source in sources}

    def _turn(self, selector: selectors.BaseSelector, begin: float, seconds: float) -> None:
        ready = selector.select(max(0.0, begin + seconds + _LIMIT_S - time.monotonic()))
        if not ready:
            raise ResourceError(f"nothing came from host {[key.data for key in selector.get_map().values()]} in time")
        for key, events in ready:
            try:
                if events & selectors.EVENT_WRITE:
                    over = time.monotonic() - begin >= seconds
                    block = _END if over else _ZEROS[: self._unsent[key.data]]
                    self._sent[key.data] += self.out[key.data].send(block)
                else:
                    data = self.into[key.data].recv(1 << 18)
                    if not data:
                        raise ResourceError(f"host {key.data} broke off while it was measured")
                    over = data.endswith(_END)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ResourceError(f"host {key.data} cannot be measured: {error}") from error
            if over:
                selector.unregister(key.fileobj)

    def _received(self, source: int) -> int:
        """What the kernel has got, whether or not this process has had time to take it."""
        info = self.into[source].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        (nbytes,) = struct.unpack_from("Q", info, _RECEIVED_AT)
        return int(nbytes)

    def latency_s(self, target: int, *, least: bool) -> float:
        """One way to a host: half a round trip, as it is now or at its least."""
        info = self.out[target].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        (microseconds,) = struct.unpack_from("I", info, _MIN_RTT_AT if least else _RTT_AT)
        return float(microseconds) * 1e-6 / 2

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self.out.values(), *self.into.values()):
            connection.close()
