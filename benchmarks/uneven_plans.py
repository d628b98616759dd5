"""Generators in Python that `uneven.py` compares: the engine's ring, step for step, and several rings at once."""

from __future__ import annotations

import functools
import itertools
import sys
from pathlib import Path

from ringcore import plans

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "plans"))

from packed import packed

# Of each block: as many as the engine takes for 16 MiB at 100 Mbit/s, so that the steps are the same.
PARTS = 8


def ring(request: plans.Request) -> plans.Plan:
    """Reduce-scatter and allgather in the order of the ranks."""
    ranks, rounds = request.ranks, 2 * (request.ranks - 1)
    builder = plans.Builder("ring", request, ranks * PARTS)
    for rank in range(ranks):
        program, after, before = builder[rank], (rank + 1) % ranks, (rank - 1) % ranks
        for part in range(PARTS):
            program.send(after, rank * PARTS + part)
        for turn in range(rounds):
            block = (rank - turn - 1) % ranks
            for chunk in range(block * PARTS, (block + 1) * PARTS):
                if turn < ranks - 1:
                    program.recv_reduce(before, chunk, final=turn == ranks - 2)
                else:
                    program.recv(before, chunk)
                if turn + 1 < rounds:
                    program.send(after, chunk)
    return builder.plan()


def rings(request: plans.Request) -> plans.Plan:
    """All directed rings of all ranks side by side, each with an equal share of the data."""
    ranks = request.ranks
    orders = [(0, *rest) for rest in itertools.permutations(range(1, ranks))]
    builder = plans.Builder("rings", request, len(orders) * ranks * PARTS)
    last: dict[tuple[int, int], plans.Point] = {}  # by rank and chunk: what comes next waits for it
    for turn, part, place, (number, order) in itertools.product(
        range(2 * (ranks - 1)), range(PARTS), range(ranks), enumerate(orders)
    ):
        source, target = order[place], order[(place + 1) % ranks]
        chunk = (number * ranks + (place - turn) % ranks) * PARTS + part
        # Each direction of each link is a channel of its own on both sides.
        sender, receiver = builder[source].channel(2 * target), builder[target].channel(2 * source + 1)
        last[source, chunk] = sender.send(target, chunk, after=last.get((source, chunk)))
        before = last.get((target, chunk))
        if turn < ranks - 1:
            last[target, chunk] = receiver.recv_reduce(source, chunk, final=turn == ranks - 2, after=before)
        else:
            last[target, chunk] = receiver.recv(source, chunk, after=before)
    return builder.plan()


GENERATORS = {"ring": ring, "rings": rings, "packed": functools.partial(packed, chunks=240)}
