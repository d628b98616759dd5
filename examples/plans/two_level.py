"""A two-level tree: the ranks of a host sum on one of them, and those sum along a tree.

ringrun -np 4 python examples/plans/two_level.py
"""

import numpy as np
import ringcore as ring
from ringcore import plans


def two_level(request: plans.Request) -> plans.Plan | None:
    """Allreduce: up to the first rank of each host, along a binary tree of those, and back."""
    if request.collective != "allreduce":
        return None
    chunks = min(16, max(1, request.nbytes // (256 << 10)))  # one behind the other
    builder = plans.Builder("two_level", request, chunks)
    leaders = [ranks[0] for ranks in request.hosts]
    parent = {leader: leaders[(i - 1) // 2] for i, leader in enumerate(leaders) if i > 0}
    parent |= {rank: ranks[0] for ranks in request.hosts for rank in ranks[1:]}
    children = [[child for child in parent if parent[child] == rank] for rank in range(request.ranks)]
    for rank in range(request.ranks):
        program = builder[rank]
        for chunk in range(chunks):
            program.channel(0)  # up
            done = None
            for child in children[rank]:
                last = rank not in parent and child == children[rank][-1]
                done = program.recv_reduce(child, chunk, final=last)
            if rank in parent:
                done = program.send(parent[rank], chunk)
            program.channel(1)  # and down, beside it
            if rank in parent:
                done = program.recv(parent[rank], chunk, after=done)
            for child in children[rank]:
                program.send(child, chunk, after=done)
    return builder.plan()


def main() -> None:
    """Sum with it on all ranks, and tell what it took."""
    ring.init()
    plans.register(two_level, sizes=[4 << 20])
    for _ in range(20):
        total = ring.allreduce(np.full(1 << 20, ring.rank() + 1, np.float32), op=ring.Sum)
    assert (total == ring.size() * (ring.size() + 1) / 2).all()
    if ring.rank() == 0:
        for found in plans.report():
            measured = "not measured" if found.measured_s is None else f"measured {found.measured_s * 1e3:.1f} ms"
            print(f"{found.generator}: predicted {found.predicted_s * 1e3:.1f} ms, {measured}")
    ring.shutdown()


if __name__ == "__main__":
    main()
