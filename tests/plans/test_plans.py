"""Plans of one's own: the forms, the command, and generators that ranks register: in agreement, or with a sentence."""

from __future__ import annotations

import os
import re
import runpy
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ringcore
from ringcore import plans
from ringcore.network import Host, Link, Topology
from support import ranks
from support.rank import caught

EXAMPLES = Path(__file__).parents[2] / "examples" / "plans"


def request(size: int = 2, collective: str = "allreduce", nbytes: int = 1 << 20) -> plans.Request:
    return plans.Request(collective, nbytes, tuple(range(size)))


def star(asked: plans.Request) -> plans.Plan:
    """All give what they have to rank 0, which gives back the sum."""
    builder = plans.Builder("star", asked, 1)
    for peer in range(1, asked.ranks):
        builder[0].recv_reduce(peer, 0, final=peer == asked.ranks - 1)
        builder[peer].send(0, 0)
        builder[peer].recv(0, 0)
    for peer in range(1, asked.ranks):
        builder[0].send(peer, 0)
    return builder.plan()


def served(asked: plans.Request, serving: int) -> plans.Plan:
    """Those who serve have a chunk each: they add what all give, and give it back."""
    builder = plans.Builder(
        "served", asked, serving, scratch_chunks=asked.ranks, accumulates_once=True, serving=serving
    )
    ranks = range(asked.ranks)
    for chunk in range(serving):
        server = asked.ranks + chunk
        for rank in ranks:
            builder[rank].send(server, chunk)
            builder[server].recv_scratch(rank, rank, chunk)
        builder[server].reduce([plans.Chunk(rank, "scratch") for rank in ranks], [chunk], final=True)
        for rank in ranks:
            builder[server].send(rank, chunk)
            builder[rank].recv(server, chunk)
    return builder.plan()


# Hosts with links of their own, all to and from the first one quicker than the others.
NAMES = ("a", "b", "c", "d")
QUICK, SLOW = 200e6, 20e6
UNEVEN = Topology(
    tuple(map(Host, NAMES)),
    (),
    tuple(Link(x, y, QUICK if "a" in (x, y) else SLOW, 50e-6) for x in NAMES for y in NAMES if x != y),
)


def command(*words: str | Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ringcore", "plan", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_plan_that_is_built_is_right_and_comes_back_from_both_forms(tmp_path: Path) -> None:
    plan = star(request(4))
    assert plan.check() is None
    for name in ("plan.json", "plan.bin"):
        plan.save(tmp_path / name)
        assert plans.Plan.load(tmp_path / name) == plan
    assert (plan.generator, plan.collective, plan.ranks, plan.chunks, plan.steps) == ("star", "allreduce", 4, 1, 12)
    assert plan.program(1) == [["send chunk 0 to rank 0", "receive chunk 0 from rank 0"]]
    assert plan.predict(1 << 20) > plan.predict(1 << 10) > 0


def test_the_verifier_says_which_step_is_wrong() -> None:
    builder = plans.Builder("star", request(3), 1)
    builder[0].recv_reduce(1, 0, final=True)
    builder[1].send(0, 0)
    plan = builder.plan()
    assert plan.check() == "star: rank 0, channel 0, step 0: an incomplete sum is marked final"
    with pytest.raises(ringcore.InvalidArgument, match="the plan is wrong: star: rank 0"):
        plan.predict(1 << 20)


@pytest.mark.parametrize("serving", [1, 2, 3])
def test_nodes_may_serve_behind_the_ranks(tmp_path: Path, serving: int) -> None:
    plan = served(request(3), serving)
    assert plan.check() is None
    assert (plan.ranks, plan.serving) == (3, serving)
    assert plan.program(3)[0][-1] == "send chunk 0 to rank 2"
    for name in ("plan.json", "plan.bin"):
        plan.save(tmp_path / name)
        assert plans.Plan.load(tmp_path / name) == plan
    assert "the plan is for" in str(plan.check([0, 1, 2]))  # those who serve are somewhere, too
    if serving == 1:  # all that three ranks have comes through one cable, and then all goes back
        assert plan.predict(3 << 20) == pytest.approx(2 * 3 * (3 << 23) / 9.6e9, rel=0.1)


def test_a_plan_is_predicted_for_links_that_differ() -> None:
    plan = star(request(4))  # its middle is rank 0
    nbytes = 25_000_000
    # Up and down again.
    assert plan.predict(nbytes, topology=UNEVEN) == pytest.approx(2 * nbytes * 8 / QUICK, rel=0.01)
    there = plan.predict(nbytes, topology=UNEVEN, host_names=NAMES[::-1])
    assert there == pytest.approx(2 * nbytes * 8 / SLOW, rel=0.01)
    # Two ranks of a host share its links, and memory.
    assert plan.predict(nbytes, topology=UNEVEN, hosts=2) == pytest.approx(2 * 2 * nbytes * 8 / QUICK, rel=0.05)
    # More ranks than hosts: as many on each. Whoever serves has the next host, or the first one again.
    assert star(request(8)).predict(nbytes, topology=UNEVEN) == pytest.approx(2 * 2 * nbytes * 8 / QUICK, rel=0.05)
    served_at_d = served(request(3), 1).predict(nbytes, topology=UNEVEN)
    served_at_a = served(request(4), 1).predict(nbytes, topology=UNEVEN)
    assert served_at_d == pytest.approx(2 * nbytes * 8 / SLOW, rel=0.05)
    assert served_at_a == pytest.approx(2 * nbytes * 8 / QUICK, rel=0.05)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topology": UNEVEN, "hosts": 5}, "the ranks cannot stand on 5 hosts: the topology has 4"),
        ({"topology": UNEVEN, "host_names": ("a", "b")}, "the plan has 4 nodes, and 2 names of hosts were given"),
        ({"topology": UNEVEN, "host_names": ("a", "b", "c", "e")}, "the topology has no host 'e', where ranks [3] are"),
        ({"host_names": NAMES}, "names of hosts were given, and no topology that has them"),
        ({"hosts": 5}, "4 ranks cannot stand on 5 hosts"),
        ({"hosts": 0}, "4 ranks cannot stand on 0 hosts"),
    ],
)
def test_where_no_plan_can_stand_none_is_predicted(options: dict, said: str) -> None:
    with pytest.raises(ringcore.InvalidArgument) as caught:
        star(request(4)).predict(1 << 20, **options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: plans.Builder("a", request(), 0), "without servers (request.servers is empty). Remedy: where"),
        (lambda: plans.Builder("a", replace(request(), server_hosts=(0,)), 0), "at least 1 chunk, not 0"),
        (lambda: plans.Builder("a", request(), -1), "at least 1 chunk, not -1"),
        (lambda: plans.Builder('a"', request(), 1), "is no name of a plan"),
        (lambda: plans.Builder("a", request(3, "allgather"), 4), "a multiple of its 3 ranks"),
        (
            lambda: plans.Builder("a", request(collective="sum"), 4),
            "there is no collective 'sum'; there are: allreduce,",
        ),
        (lambda: plans.Builder("a", request(), 1)[2], "the plan has no rank 2: it has 0 to 1"),
        (lambda: plans.Builder("a", request(), 1, serving=1)[3], "the plan has no rank 3: it has 0 to 2"),
        (lambda: plans.Builder("a", request(), 1, serving=-1), "no plan has -1 nodes that serve"),
        (lambda: plans.Builder("a", request(), 1)[0].send(1, -1), "rank 0 has no chunk -1"),
        (
            lambda: plans.Plan.parse('{"ringcore_plan": 1, "chunk": 3}'),
            "line 1, column 22: the plan has no 'chunk'; it may",
        ),
        (lambda: plans.Plan.parse(b"\x8fRCP\x01"), "byte 5: the plan ends before the name's length; it was cut off"),
        (lambda: plans.Plan.load("/nowhere/plan.json"), "/nowhere/plan.json cannot be read: No such file"),
    ],
)
def test_what_is_no_plan_is_refused_with_a_sentence(wrong, said: str) -> None:
    with pytest.raises(ringcore.InvalidArgument) as caught:
        wrong()
    assert said in str(caught.value)


def test_the_command_shows_checks_predicts_and_runs_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "star.json"
    star(request(3)).save(path)
    assert "star: allreduce among 3 ranks" in command("show", path)
    assert "0  send chunk 0 to rank 0" in command("show", path, "--rank", "1", "--save", tmp_path / "star.bin")
    assert plans.Plan.load(tmp_path / "star.bin") == plans.Plan.load(path)
    assert "right: 8 steps of 3 ranks carry out allreduce" in command("check", path)
    assert "star (this plan)" in command("predict", path, "--bytes", "1M", "--network", "1gbit,50us")
    assert "right in each of 2 runs" in command("run", path, "--bytes", "1M", "--repeat", "2")
    path.write_text(path.read_text().replace('"final": true', '"final": false'))
    assert "wrong: star: rank 0" in command("check", path, code=1)
    assert "wrong: star: rank 0" in command("run", path, code=1)
    path.write_text("[]")
    assert f"ringcore plan: {path}: line 1, column 1: the plan is an object" in command("show", path, code=2)


def test_the_command_takes_plans_with_nodes_that_serve(tmp_path: Path) -> None:
    path = tmp_path / "served.json"
    served(request(4), 2).save(path)
    shown = command("show", path)
    assert "served: allreduce among 4 ranks and 2 who serve" in shown
    assert "3 " in shown and "5 (serves)" in shown and "3 (serves)" not in shown
    assert "send chunk 1 to rank 0" in command("show", path, "--rank", "5")
    assert "steps of 4 ranks and 2 who serve carry out allreduce" in command("check", path, "--hosts", "2")
    predicted = command("predict", path, "--bytes", "1M")
    assert "among 4 ranks and 2 who serve on 6 hosts" in predicted
    # Beside the engine's own plan for them.
    assert "served (this plan)" in predicted and " servers " in predicted
    assert "right in each of 2 runs" in command("run", path, "--bytes", "1M", "--repeat", "2")
    # What is no allreduce can be written so, and is no job's.
    path.write_text(path.read_text().replace('"allreduce"', '"reduce"'))
    assert "servers take part in allreduces alone, and 2 nodes serve in this plan of reduce" in command(
        "run", path, code=2
    )


def test_the_command_predicts_for_links_that_differ(tmp_path: Path) -> None:
    path, network = tmp_path / "star.json", tmp_path / "network.json"
    star(request(4)).save(path)
    UNEVEN.save(network)
    predicted = command("predict", path, "--bytes", "25M", "--topology-file", network)
    assert f"among 4 ranks on 4 hosts, {network}" in predicted
    # As the engine plans for such links; a ring waits for the slow ones.
    order = re.findall(r"(packed_trees|star \(this plan\)|ring) ", predicted)
    assert order == ["packed_trees", "star (this plan)", "ring"]
    assert "2 s" in predicted
    assert "on 2 hosts" in command("predict", path, "--topology-file", network, "--hosts", "2")
    assert "the topology has 4" in command("predict", path, "--topology-file", network, "--hosts", "5", code=2)
    assert "not allowed with" in command("predict", path, "--topology-file", network, "--network", "1gbit,1us", code=2)


def test_the_command_says_what_goes_through_links_with_a_price(tmp_path: Path) -> None:
    path, network = tmp_path / "star.json", tmp_path / "network.json"
    star(request(4)).save(path)
    UNEVEN.save(network)
    assert "price" not in command("predict", path, "--bytes", "25M", "--topology-file", network)
    names = [host.name for host in UNEVEN.hosts]
    # What leaves the first host has a price: the star's centre sends the sum to three others.
    links = [replace(link, price_per_gb=0.08 if link.start == names[0] else None) for link in UNEVEN.links]
    replace(UNEVEN, links=tuple(links)).save(network)
    predicted = command("predict", path, "--bytes", "25M", "--topology-file", network)
    assert "this plan sends 75 MB through links that have a price, and costs 0.006 each time" in predicted
    backwards = star(request(4)).egress(25_000_000, replace(UNEVEN, links=tuple(links)), host_names=names[::-1])
    assert backwards == (25e6, pytest.approx(0.002))


ROOTED = ("broadcast", "reduce", "gather", "scatter")


def direct(asked: plans.Request) -> plans.Plan:
    """Everybody sends to everybody, the root to all, or all to the root."""
    ranks, collective = range(asked.ranks), asked.collective
    pairs = [(source, target) for source in ranks for target in ranks if source != target]
    builder = plans.Builder("direct", asked, 1 if collective in ("broadcast", "reduce") else asked.ranks)
    for source, target in pairs:
        if collective == "broadcast" and source == asked.root:
            builder[source].send(target, 0)
            builder[target].recv(source, 0)
        elif collective == "reduce" and target == asked.root:
            builder[source].send(target, 0)
            builder[target].recv_reduce(source, 0, final=source == max(ranks))
        elif collective == "gather" and target == asked.root:
            builder[source].send(target, source)
            builder[target].recv(source, source)
        elif collective == "scatter" and source == asked.root:
            builder[source].send(target, target)
            builder[target].recv(source, target)
        elif collective == "allgather":
            builder[source].send(target, source)
        elif collective == "reducescatter":
            builder[source].send(target, target)
        elif collective == "alltoall":
            builder[source].send(target, plans.Chunk(target, "input"))
    for source, target in pairs:
        if collective == "reducescatter":
            last = source == max(rank for rank in ranks if rank != target)
            builder[target].recv_reduce(source, target, final=last)
        elif collective not in ROOTED:
            builder[target].recv(source, source)
    return builder.plan()


@pytest.mark.parametrize(
    "collective", ["allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter", "alltoall"]
)
def test_the_command_runs_each_collective(tmp_path: Path, collective: str) -> None:
    plan = direct(plans.Request(collective, 1 << 20, (0, 1, 2), root=1 if collective in ROOTED else 0))
    assert plan.check() is None
    plan.save(tmp_path / "plan.json")
    assert "right in each of 2 runs" in command("run", tmp_path / "plan.json", "--bytes", "1M", "--repeat", "2")


def registers() -> dict:
    """All that ranks can agree on, or refuse, in one job."""
    import json

    from ringcore import plans
    from test_plans import served, star

    ringcore.init()
    me, size = ringcore.rank(), ringcore.size()
    data = np.arange(1 << 16, dtype=np.float32) * (me + 1)
    right = np.arange(1 << 16, dtype=np.float32) * (size * (size + 1) // 2)
    said = {}

    def tell(call, *args, **options):
        error = caught(call, *args, **options)
        return [error["type"], error["message"]]

    def wrong(request):
        builder = plans.Builder("wrong", request, 1)
        builder[0].send(1, 0)
        return builder.plan()

    def raises(request):
        raise RuntimeError("it is Monday")

    def late(request):
        time.sleep(60)

    def large(request):
        builder = plans.Builder("large", request, 1)
        for channel in range(2):
            for _ in range((1 << 17) + 1):
                builder[0].channel(channel).send(1, 0)
        return builder.plan()

    def other_ranks(request):
        return star(plans.Request(request.collective, request.nbytes, (0,) * (request.ranks + 1)))

    def no_plan(request):
        return "a plan"

    def with_servers(request):
        return served(request, 2)

    def lacks(request):
        return refers(request)

    def refers(request):
        return request.nosuch

    class Called:
        def __call__(self, request):
            return json_of(request)

    def json_of(request):
        return json.loads("{")

    said["no_function"] = tell(plans.register, "star")
    said["called"] = tell(plans.register, Called(), sizes=[1 << 18])
    for generator in (lacks, wrong, raises, late, large, other_ranks, no_plan, with_servers):
        patience_s = 0.2 if generator is late else 60.0
        said[generator.__name__] = tell(plans.register, generator, sizes=[1 << 18], patience_s=patience_s)
        assert (ringcore.allreduce(data, op=ringcore.Sum) == right).all()
    said["differs"] = tell(plans.register, star if me == 0 else wrong)
    handle = ringcore.allreduce_async(data, op=ringcore.Sum, name="first") if me == 0 else None
    said["busy"] = tell(plans.register, star)
    if handle is None:
        handle = ringcore.allreduce_async(data, op=ringcore.Sum, name="first")
    assert (handle.synchronize() == right).all()
    assert plans.report() == []

    (plan,) = plans.register(star, sizes=[1 << 18])
    said["hash"] = plan.hash
    for _ in range(100):
        assert (ringcore.allreduce(data, op=ringcore.Sum) == right).all()
    found = plans.report()
    said["tried"] = [
        (one.generator, one.collective, one.nbytes, (one.measured_s or 0) > 0, one.chosen) for one in found
    ]
    ringcore.shutdown()
    return said


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_register_generators_in_agreement_or_get_one_sentence(tmp_path: Path, transport: str) -> None:
    environ = {
        "RINGCORE_TRANSPORT": transport,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(ranks.TESTS)]),
    }
    every = ranks.run(registers, 3, tmp_path, env=environ)
    said = every[0]
    for other in every[1:]:
        assert other == said
    refused = "are refused on all ranks: "
    assert refused + "for allreduce of 262144 bytes: wrong: " in said["wrong"][1]
    assert refused + "for allreduce of 262144 bytes it raised RuntimeError: it is Monday" in said["raises"][1]
    for name, text in (
        ("lacks", "return request.nosuch"),
        ("called", 'return json.loads("{")'),
        ("no_plan", "def no_plan"),
    ):
        place = re.search(r"\((/\S+), line (\d+)\)\. Remedy: ", said[name][1])
        assert place, said[name][1]
        assert text in Path(place[1]).read_text().splitlines()[int(place[2]) - 1]
    assert "Remedy: mend it there" in said["lacks"][1]
    assert "it raised JSONDecodeError: " in said["called"][1]
    assert "plan check" not in said["lacks"][1] + said["no_plan"][1] + said["late"][1]
    assert "Remedy: return builder.plan()" in said["no_plan"][1]
    assert said["no_function"][0] == "InvalidArgument"
    assert "'star' is no function, on rank 0. Remedy: pass a function" in said["no_function"][1]
    assert refused + "it was late: after 0.2 s it had made 0 plans of 1" in said["late"][1]
    assert "its plan is too large: it has 262146 steps, and 262144 can be verified" in said["large"][1]
    assert "the plan is of allreduce among 4 ranks, and allreduce among 3 was asked for" in said["other_ranks"][1]
    assert "it returned str, and not a Plan or None (" in said["no_plan"][1]
    assert "the nodes that serve in the plan need --servers 2, and the job has none" in said["with_servers"][1]
    assert "Remedy: save the plan to a file; `ringcore plan check`" in said["wrong"][1]
    assert said["differs"][0] == "MismatchError"
    assert "rank 0: star; rank 1: wrong; rank 2: wrong" in said["differs"][1]
    assert "allreduce 'first' is under way on rank 0; wait for its handle before" in said["busy"][1]
    assert [one[:4] for one in said["tried"]] == [["star", "allreduce", 1 << 18, True]]


def requests_of_a_generator() -> list:
    from ringcore import plans

    asked = []

    def generator(request):
        names = [host.name for host in request.topology.hosts] if request.topology else None
        asked.append([names, list(request.host_names)])

    ringcore.init()
    plans.register(generator, sizes=[1 << 18])
    ringcore.shutdown()
    return asked


@pytest.mark.parametrize("is_told", [True, False])
def test_a_generator_is_told_what_the_job_was_told_of_its_hosts(tmp_path: Path, is_told: bool) -> None:
    here = socket.gethostname()
    ends = (here, "elsewhere"), ("elsewhere", here)
    Topology((Host("elsewhere"), Host(here)), (), tuple(Link(*each, QUICK, 50e-6) for each in ends)).save(
        tmp_path / "network.json"
    )
    environ = {"RINGCORE_TOPOLOGY_FILE": str(tmp_path / "network.json")} if is_told else {}
    first, *others = ranks.run(requests_of_a_generator, 3, tmp_path, env=environ)
    assert first == ([[["elsewhere", here], [here] * 3]] if is_told else [[None, []]])
    assert others == [[], []]  # rank 0 alone calls it


def one_rank_alone() -> list:
    from ringcore import plans
    from test_plans import star

    ringcore.init()
    if ringcore.rank() == 0:
        error = caught(plans.register, star)
    else:
        error = caught(ringcore.allreduce, np.ones(10, np.float32), name="training")
    return [error["type"], error["message"]]


def test_a_generator_that_one_rank_registers_alone_ends_all_with_the_same_sentence(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(ranks.TESTS)])}
    first, second = ranks.run(one_rank_alone, 2, tmp_path, env=environ)
    assert first == second
    assert first[0] == "DeadlockError"
    assert "plans.register" in first[1]


@pytest.mark.parametrize("example", ["two_level", "packed", "served"])
def test_the_examples_are_right_and_run(example: str) -> None:
    module = runpy.run_path(str(EXAMPLES / f"{example}.py"))
    if example == "packed":
        told = plans.Request("allreduce", 4 << 20, (0, 1, 2, 3), topology=module["STAR"], host_names=module["HOSTS"])
        plan = module["packed"](told)
        assert plan.check() is None
        # The links of the star have room for 240 Mbit/s; the first and the last chunks leave some of it.
        assert (4 << 23) / plan.predict(4 << 20, topology=module["STAR"]) >= 0.8 * 240e6
        switched = replace(module["STAR"], switches=("switch",))
        for unknown in (request(4), replace(told, topology=switched), replace(told, host_names=("a", "a", "b", "c"))):
            assert module["packed"](unknown) is None
    elif example == "served":
        for ranks_and_servers in [(2, 1), (4, 2), (3, 5)]:
            served_by, servers = map(range, ranks_and_servers)
            asked = plans.Request("allreduce", 4 << 20, tuple(served_by), server_hosts=tuple(servers))
            plan = module["served"](asked)
            assert plan.check() is None
            assert (plan.ranks, plan.serving) == ranks_and_servers
        assert module["served"](request(4)) is None
    else:
        for host_of in [(0, 1), (0, 0, 1, 1), (0, 0, 0, 1, 2), tuple(range(7)), (0, 0, 0)]:
            plan = module["two_level"](plans.Request("allreduce", 4 << 20, host_of))
            assert plan.check() is None, host_of
    options = ["--servers", "2"] if example == "served" else []
    ran = subprocess.run(
        [sys.executable, "-m", "ringcore", "run", "-np", "4", *options, str(EXAMPLES / f"{example}.py")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = {
        "two_level": "two_level: predicted",
        "packed": "packed trees would sum at 199 Mbit/s on a star",
        "served": "served: predicted",
    }
    assert said[example] in ran.stdout
    assert example != "packed" or "1 plan used" in ran.stdout


def test_an_installed_generator_is_registered_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "installed"
    (folder / "my_plans-1.dist-info").mkdir(parents=True)
    (folder / "my_plans-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plans\nVersion: 1\n")
    (folder / "my_plans-1.dist-info" / "entry_points.txt").write_text("[ringcore.plans]\nmine = test_plans:star\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, ringcore as ring\n"
        "ring.init()\n"
        "for _ in range(20):\n    ring.allreduce(np.ones(1 << 20, np.float32))\n"
        "assert {found.generator for found in ring.plans.report()} == {'star'}\n"
    )
    path = os.pathsep.join([str(folder), str(Path(__file__).parent), str(ranks.TESTS)])

    def run(names: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ringcore", "run", "-np", "2", str(script)],
            capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "PYTHONPATH": path, "RINGCORE_PLANS": names},
        )  # fmt: skip

    done = run("mine")
    assert done.returncode == 0, done.stdout + done.stderr
    done = run("yours")
    assert done.returncode != 0
    assert "RINGCORE_PLANS names 'yours', but no installed distribution has an entry point of that name" in done.stderr


def ring_of_two(instances: str = "", wrong: str = "") -> bytes:
    """An allreduce among two GPUs in two halves: each adds to one, and sends it on."""
    gpus = []
    for me in (0, 1):
        steps = [
            ("s", "i", 1 - me, "i", 1 - me),
            ("rrc", "i", me, "i", me),
            ("s", "i", me, "i", me),
            ("r", "o", 1 - me, "o", 1 - me),
        ]
        lines = [
            f'<step s="{number}" type="{wrong or kind}" srcbuf="{src}" srcoff="{at}" dstbuf="{dst}" dstoff="{to}" '
            'cnt="1" depid="-1" deps="-1" hasdep="0"/>'
            for number, (kind, src, at, dst, to) in enumerate(steps)
        ]
        block = f'<tb id="0" send="{1 - me}" recv="{1 - me}" chan="0">{"".join(lines)}</tb>'
        gpus.append(f'<gpu id="{me}" i_chunks="2" o_chunks="2" s_chunks="0">{block}{instances}</gpu>')
    head = '<algo name="two halves" proto="Simple" nchannels="1" ngpus="2" coll="allreduce" inplace="1">'
    return (head + "".join(gpus) + "</algo>").encode()


def test_a_schedule_of_msccl_is_read_and_runs(tmp_path: Path) -> None:
    path = tmp_path / "ring.xml"
    path.write_bytes(ring_of_two())
    plan = plans.Plan.load(path)
    assert (plan.generator, plan.collective, plan.ranks, plan.chunks, plan.steps) == (
        "two halves",
        "allreduce",
        2,
        2,
        8,
    )
    assert plan.check() is None
    assert "right in each of 1 runs" in command("run", path, "--bytes", "1M", "--repeat", "1")


def test_msccl_with_dependences_and_scratch_is_read() -> None:
    # Rank 1 sends twice; rank 0 takes the first into scratch, adds it by a threadblock of its own, and answers.
    xml = """<algo name="scratch" coll="allreduce" inplace="1" ngpus="2" nchannels="1" proto="Simple">
    <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="1">
      <tb id="0" send="-1" recv="1" chan="0"><step s="0" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1"
        depid="-1" deps="-1" hasdep="1"/></tb>
      <tb id="1" send="1" recv="-1" chan="0">
        <step s="0" type="nop" depid="0" deps="0" hasdep="0" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0"/>
        <step s="1" type="re" srcbuf="s" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
        <step s="2" type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/></tb>
    </gpu>
    <gpu id="1" i_chunks="1" o_chunks="1" s_chunks="0">
      <tb id="0" send="0" recv="0" chan="0">
        <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
        <step s="1" type="r" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/></tb>
    </gpu></algo>"""
    plan = plans.Plan.parse(xml)
    assert plan.check() is None
    assert plan.steps == 5


def test_an_alltoall_of_msccl_gives_itself_nothing_by_a_step() -> None:
    gpus = "".join(
        f'<gpu id="{me}" i_chunks="2" o_chunks="2" s_chunks="0"><tb id="0" send="{1 - me}" recv="{1 - me}">'
        f'<step s="0" type="cpy" srcbuf="i" srcoff="{me}" dstbuf="o" dstoff="{me}"/>'
        f'<step s="1" type="s" srcbuf="i" srcoff="{1 - me}"/>'
        f'<step s="2" type="r" dstbuf="o" dstoff="{1 - me}"/></tb></gpu>'
        for me in (0, 1)
    )
    plan = plans.Plan.parse(f'<algo name="all" coll="alltoall" inplace="0" ngpus="2">{gpus}</algo>')
    assert plan.check() is None
    assert plan.steps == 4


@pytest.mark.parametrize(
    ("xml", "said"),
    [
        (b"<algo", "the XML cannot be read"),
        (b"<graph/>", "the XML begins with 'graph'"),
        (b"<!DOCTYPE a [<!ENTITY b 'c'>]><algo/>", "declares a document type"),
        (ring_of_two().replace(b'"allreduce"', b'"custom"'), "the algo's 'coll' is 'custom'"),
        (ring_of_two().replace(b'inplace="1"', b'inplace="0"'), "the algo is not in place"),
        (ring_of_two().replace(b'id="1"', b'id="2"'), "are not numbered from 0 on"),
        (ring_of_two(wrong="put"), "gpu 0, tb 0, step 0: its type is 'put'; those that can be read are s, r,"),
        (ring_of_two(instances='<tb id="1" send="1" recv="-1" chan="1"/>'), "two threadblocks send with gpu 1"),
        (ring_of_two().replace(b'cnt="1"', b'cnt="x"'), "gpu 0, tb 0, step 0: its 'cnt' is 'x'"),
        (ring_of_two().replace(b'depid="-1"', b'depid="7"'), "waits for step 0 of threadblock 7, which is none"),
    ],
)
def test_xml_that_is_no_schedule_is_refused_with_a_sentence(xml: bytes, said: str) -> None:
    with pytest.raises(ringcore.InvalidArgument) as caught:
        plans.Plan.parse(xml)
    assert said in str(caught.value)


def test_what_the_page_shows_is_right(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "plans.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    json, ten_lines = (next(block for language, block in blocks if language == wanted) for wanted in ("json", "python"))
    assert plans.Plan.parse(json).check() is None
    script = tmp_path / "ten_lines.py"
    script.write_text(ten_lines)
    done = subprocess.run(
        [sys.executable, "-m", "ringcore", "run", "-np", "3", str(script)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Outcome(generator='star', collective='allreduce'" in done.stdout
