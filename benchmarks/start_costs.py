"""What the steps of a job's start cost a processor: the figures in ringcore/simulation/start.py. Takes some seconds.

    python benchmarks/start_costs.py

Prints, in microseconds of one processor, the medians of several runs with the smallest and the largest: a guest of the
rendezvous (it is let in, proves the key, and sends its contact), one side's part in a proof between ranks, and to pack
and to unpack a contact as a part of the table of all.
"""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ringcore.bootstrap.acceptor import Acceptor
from ringcore.bootstrap.auth import TABLE, Hello, authenticate
from ringcore.bootstrap.contacts import decode_answer, encode_answer
from ringcore.bootstrap.meeting import meet
from ringcore.bootstrap.rendezvous import RendezvousServer
from ringcore.bootstrap.sockets import dial, format_address, listen_tcp
from ringcore.simulation.start import contact_of

REPEATS = 7
GUESTS = 128
PROOFS = 200
CONTACTS = 5_000
LIMIT_S = 120.0
KEY = secrets.token_bytes(32)


def processor_time_of(thread: threading.Thread) -> float:
    """Seconds that a thread of this process has used."""
    with open(f"/proc/self/task/{thread.native_id}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def guest_us() -> float:
    """Of the rendezvous' thread, for a rank."""
    server = RendezvousServer(GUESTS, KEY)
    try:
        contacts = [{**contact_of(rank, rank), "size": GUESTS, "tcp": []} for rank in range(GUESTS)]
        deadline = time.monotonic() + LIMIT_S
        with ThreadPoolExecutor(GUESTS) as pool:
            list(pool.map(lambda contact: meet(server.address, KEY, contact, deadline), contacts))
        return processor_time_of(server._thread) / GUESTS * 1e6
    finally:
        server.close()


def proof_us() -> float:
    """Of both sides, which are alike, on one thread each; a half of it."""
    listener = listen_tcp("127.0.0.1", 0)
    address = f"tcp:{format_address(listener.getsockname())}"
    accepted: list[object] = []
    acceptor = Acceptor([listener], KEY, lambda *one: accepted.append(one))

    def accept() -> None:
        while len(accepted) < PROOFS:
            acceptor.service(0.1)

    thread = threading.Thread(target=accept)
    begin = time.process_time()
    thread.start()
    for number in range(PROOFS):
        deadline = time.monotonic() + LIMIT_S
        with dial(address, deadline) as connection:
            authenticate(connection, KEY, Hello(TABLE, 1, 0, number), deadline)
    thread.join()
    acceptor.close()
    return (time.process_time() - begin) / PROOFS / 2 * 1e6


def pack_us() -> float:
    """For a contact."""
    contacts = [contact_of(rank, rank // 8) for rank in range(CONTACTS)]
    begin = time.process_time()
    encode_answer({"contacts": contacts})
    return (time.process_time() - begin) / CONTACTS * 1e6


def unpack_us() -> float:
    """For a contact."""
    data = encode_answer({"contacts": [contact_of(rank, rank // 8) for rank in range(CONTACTS)]})
    begin = time.process_time()
    decode_answer(data)
    return (time.process_time() - begin) / CONTACTS * 1e6


def main() -> None:
    """All figures."""
    measures: list[Callable[[], float]] = [guest_us, proof_us, pack_us, unpack_us]
    for measure in measures:
        values = [measure() for _ in range(REPEATS)]
        print(
            f"{measure.__name__}: {statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})", flush=True
        )


if __name__ == "__main__":
    main()
