"""Packed trees over uneven links, as in Blink (Wang et al., MLSys 2020): each chunk goes along a tree of its own.

ringrun -np 4 python examples/plans/packed.py
"""

import itertools
from collections.abc import Mapping

import numpy as np
import ringcore as ring
from ringcore import plans

Links = Mapping[tuple[int, int], float]  # between two ranks: a rate, the same each way
Tree = dict[int, int]  # by rank but the root: its parent


def pack(links: Links, ranks: int, trees: int) -> list[Tree]:
    """Spanning trees, one a chunk: the next one takes the links that are free soonest."""
    load = dict.fromkeys(links, 0)
    packed = []
    for _ in range(trees):
        ends = {link: (load[link] + 1) / rate for link, rate in links.items()}
        tree: Tree = {}
        inside = {0}
        while len(inside) < ranks:
            edges = [edge for edge in links if (edge[0] in inside) != (edge[1] in inside)]
            best = min(edges, key=lambda edge: (ends[edge], edge))
            load[best] += 1
            parent, child = best if best[0] in inside else (best[1], best[0])
            tree[child] = parent
            inside.add(child)
        packed.append(tree)
    return packed


def rate(links: Links, packed: list[Tree]) -> float:
    """Of the data, when all trees run at once: each direction of a link carries what goes up or down through it."""
    pairs = [tuple(sorted(edge)) for tree in packed for edge in tree.items()]
    return len(packed) / max(pairs.count(tuple(sorted(link))) / capacity for link, capacity in links.items())


def depths(tree: Tree) -> dict[int, int]:
    """How far each rank is from the root."""
    found = {}
    for rank in {*tree, *tree.values()}:
        at, found[rank] = rank, 0
        while at in tree:
            at, found[rank] = tree[at], found[rank] + 1
    return found


def packed_trees(links: Links, chunks: int = 48):
    """A generator of allreduces for these links."""

    def packed(request: plans.Request) -> plans.Plan | None:
        if request.collective != "allreduce" or request.ranks != 1 + max(map(max, links)):
            return None
        builder = plans.Builder("packed", request, chunks)
        # What moves when, if every link took one chunk at a time: (time, chunk, up, from, to).
        moves = []
        for chunk, tree in enumerate(pack(links, request.ranks, chunks)):
            depth = depths(tree)
            height = max(depth.values())
            moves += [(chunk + height - depth[child], chunk, True, child, parent) for child, parent in tree.items()]
            moves += [(chunk + height + depth[child], chunk, False, parent, child) for child, parent in tree.items()]
        arrived = dict.fromkeys(range(chunks), 0)
        last: dict[tuple[int, int], plans.Point] = {}  # by rank and chunk: what comes next waits for it
        for _, chunk, up, source, target in sorted(moves):
            # Each direction of each link is a channel of its own on both sides.
            sent = builder[source].channel(2 * target).send(target, chunk, after=last.get((source, chunk)))
            program, before = builder[target].channel(2 * source + 1), last.get((target, chunk))
            if up:
                last[source, chunk] = sent
                arrived[chunk] += 1
                final = arrived[chunk] == request.ranks - 1
                last[target, chunk] = program.recv_reduce(source, chunk, final=final, after=before)
            else:
                last[target, chunk] = program.recv(source, chunk, after=before)
        return builder.plan()

    return packed


# Four hosts: the first one has quick links to the others, which have slow ones among themselves.
STAR = {(a, b): 200e6 if a == 0 else 40e6 for a, b in itertools.combinations(range(4), 2)}


def main() -> None:
    """Sum with them on all ranks."""
    ring.init()
    plans.register(packed_trees(STAR), sizes=[4 << 20], always=True)
    total = ring.allreduce(np.full(1 << 20, ring.rank() + 1, np.float32), op=ring.Sum)
    assert (total == ring.size() * (ring.size() + 1) / 2).all()
    if ring.rank() == 0:
        quick = rate(STAR, pack(STAR, 4, 48)) / 1e6
        print(f"{len(plans.report())} plan used; on the star it would sum at {quick:.0f} Mbit/s")
    ring.shutdown()


if __name__ == "__main__":
    main()
