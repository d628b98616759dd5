"""Packed trees over uneven links, as in Blink (Wang et al., MLSys 2020): each chunk goes along a tree of its own.

ringrun -np 4 -H node1:1,node2:1,node3:1,node4:1 --topology-file network.json python examples/plans/packed.py
ringrun -np 4 python examples/plans/packed.py  # on one machine, as if each rank were on a host of a star
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import ringcore as ring
from ringcore import plans
from ringcore.network import Host, Link, Topology

Links = Mapping[tuple[int, int], float]  # between two ranks: a rate, the same each way
Tree = dict[int, int]  # by rank but the root: its parent


def links_between(request: plans.Request) -> Links:
    """Of ranks that have a host each, with a cable to each other one; else none."""
    told = request.topology
    rank_of = {name: rank for rank, name in enumerate(request.host_names)}
    if told is None or told.switches or len(rank_of) != request.ranks:
        return {}
    links: dict[tuple[int, int], float] = {}
    for link in told.links:
        if link.start in rank_of and link.end in rank_of:
            one, other = sorted((rank_of[link.start], rank_of[link.end]))
            links[one, other] = min(link.bits_per_s, links.get((one, other), link.bits_per_s))  # the slower way
    return links


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


def depths(tree: Tree, links: Links) -> dict[int, float]:
    """How far each rank is from the root: how long a unit of data is on its way."""
    found = {}
    for rank in {*tree, *tree.values()}:
        at, found[rank] = rank, 0.0
        while at in tree:
            found[rank] += 1 / links[min(at, tree[at]), max(at, tree[at])]
            at = tree[at]
    return found


def packed(request: plans.Request, chunks: int = 48) -> plans.Plan | None:
    """Allreduce along the trees that the job's links have room for; none where these are not known."""
    links = links_between(request)
    if request.collective != "allreduce" or not links:
        return None
    builder = plans.Builder("packed", request, chunks)
    # What moves when, if all links were full and nothing waited for another chunk: (time, chunk, up, from, to).
    moves = []
    pace = (request.ranks - 1) / sum(links.values())
    for chunk, tree in enumerate(pack(links, request.ranks, chunks)):
        depth = depths(tree, links)
        summed = chunk * pace + max(depth.values())
        moves += [(summed - depth[child], chunk, True, child, parent) for child, parent in tree.items()]
        moves += [(summed + depth[parent], chunk, False, parent, child) for child, parent in tree.items()]
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


# Four hosts: the first one has quick links to the others, which have slow ones among themselves.
HOSTS = ("a", "b", "c", "d")
STAR = Topology(
    tuple(map(Host, HOSTS)), (),
    tuple(Link(x, y, 200e6 if "a" in (x, y) else 40e6, 50e-6) for x in HOSTS for y in HOSTS if x != y),
)  # fmt: skip


def packed_or_star(request: plans.Request) -> plans.Plan | None:
    """For the links that the job was told of, or else those of the star; it says what the cost model thinks of it."""
    known = request if request.topology else replace(request, topology=STAR, host_names=HOSTS)
    plan = packed(known)
    if plan is not None:
        seconds = plan.predict(known.nbytes, topology=known.topology, host_names=known.host_names)
        rate = known.nbytes * 8 / seconds / 1e6
        print(f"packed trees would sum at {rate:.0f} Mbit/s on {'these links' if request.topology else 'a star'}")
    return plan


def main() -> None:
    """Sum with them on all ranks."""
    ring.init()
    plans.register(packed_or_star, sizes=[4 << 20], always=True)
    total = ring.allreduce(np.full(1 << 20, ring.rank() + 1, np.float32), op=ring.Sum)
    assert (total == ring.size() * (ring.size() + 1) / 2).all()
    if ring.rank() == 0:
        print(f"{len(plans.report())} plan used")
    ring.shutdown()


if __name__ == "__main__":
    main()
