"""Lets many real processes meet, again and again, also while a stranger holds connections to where they meet.

    python benchmarks/many_ranks/crowd.py [--ranks 512] [--times 20] [--strangers 500]

Every process starts over TCP, sums with all others, looks at the sum, and leaves. Says how long each time took, and
ends with an error at the first time that one of them fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support import ranks

LIMIT_S = 600.0


def meets() -> float:
    import numpy as np
    import ringcore

    begin = time.monotonic()
    ringcore.init()
    size = ringcore.size()
    assert ringcore.allreduce(np.ones(1), op=ringcore.Sum)[0] == size
    seconds = time.monotonic() - begin
    ringcore.shutdown()
    return seconds


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def strangers(port: int, count: int) -> Iterator[None]:
    """Connections that say nothing; each that is closed, or refused as nobody listens yet, is followed by another."""
    stop = threading.Event()

    def knock(selector: selectors.BaseSelector) -> None:
        connection = socket.socket()
        try:
            connection.connect(("127.0.0.1", port))
        except OSError:
            connection.close()
            stop.wait(0.01)
        else:
            selector.register(connection, selectors.EVENT_READ)

    def hold() -> None:
        with selectors.DefaultSelector() as selector:
            while not stop.is_set():
                for _ in range(count - len(selector.get_map())):
                    knock(selector)
                for key, _ in selector.select(0.05):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
            for key in list(selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def meet_once(size: int, count: int) -> tuple[float, float]:
    """Seconds until all have ended, and of the slowest from its start to its first result."""
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        key = Path(name, "key")
        key.touch(0o600)
        key.write_bytes(os.urandom(32))
        env = {
            "RINGCORE_TRANSPORT": "tcp",
            "RINGCORE_RENDEZVOUS": f"tcp:127.0.0.1:{port}",
            "RINGCORE_KEY_FILE": str(key),
            "RINGCORE_START_TIMEOUT_S": str(LIMIT_S),
            "RINGCORE_HEARTBEAT_S": "60",  # So many share few processors.
        }
        begin = time.monotonic()
        with strangers(port, count):
            slowest = max(ranks.run(meets, size, Path(name), env=env, limit_s=LIMIT_S))
        return time.monotonic() - begin, slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--strangers", type=int, default=500)
    options = parser.parse_args()
    for held in (0, options.strangers):
        for number in range(options.times):
            whole, slowest = meet_once(options.ranks, held)
            print(
                f"{options.ranks} ranks, {held} strangers, time {number + 1}: {whole:.1f} s, the slowest started for "
                f"{slowest:.1f} s",
                flush=True,
            )


main()
