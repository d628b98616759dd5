"""Streams of zeros between hosts, whose rates are what the network gives."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ringcore._errors import ResourceError

# Not more than this is handed to the kernel before it can send it: the rest would still arrive when others measure. As
# much as leaves in so many seconds, as soon as it is known; first what a host that sends to seven at once through
# 100 Mbit/s needs 10 ms for.
_UNSENT_S = 1.5e-3
# Queues are kept short only where they take long to leave: at rates below this, in bits a second, and where a link
# needs no more bytes under way than the system lets be set.
_SLOW, _SHORT = 2e9, 64 * 1024
_LEAST_UNSENT, _MOST_UNSENT = 16 * 1024, 1 << 20
_ZEROS = memoryview(bytes(_MOST_UNSENT))
_STOP, _END = b"\2", b"\1"
# What comes first was sent while queues on the way were empty, and TCP did not know its window.
_RAMP = 0.3
# Of a round so much lies at least between the two moments that are compared. Whoever had no processor at the first one
# would see both at once, and what came between would be divided by next to nothing.
_LEAST_SPAN = 0.35
# A round takes as long as so many round trips, at least: TCP sends little in the first ones, and waits between them.
_ROUND_TRIPS = 8
_LIMIT_S = 30.0
# In Linux's tcp_info: smoothed and least round trip, in microseconds, and bytes that were acknowledged and received.
_INFO_BYTES, _RTT_AT, _ACKNOWLEDGED_AT, _RECEIVED_AT, _MIN_RTT_AT = 256, 68, 120, 128, 148


@dataclass(frozen=True)
class Rates:
    """What one turn has shown, in bits a second.

    Attributes:
        sent: To all targets together, as they acknowledged it.
        received: By source.
    """

    sent: float
    received: dict[int, float]


@dataclass(frozen=True)
class _Mark:
    """What the kernel had counted at a moment, which was between two others."""

    before: float
    counts: dict[int, int]
    after: float


class _Window:
    """Two moments of a turn, and what the kernel counted in between."""

    def __init__(self, count: Callable[[], dict[int, int]], seconds: float) -> None:
        self._count = count
        self._seconds = seconds
        self._marks: list[_Mark] = []  # where it opens, and the two

    def _mark(self) -> None:
        before = time.monotonic()
        counts = self._count()
        self._marks.append(_Mark(before, counts, time.monotonic()))

    def open(self) -> None:
        """It begins, with what does not count yet."""
        self._mark()

    @property
    def opened(self) -> bool:
        """Whether it has begun."""
        return bool(self._marks)

    @property
    def closed(self) -> bool:
        """Whether both moments are over."""
        return len(self._marks) == 3

    @property
    def due(self) -> float | None:
        """When the counts have to be looked up next."""
        if len(self._marks) == 1:
            return self._marks[0].after + _RAMP * self._seconds
        if len(self._marks) == 2:
            return max(self._marks[0].after + self._seconds, self._marks[1].after + _LEAST_SPAN * self._seconds)
        return None

    def look(self) -> bool:
        """Look the counts up if it is time; whether it was."""
        is_time = self.due is not None and time.monotonic() >= self.due
        if is_time:
            self._mark()
        return is_time

    def bytes_per_s(self) -> dict[int, float]:
        """What has gone until now, on the whole."""
        begin, last = self._marks[0], self._marks[-1]
        return {end: (count - begin.counts[end]) / (last.after - begin.before) for end, count in last.counts.items()}

    def close(self) -> None:
        """Nothing will come any more."""
        while not self.closed:
            self._mark()

    def rates(self) -> dict[int, float]:
        """Between the two moments, in bits a second; rather too low than too high."""
        begin, first, last = self._marks
        least = _LEAST_SPAN * self._seconds
        if last.after - first.before < least:  # all was over before there was a processor
            first = begin
        span = max(last.after - first.before, least)
        return {end: 8 * (count - first.counts[end]) / span for end, count in last.counts.items()}


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
    _shortened: set[int] = field(default_factory=set)
    _rate: dict[int, float] = field(default_factory=dict)  # the most that a target had when it was the only one

    def prepare(self) -> None:
        """Let nothing wait in the sockets."""
        for connection in (*self.out.values(), *self.into.values()):
            connection.setblocking(False)
        for target in self.out:
            self.limit_unsent(target, _LEAST_UNSENT)

    def limit_unsent(self, target: int, nbytes: int) -> None:
        """Hand no more to the kernel than this before it can send it."""
        self._unsent[target] = min(max(nbytes, _LEAST_UNSENT), _MOST_UNSENT)
        self.out[target].setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._unsent[target])

    def shorten_queues(self) -> None:
        """Let no more be under way to each host than its link needs, before several share what is on the way."""
        for target, connection in self.out.items():
            rate = self._rate.get(target, 0.0)
            needed = int(2 * rate * 2 * self.latency_s(target, least=True) / 8)
            if rate < _SLOW and needed <= _SHORT:
                self._shortened.add(target)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, max(needed, _LEAST_UNSENT))

    def lengthen_queues(self) -> None:
        """As long as the system lets them be, for whoever has the way alone."""
        for target in self._shortened:
            self.out[target].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_UNSENT)
        self._shortened.clear()

    def run(self, targets: Sequence[int], sources: Sequence[int], seconds: float) -> Rates:
        """Send to some hosts, and take what others send at the same time.

        Whoever receives measures for so long, or for some round trips, and then asks for the end: so nobody stops
        before all have measured who began later.

        Raises:
            ResourceError: A host broke off, or its data did not come.
        """
        rates = _Turn(self, targets, sources, seconds).run()
        if len(targets) == 1:
            self._rate[targets[0]] = max(rates.sent, self._rate.get(targets[0], 0.0))
        return rates

    def send(self, target: int) -> None:
        """As much as may be handed over."""
        self.out[target].send(_ZEROS[: self._unsent[target]])

    def acknowledged(self, target: int) -> int:
        """Bytes that a host has confirmed."""
        return int(self._info(self.out[target], "Q", _ACKNOWLEDGED_AT))

    def received(self, source: int) -> int:
        """What the kernel has got, whether or not this process has had time to take it."""
        return int(self._info(self.into[source], "Q", _RECEIVED_AT))

    def latency_s(self, host: int, *, least: bool) -> float:
        """One way to a host: half a round trip, as it is now or at its least."""
        connection = self.out[host] if host in self.out else self.into[host]
        microseconds = self._info(connection, "I", _MIN_RTT_AT if least else _RTT_AT)
        return float(microseconds) * 1e-6 / 2

    @staticmethod
    def _info(connection: socket.socket, kind: str, at: int) -> int:
        (value,) = struct.unpack_from(kind, connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES), at)
        return int(value)

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self.out.values(), *self.into.values()):
            connection.close()


class _Turn:
    """What one host does in one turn."""

    def __init__(self, streams: Streams, targets: Sequence[int], sources: Sequence[int], seconds: float) -> None:
        self._streams = streams
        self._selector = selectors.DefaultSelector()
        self._sending, self._stopped = set(targets), set[int]()
        self._silent, self._coming = set(sources), set(sources)
        self._came: list[float] = []  # when each source began
        self._targets = tuple(targets)
        # What is sent is counted no longer than all are sent to.
        self._sent = _Window(self._count_sent, max(seconds, min(map(self._least_s, targets), default=0.0)))
        self._sent_before = self._count_sent()
        self._receiving_s = max(seconds, *map(self._least_s, sources), 0.0)
        self._received = _Window(lambda: {source: streams.received(source) for source in sources}, self._receiving_s)
        self._asked = False

    def _count_sent(self) -> dict[int, int]:
        return {target: self._streams.acknowledged(target) for target in self._targets}

    def _least_s(self, host: int) -> float:
        return _ROUND_TRIPS * 2 * self._streams.latency_s(host, least=True)

    def run(self) -> Rates:
        """See `Streams.run`."""
        limit = time.monotonic() + self._receiving_s + _LIMIT_S
        with self._selector:
            for target in self._sending:
                both = selectors.EVENT_WRITE | selectors.EVENT_READ
                self._selector.register(self._streams.out[target], both, target)
            for source in self._coming:
                self._selector.register(self._streams.into[source], selectors.EVENT_READ, source)
            while self._selector.get_map():
                self._wait()
                self._look()
                if time.monotonic() > limit:
                    raise ResourceError(f"hosts {sorted(self._sending | self._coming)} did not end in time")
        for window in (self._sent, self._received):
            window.close()
        return Rates(sum(self._sent.rates().values()), self._received.rates())

    def _wait(self) -> None:
        """Until something can be sent, has come, or has to be looked up."""
        moments = [due for due in (self._sent.due, self._received.due, self._opens) if due is not None]
        patience = min(moments, default=float("inf")) - time.monotonic()
        for key, events in self._selector.select(max(0.0, min(patience, 1.0))):
            is_out = self._streams.out.get(key.data) is key.fileobj
            try:
                if is_out:
                    self._serve(key.data, events)
                else:
                    self._take(key.data)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ResourceError(f"host {key.data} cannot be measured: {error}") from error

    def _serve(self, target: int, events: int) -> None:
        connection = self._streams.out[target]
        if events & selectors.EVENT_READ:
            if not connection.recv(1):
                raise ResourceError(f"host {target} broke off while it was measured")
            self._stopped.add(target)
        if target not in self._stopped:
            self._streams.send(target)
        elif connection.send(_END):
            self._selector.unregister(connection)
            self._sending.discard(target)

    def _take(self, source: int) -> None:
        connection = self._streams.into[source]
        data = connection.recv(1 << 18)
        if not data:
            raise ResourceError(f"host {source} broke off while it was measured")
        if source in self._silent:
            self._silent.remove(source)
            self._came.append(time.monotonic())
        if data.endswith(_END):
            self._selector.unregister(connection)
            self._coming.discard(source)

    @property
    def _opens(self) -> float | None:
        """When at the latest what is received counts, though some have sent nothing yet."""
        return None if self._received.opened or not self._came else self._came[0] + self._receiving_s / 2

    def _look(self) -> None:
        opens = self._opens
        if not self._received.opened and (not self._silent or (opens is not None and time.monotonic() >= opens)):
            self._received.open()
        self._received.look()
        if not self._sent.opened and self._count_sent() != self._sent_before:
            self._sent.open()
        if self._sent.look():
            for target, rate in self._sent.bytes_per_s().items():
                self._streams.limit_unsent(target, int(rate * _UNSENT_S))
        if not self._sending:
            self._sent.close()
        if self._received.closed and not self._asked:
            self._asked = True
            for source in self._coming:
                self._streams.into[source].send(_STOP)
