"""Hosts whose links differ: jobs that are told so plan for it, and jobs find it out."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import ringcore
from ringcore.network import Host as NamedHost
from ringcore.network import Interface, Link, Topology, read, read_file
from ringcore.planning import Plan
from support import ranks
from support.namespaces import Host, environ_with_ssh, move_to_rack, namespaces, place_ranks
from support.rank import caught

QUICK, SLOW = 200e6, 40e6  # bits a second


def star_rate(one: int, other: int) -> float:
    return QUICK if 0 in (one, other) else SLOW


def shape(hosts: Sequence[Host], rate: Callable[[int, int], float]) -> None:
    for i, host in enumerate(hosts):
        host.shape_towards({other.address: f"{rate(i, j):.0f}bit" for j, other in enumerate(hosts) if j != i})


def topology(names: Sequence[str], rate: Callable[[int, int], float]) -> Topology:
    links = [
        Link(one, other, rate(i, j), 50e-6) for i, one in enumerate(names) for j, other in enumerate(names) if i != j
    ]
    return Topology(tuple(map(NamedHost, names)), (), tuple(links))


@pytest.fixture(scope="module")
def star() -> Iterator[list[Host]]:
    with namespaces(4) as hosts:
        shape(hosts, star_rate)
        yield hosts


def reduces(timeline: str) -> dict:
    error = caught(ringcore.init)
    if error["type"] is not None:
        return error
    rank, size = ringcore.rank(), ringcore.size()
    ringcore.start_timeline(timeline)
    right = []
    for _ in range(4):
        tensor = np.arange(1 << 20, dtype=np.float32) % 100 + rank
        ringcore.allreduce_(tensor, op=ringcore.Sum, name="sum")
        right.append(bool((tensor == (np.arange(1 << 20) % 100) * size + size * (size - 1) // 2).all()))
    ringcore.stop_timeline()
    return {"type": None, "right": right}


def run(hosts: Sequence[Host], directory: Path, env: Mapping[str, str], each: int = 1) -> list[ranks.Outcome]:
    place = place_ranks(hosts, directory, each)
    place["env"].update(env)
    with ranks.started(reduces, each * len(hosts), directory, str(directory / "timeline.json"), **place) as job:
        outcomes = job.wait()
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.stderr
    return outcomes


def plans_of(directory: Path) -> list[str]:
    """What rank 0's operations were carried out with."""
    events = json.loads((directory / "timeline.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X" and (event["cat"], event["pid"]) == ("operation", 0)]
    return [span["name"] for span in spans if span["name"] not in ("negotiate", "queue", "copy")]


def test_a_job_that_is_told_of_its_links_packs_trees_into_them(star: list[Host], tmp_path: Path) -> None:
    topology([host.name for host in star], star_rate).save(tmp_path / "star.json")
    # Only rank 0 has the file.
    outcomes = run(star, tmp_path, {"RINGCORE_TOPOLOGY_FILE": str(tmp_path / "star.json")})
    assert [outcome.result for outcome in outcomes] == [{"type": None, "right": [True] * 4}] * 4
    assert (
        plans_of(tmp_path)[-3:] == ["packed_trees"] * 3
    )  # the model knows that all else would take three times as long


@pytest.mark.long
def test_hosts_of_many_ranks_pack_trees_between_them(star: list[Host], tmp_path: Path) -> None:
    topology([host.name for host in star], star_rate).save(tmp_path / "star.json")
    env = {"RINGCORE_TOPOLOGY_FILE": str(tmp_path / "star.json"), "OMP_NUM_THREADS": "1"}
    outcomes = run(star, tmp_path, env, each=9)
    assert [outcome.result for outcome in outcomes] == [{"type": None, "right": [True] * 4}] * 36
    assert plans_of(tmp_path)[-1] == "packed_trees"


def reduces_by_the_example(example: str) -> list:
    """With the plan of a generator that packs trees into the links that the job was told of."""
    import runpy

    from ringcore import plans

    ringcore.init()
    rank, size = ringcore.rank(), ringcore.size()
    made = plans.register(runpy.run_path(example)["packed"], sizes=[4 << 20], always=True)
    total = ringcore.allreduce(np.full(1 << 20, rank + 1, np.float32), op=ringcore.Sum, name="sum")
    assert (total == size * (size + 1) // 2).all()
    (outcome,) = plans.report()
    assert outcome.chosen
    return [outcome.predicted_s, made[0].to_json()]


def test_a_generator_packs_trees_into_the_links_that_the_job_was_told_of(star: list[Host], tmp_path: Path) -> None:
    told = topology([host.name for host in star], star_rate)
    told.save(tmp_path / "star.json")
    place = place_ranks(star, tmp_path)
    place["env"]["RINGCORE_TOPOLOGY_FILE"] = str(tmp_path / "star.json")
    example = Path(__file__).parents[2] / "examples" / "plans" / "packed.py"
    with ranks.started(reduces_by_the_example, 4, tmp_path, str(example), **place) as job:
        outcomes = job.wait()
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.result == outcomes[0].result
    predicted_s, text = outcomes[0].result
    # The engine's planner and the plan itself say the same, of some 200 Mbit/s.
    assert predicted_s == pytest.approx(Plan.parse(text).predict(4 << 20, topology=told))
    assert predicted_s < (4 << 23) / 180e6


def reduces_until_told(timeline: str) -> str:
    """Steps of a training until rank 0 has logged something: that."""
    import logging

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("ringcore").addHandler(handler)
    ringcore.init()
    ringcore.start_timeline(timeline)
    for _ in range(40):
        for _ in range(20):
            ringcore.allreduce_(np.full(100_000, ringcore.rank(), np.float32), name="gradients")
        if ringcore.broadcast_object(bool(said)):
            break
    ringcore.stop_timeline()
    return "".join(said)


@pytest.mark.long  # it measures: of a machine that does other things it tells those
def test_a_host_that_is_slow_is_named_in_the_log_and_in_the_timeline(tmp_path: Path) -> None:
    with namespaces(4, sshd=False) as hosts:
        for number, host in enumerate(hosts):
            host.shape("25mbit" if number == 2 else "200mbit", "16kb", "50ms")
        place = place_ranks(hosts, tmp_path)
        with ranks.started(reduces_until_told, 4, tmp_path, str(tmp_path / "timeline.json"), **place) as job:
            said, *others = [outcome.result for outcome in job.wait()]
    assert said.count("the host of rank 2 sends") == 1 and "Remedy" in said, said
    assert others == ["", "", ""]
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert any(event.get("name", "").startswith("the host of rank 2 sends") for event in events)


@pytest.mark.long  # as that
def test_a_link_that_carries_less_than_was_told_is_named_in_the_log_and_in_the_timeline(tmp_path: Path) -> None:
    with namespaces(4, sshd=False) as hosts:
        for number, host in enumerate(hosts):
            host.shape("25mbit" if number == 2 else "200mbit", "16kb", "50ms")
        topology([host.name for host in hosts], lambda start, end: 200e6).save(tmp_path / "alike.json")
        place = place_ranks(hosts, tmp_path)
        place["env"]["RINGCORE_TOPOLOGY_FILE"] = str(tmp_path / "alike.json")
        with ranks.started(reduces_until_told, 4, tmp_path, str(tmp_path / "timeline.json"), **place) as job:
            said, *others = [outcome.result for outcome in job.wait()]
    assert said.count("the network carries less than half of what the topology file says") == 1, said
    # What comes to that host is slow as well: it is acknowledged late.
    slow = re.findall(r"from rank (\d) to rank (\d) \d+ MB/s instead of 25", said)
    assert slow and all("2" in pair for pair in slow) and "Remedy" in said, said
    assert others == ["", "", ""]
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert any(event.get("name", "").startswith("the network carries less than half") for event in events)


def test_a_topology_that_is_wrong_is_refused_on_all_ranks(star: list[Host], tmp_path: Path) -> None:
    names = [host.name for host in star[:3]]
    topology(names, star_rate).save(tmp_path / "three.json")
    for outcome in run(star, tmp_path, {"RINGCORE_TOPOLOGY_FILE": str(tmp_path / "three.json")}):
        assert outcome.result["type"] == "InvalidArgument"
        assert "the topology has no host 'host3', where ranks [3] are" in outcome.result["message"]


def measures() -> str:
    ringcore.init()
    return ringcore.topology(seconds=0.1).to_json()


def measured(hosts: Sequence[Host], directory: Path, each: int = 1) -> Topology:
    with ranks.started(measures, each * len(hosts), directory, **place_ranks(hosts, directory, each)) as job:
        outcomes = job.wait()
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.result == outcomes[0].result
    return read(outcomes[0].result)


def near(rate: float, shaped: float) -> bool:
    """What is shaped is frames, of which 1448 bytes of 1514 are data; after a pause a burst passes at once."""
    return 0.7 * shaped < rate < 1.25 * shaped


def test_the_command_measures_links_and_a_job_plans_for_them(star: list[Host], tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    command = [sys.executable, "-m", "ringcore", "topology", "-H", ",".join(host.name for host in star)]
    command += ["--save", str(path), "--picture", str(tmp_path / "star.svg"), "--seconds", "0.1"]
    done = star[0].run(command, env=environ_with_ssh(star[0]), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 hosts, each with a link of its own to each other" in done.stdout
    found = read_file(path)
    assert [host.name for host in found.hosts] == [host.name for host in star]
    # A veth says that it carries 10 Gbit/s; these were measured to carry less.
    assert [host.interfaces for host in found.hosts] == [(Interface("eth0", host.address, 10e9),) for host in star]
    assert [host.ranks for host in found.hosts] == [((number,),) for number in range(4)]
    assert "host3: less than half of what eth0 (10gbit) carries; look at its cable" in " ".join(done.stdout.split())
    for link in found.links:
        assert near(link.bits_per_s, star_rate(int(link.start[-1]), int(link.end[-1]))), done.stdout
        assert 0 < link.latency_s < 0.01, done.stdout
    drawn = (tmp_path / "star.svg").read_text()
    assert "<svg" in drawn and "eth0 (10gbit)" in drawn and "rank 3" in drawn
    outcomes = run(star, tmp_path / "job", {"RINGCORE_TOPOLOGY_FILE": str(path)})
    assert [outcome.result for outcome in outcomes] == [{"type": None, "right": [True] * 4}] * 4
    assert plans_of(tmp_path / "job")[-3:] == ["packed_trees"] * 3


@pytest.mark.long  # as above
def test_racks_and_the_ports_of_their_hosts_are_found(tmp_path: Path) -> None:
    with namespaces(4, sshd=False, rate="160mbit") as hosts:
        move_to_rack(hosts[2:], "60mbit")
        found = measured(hosts, tmp_path, each=2)
    rates = {(link.start, link.end): link.bits_per_s for link in found.links}
    assert [host.ranks for host in found.hosts] == [((0, 1),), ((2, 3),), ((4, 5),), ((6, 7),)]
    assert found.switches == ("rack0", "rack1"), rates
    for host, switch in zip(hosts, ("rack0", "rack0", "rack1", "rack1"), strict=True):
        assert near(rates[host.name, switch], 160e6), rates
    assert near(rates["rack0", "rack1"], 60e6) and near(rates["rack1", "rack0"], 60e6), rates


def test_ranks_of_one_host_have_no_network_to_measure(tmp_path: Path) -> None:
    found = [read(text) for text in ranks.run(measures, 2, tmp_path)]
    assert [(len(each.hosts), each.links) for each in found] == [(1, ())] * 2
    assert [each.hosts[0].ranks for each in found] == [((0, 1),)] * 2


def test_ranks_of_one_host_that_share_no_memory_are_told_apart(tmp_path: Path) -> None:
    environment = {"RINGCORE_TRANSPORT": "tcp"}
    found = [read(text) for text in ranks.run(measures, 2, tmp_path, env=environment)]
    assert [each.hosts[0].ranks for each in found] == [((0,), (1,))] * 2
