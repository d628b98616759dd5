"""Carries packets between network namespaces as a long network does: late, at a rate, and not all of them.

    python distant.py RATE ROUND_TRIP LOSS QUEUE ADDRESS=PID...

Makes a device `wan0` in the network namespace of each process, and carries IPv4 packets between their addresses until
standard input ends: RATE bytes a second from and to each of them, ROUND_TRIP seconds there and back, a part LOSS of the
packets lost, each by itself, and at either end of a cable a queue of QUEUE seconds, behind which packets are lost as
well. netem would do this; it is a module that not every machine has. Needs root.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import sys
import time

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000  # IFF_TUN, IFF_NO_PI
_LARGEST = 65536
_READ_AT_ONCE = 64


def make_device(pid: int, name: str) -> int:
    """A descriptor from and to which the packets of a new device go, in the network namespace of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    own, theirs = (os.open(f"/proc/{which}/ns/net", os.O_RDONLY) for which in ("self", pid))
    if libc.setns(theirs, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"the network namespace of process {pid} cannot be entered")
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
    finally:
        libc.setns(own, _CLONE_NEWNET)
    os.close(own)
    os.close(theirs)
    return device


class Cable:
    """One direction of a host's cable: packets leave it one after the other."""

    def __init__(self, rate: float, queue_s: float) -> None:
        self._rate = rate
        self._queue_s = queue_s
        self._free_at = 0.0

    def passes(self, nbytes: int, now: float) -> float | None:
        """When a packet that comes now has left; None: the queue is full."""
        begin = max(now, self._free_at)
        if begin - now > self._queue_s:
            return None
        self._free_at = begin + nbytes / self._rate
        return self._free_at


class Network:
    """All cables, and the packets that are on the way."""

    def __init__(
        self, devices: dict[str, int], rate: float, round_trip_s: float, loss: float, queue_s: float
    ) -> None:  # by the host's address
        self._devices = list(devices.values())
        self._host_of = {socket.inet_aton(address): host for host, address in enumerate(devices)}
        self._out = [Cable(rate, queue_s) for _ in devices]
        self._in = [Cable(rate, queue_s) for _ in devices]
        self._delay_s = round_trip_s / 2
        self._loss = loss
        self._random = random.Random(0)
        # When something happens to a packet, a number that keeps the order, where it goes, it, whether it has arrived.
        self._under_way: list[tuple[float, int, int, bytes, bool]] = []
        self._count = 0

    def _later(self, when: float, host: int, packet: bytes, *, arrived: bool) -> None:
        self._count += 1
        heapq.heappush(self._under_way, (when, self._count, host, packet, arrived))

    def take(self, host: int) -> None:
        """What a host sends."""
        for _ in range(_READ_AT_ONCE):
            try:
                packet = os.read(self._devices[host], _LARGEST)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue  # IPv6 looks for neighbours by itself
            if self._random.random() < self._loss:
                continue
            left = self._out[host].passes(len(packet), time.monotonic())
            if left is not None:
                self._later(left + self._delay_s, -1, packet, arrived=False)

    def deliver(self) -> float:
        """Carry on whatever it is time for; after how many seconds there is more."""
        while self._under_way:
            now = time.monotonic()
            when, _, host, packet, arrived = self._under_way[0]
            if when > now:
                return when - now
            heapq.heappop(self._under_way)
            if arrived:
                os.write(self._devices[host], packet)
                continue
            host = self._host_of.get(packet[16:20], -1)
            passed = self._in[host].passes(len(packet), when) if host >= 0 else None
            if passed is not None:
                self._later(passed, host, packet, arrived=True)
        return 1.0


def main(rate: str, round_trip: str, loss: str, queue: str, *places: str) -> None:
    """Say when it has begun, and carry until standard input is closed."""
    devices = {address: make_device(int(pid), "wan0") for address, _, pid in (one.partition("=") for one in places)}
    network = Network(devices, float(rate), float(round_trip), float(loss), float(queue))
    hosts = {device: host for host, device in enumerate(devices.values())}
    poll = select.epoll()
    for descriptor in (*hosts, 0):
        poll.register(descriptor, select.EPOLLIN)
    os.nice(-15)  # a network does not become slower when its hosts have much to do
    print("ready", flush=True)
    wait_s = 1.0
    while True:
        for descriptor, _ in poll.poll(wait_s):
            if descriptor == 0:
                return
            network.take(hosts[descriptor])
        wait_s = network.deliver()


if __name__ == "__main__":
    main(*sys.argv[1:])
