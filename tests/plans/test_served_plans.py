"""Plans of one's own in which the servers of a job take part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ringcore
from support.ranks import TESTS

# For ranks, which import the plans of the tests.
ENVIRON = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(TESTS)])}


def sums_with(serving: int, always: bool) -> list[list]:
    """What the generator was asked, and what became of its plan; sums are compared here."""
    import numpy as np
    import ringcore as ring
    from ringcore import plans
    from test_plans import served, star

    ring.init()
    asked = []

    def generator(request):
        asked.append([request.ranks, list(request.servers), len(request.server_hosts)])
        return served(request, serving) if serving else star(request)

    before = ring.allreduce(np.ones(1 << 16, np.float32), op=ring.Sum)
    assert (before == ring.size()).all()
    plans.register(generator, sizes=[1 << 18], always=always)
    right = ring.size() * (ring.size() + 1) // 2
    for step in range(2 if always else 40):
        for dtype in (np.float32, np.float16):  # a star's 16-bit sums would be rounded several times
            sums = ring.allreduce(np.full(1 << 16, ring.rank() + 1, dtype), op=ring.Sum)
            assert (sums == right).all(), step
    gathered = ring.allgather(np.full(1 << 16, ring.rank()))  # goes from rank to rank
    assert (gathered.reshape(ring.size(), -1) == np.arange(ring.size())[:, None]).all()
    found = [[one.generator, one.nbytes, one.chosen, one.measured_s, one.best_other_s] for one in plans.report()]
    assert all(one.predicted_s > 0 for one in plans.report())
    ring.shutdown()
    return [asked, found]


@pytest.mark.parametrize(("serving", "transport"), [(2, "shm"), (2, "tcp"), (1, "shm"), (0, "tcp")])
def test_the_servers_of_a_job_serve_in_plans_from_outside(serving: int, transport: str) -> None:
    first, *others = ringcore.run(sums_with, (serving, True), np=4, servers=2, transport=transport, env=ENVIRON)
    asked, found = first
    assert asked == [[4, [4, 5], 2]]
    assert others == [[[], found]] * 3  # rank 0 alone is asked
    generator, sizes = ("served", [1 << 17, 1 << 18]) if serving else ("star", [1 << 18])
    # One line for each, however many lanes have used it; and nothing was measured.
    assert sorted(found) == [[generator, nbytes, True, None, None] for nbytes in sizes]


def test_a_plan_with_servers_is_tried_beside_the_others() -> None:
    results = ringcore.run(sums_with, (2, False), np=3, servers=2, env=ENVIRON)
    _, found = results[0]
    assert found
    assert all(name == "served" and measured for name, _, _, measured, _ in found)
    assert [each for _, each in results] == [found] * 3


def refusals() -> dict[str, list]:
    """The type and text of what each registration raises, in a job that goes on."""
    import numpy as np
    import ringcore as ring
    from ringcore import plans
    from support.rank import caught
    from test_plans import served

    ring.init()

    def too_many(request):
        return served(request, len(request.servers) + 1)

    def a_rank_serves(request):
        return served(plans.Request(request.collective, request.nbytes, request.host_of[1:]), 2)

    def wrong(request):
        builder = plans.Builder("wrong", request, 1, serving=1)
        builder[request.servers[0]].recv(0, 0)
        builder[0].send(request.servers[0], 0)
        return builder.plan()

    said = {}
    for generator in (too_many, a_rank_serves, wrong):
        error = caught(plans.register, generator, sizes=[1 << 18])
        said[generator.__name__] = [error["type"], error["message"]]
        assert (ring.allreduce(np.ones(1 << 16, np.float32), op=ring.Sum) == ring.size()).all()
    error = caught(plans.register, wrong, collectives=["allreduce", "allgather"])
    said["collectives"] = [error["type"], error["message"]]
    assert plans.report() == []
    ring.shutdown()
    return said


def test_plans_that_servers_cannot_serve_in_are_refused_on_all_ranks() -> None:
    said, *others = ringcore.run(refusals, np=3, servers=1, env=ENVIRON)
    assert others == [said] * 2
    assert {kind for kind, _ in said.values()} == {"InvalidArgument"}
    assert "the nodes that serve in the plan need --servers 2, and the job has 1" in said["too_many"][1]
    assert "node 2 serves in the plan, and is rank 2 of the job" in said["a_rank_serves"][1]
    assert "are refused on all ranks: for allreduce of 262144 bytes: wrong: " in said["wrong"][1]
    assert "the job has servers, which take part in allreduces alone" in said["collectives"][1]
