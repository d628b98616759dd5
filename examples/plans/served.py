"""Servers by a plan of one's own: each adds up a share of the data, and gives it back to all.

ringrun -np 4 --servers 2 python examples/plans/served.py
"""

import time

import numpy as np
import ringcore as ring
from ringcore import plans


def served(request: plans.Request) -> plans.Plan | None:
    """Allreduce: a server has as much of the data as each other one; none where nobody serves."""
    if request.collective != "allreduce" or not request.servers:
        return None
    builder = plans.Builder("served", request, chunks=len(request.servers), serving=len(request.servers))
    for share, server in enumerate(request.servers):
        for rank in range(request.ranks):
            builder[rank].send(server, share)
            if rank == 0:
                builder[server].recv(
                    rank, share
                )  # a server has no data of its own: this is what the others are added to
            else:
                builder[server].recv_reduce(rank, share, final=rank == request.ranks - 1)
    for share, server in enumerate(request.servers):
        for rank in range(request.ranks):
            builder[server].send(rank, share)
            builder[rank].recv(server, share)
    return builder.plan()


def main() -> None:
    """Sum with it on all ranks, and tell what it took."""
    ring.init()
    plans.register(served, sizes=[4 << 20], always=True)
    seconds = []
    for _ in range(40):
        begin = time.perf_counter()
        total = ring.allreduce(np.full(1 << 20, ring.rank() + 1, np.float32), op=ring.Sum)
        seconds.append(time.perf_counter() - begin)
    assert (total == ring.size() * (ring.size() + 1) / 2).all()
    if ring.rank() == 0:
        predicted = plans.report()[0].predicted_s * 1e3
        print(f"served: predicted {predicted:.1f} ms, and took {min(seconds[20:]) * 1e3:.1f} ms")
    ring.shutdown()


if __name__ == "__main__":
    main()
