"""A relay of UDP packets that loses, doubles and delays them, so that later ones overtake; until standard input ends.

    python weather.py HOST PORT TO_HOST TO_PORT LOST DOUBLED LATE

Parts of all packets, in each direction. Those that are late are so by up to ten milliseconds.
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import sys
import time

_LATE_S = 0.01


def main() -> None:
    """Relay."""
    host, port, to_host, to_port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    lost, doubled, late = map(float, sys.argv[5:8])
    inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    inside.bind((host, port))
    outside: dict[tuple[str, int], socket.socket] = {}  # a socket for each worker, whose address the switch sees
    workers: dict[socket.socket, tuple[str, int]] = {}
    waiting: list[tuple[float, int, socket.socket, tuple[str, int], bytes]] = []
    number = 0
    draw = random.Random(7)
    print("ready", flush=True)
    while True:
        wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready = select.select([inside, sys.stdin, *workers], [], [], wait_s)[0]
        if sys.stdin in ready:
            return
        for source in ready:
            data, worker = source.recvfrom(2048)
            if source is inside and worker not in outside:
                outside[worker] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                outside[worker].bind((host, 0))
                workers[outside[worker]] = worker
            way = (outside[worker], (to_host, to_port)) if source is inside else (inside, workers[source])
            for _ in range(2 if draw.random() < doubled else 1):
                if draw.random() < lost:
                    continue
                number += 1
                delay_s = draw.random() * _LATE_S if draw.random() < late else 0.0
                heapq.heappush(waiting, (time.monotonic() + delay_s, number, *way, data))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, out, to, data = heapq.heappop(waiting)
            out.sendto(data, to)


if __name__ == "__main__":
    main()
