"""What lies between hosts: how it is read and written, and what it means for the hosts of a job."""

import io
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ringcore import InvalidArgument
from ringcore.bootstrap.told_network import announce_network, network_between, told_topology
from ringcore.commands.cli import main
from ringcore.environment.settings import Settings
from ringcore.network import Host, Interface, Link, Topology, read
from ringcore.network.cables import Place, network_of
from ringcore.network.findings import Findings, derive, doubtful_pairs, rounds_of_pairs, unclear_ports
from ringcore.network.picture import describe, print_tables
from ringcore.network.prices import egress_of
from ringcore.network.units import parse_rate, parse_seconds, rate_text, seconds_text

STAR = """{"ringcore_topology": 1,
 "hosts": ["a", "b", {"name": "c", "send": "50mbit", "comment": "an old card"}],
 "links": [
  {"between": ["a", "b"], "rate": "200mbit", "latency": "50us"},
  {"between": ["a", "c"], "rate": "200mbit"},
  {"from": "b", "to": "c", "rate": "40mbit", "latency": "1ms"},
  {"from": "c", "to": "b", "rate": "20mbit", "latency": "1ms"}]}
"""


def places(*names: str) -> list[Place]:
    return [Place(name, (f"10.0.0.{number}",), (number,)) for number, name in enumerate(names)]


def test_a_topology_comes_back_from_its_text() -> None:
    topology = read(STAR)
    assert topology.hosts[2] == Host("c", 50e6)
    assert Link("a", "c", 200e6, 25e-6) in topology.links and Link("c", "b", 20e6, 1e-3) in topology.links
    assert len(topology.links) == 6
    again = read(topology.to_json())
    assert (again.hosts, again.switches, set(again.links)) == (topology.hosts, topology.switches, set(topology.links))
    for bits in (1.0, 999.0, 1e3, 2.5e6, 198.7e6, 1e9, 400e9):
        assert parse_rate(rate_text(bits)) == pytest.approx(bits)
    for seconds in (1e-9, 3e-7, 2.5e-5, 1e-3, 1.0, 0.0):
        assert parse_seconds(seconds_text(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('"rate": "40mbit"', '"rate": "40 parsecs"', "t.json, line 6: 'rate' is '40 parsecs', but accepted is a rate"),
        ('"rate": "40mbit"', '"rate": 40', "line 6: 'rate' is 40, but accepted is a rate like"),
        ('"rate": "40mbit"', '"rate": "0mbit"', "line 6: 'rate' is '0mbit', which no network has. Remedy: look at"),
        ('"rate": "40mbit", ', "", "line 6: 'rate' is missing. Remedy: add it; needed are from, rate, to"),
        ('"from": "b"', '"from": "d"', "line 6: no host and no switch is called 'd'. Remedy: name it, or one of"),
        ('"from": "b"', '"from": "c"', "line 6: the link leads from 'c' to itself"),
        ('"from": "b", "to": "c"', '"from": "a", "to": "b"', "line 6: there are two links from 'a' to 'b'"),
        ('"from": "b"', '"source": "b"', "line 6: nothing here is called 'source'. Remedy: there are: comment, from"),
        (
            '"comment": "an old card"',
            '"ranks": [0]',
            "line 2: 0 is no group of ranks that share memory. Remedy: write a",
        ),
        ('"comment": "an old card"', '"ranks": [[]]', "line 2: [] is no group of ranks that share memory"),
        ('"comment": "an old card"', '"ranks": [[true]]', "line 2: [True] is no group of ranks that share memory"),
        ('"comment": "an old card"', '"ranks": [[0, 1], [1]]', "line 2: rank 1 is named twice. Remedy: name each rank"),
        ('"latency": "1ms"},', '"latency": "1h"},', "line 6: 'latency' is '1h', but accepted is a time like"),
        (
            '"rate": "40mbit"',
            '"rate": "40mbit", "price": "2 cents"',
            "is '2 cents', but accepted is a price like 0.02",
        ),
        ('"rate": "40mbit"', '"rate": "40mbit", "price": 0.02', "line 6: 'price' is 0.02, but accepted is a price"),
        ('"latency": "1ms"},', '"latency": "61s"},', "line 6: 'latency' is '61s', which no network has"),
        ('["a", "b"], "rate"', '["a"], "rate"', "line 4: it is between ['a']. Remedy: write two names"),
        ('"a", "b", {', '"a", 7, {', "line 2: 7 is no name"),
        ('"a", "b", {', '"a", "a", {', "line 2: 'a' names two hosts or switches"),
        (
            '"a", "b", {',
            '"a", {"name": "b", "interfaces": ["eth0"]}, {',
            "line 2: 'eth0' is no interface. Remedy: write",
        ),
        (
            '"a", "b", {',
            '"a", {"name": "b", "interfaces": [{"name": "eth0"}]}, {',
            "line 2: 'address' is missing. Remedy: add it; needed are address, name",
        ),
        ('"ringcore_topology": 1', '"ringcore_topology": 2', "line 1: its version is 2. Remedy: write 1, or a newer"),
        ('"hosts": [', '"hosts": {', "line 2: ':' is expected"),
        ('"20mbit", "latency": "1ms"}]}', '"20mbit", "latency": "1ms"}', "line 8: ',' or ']' is expected"),
        ('"rate": "40mbit"', '"rate": "40mbit", "rate": "1mbit"', "line 6: 'rate' is there twice"),
        ('\n  {"from": "b", "to": "c", "rate": "40mbit", "latency": "1ms"},', "", None),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_what_to_do(before: str, after: str, told: str | None) -> None:
    assert before in STAR
    with pytest.raises(InvalidArgument) as raised:
        read(STAR.replace(before, after), "t.json")
    message = str(raised.value)
    assert (told or "line 2: no links lead from 'b' to 'c', directly or through switches") in message
    assert "Remedy: " in message


def test_links_may_have_a_price_which_is_kept_and_shown() -> None:
    text = STAR.replace('"rate": "40mbit"', '"rate": "40mbit", "price": "0.02/GB"')
    topology = read(text)
    assert [link.price_per_gb for link in topology.links if (link.start, link.end) == ("b", "c")] == [0.02]
    assert sum(link.price_per_gb is not None for link in topology.links) == 1
    assert set(read(topology.to_json()).links) == set(topology.links)
    assert describe(topology).endswith("; what goes through these costs: b to c 0.02/GB")
    assert "costs" not in describe(read(STAR))


def test_what_goes_through_several_links_with_a_price_costs_all_of_them() -> None:
    links = [
        Link("a", "s", 1e9, 0.0), Link("s", "a", 1e9, 0.0), Link("b", "t", 1e9, 0.0), Link("t", "b", 1e9, 0.0),
        Link("c", "t", 1e9, 0.0), Link("t", "c", 1e9, 0.0),
        Link("s", "middle", 1e9, 0.0, 0.09), Link("middle", "t", 1e9, 0.0, 0.01),
        Link("t", "middle", 1e9, 0.0, 0.05), Link("middle", "s", 1e9, 0.0),
    ]  # fmt: skip
    topology = Topology((Host("a"), Host("b"), Host("c")), ("s", "t", "middle"), tuple(links))
    assert egress_of(topology, [("a", "b", 1e9)]) == (1e9, pytest.approx(0.1))
    assert egress_of(topology, [("b", "a", 2e9), ("c", "b", 7e9)]) == (2e9, pytest.approx(0.1))
    assert egress_of(topology, [("a", "a", 1e9)]) == (0, 0)


def test_the_cables_of_a_job_are_those_between_its_hosts() -> None:
    latency_s, bytes_per_s, cables = network_of(read(STAR), places("b", "c", "a"))
    assert (latency_s, bytes_per_s) == (50e-6, 200e6 / 8)
    assert (2, 0, 50e-6, 25e6) in cables and (0, 2, 50e-6, 25e6) in cables
    assert (0, 1, 1e-3, 5e6) in cables
    # What host c sends goes through its port, the place behind the hosts.
    assert (1, 3, 0.0, 50e6 / 8) in cables and (3, 0, 1e-3, 2.5e6) in cables
    assert not [cable for cable in cables if cable[:2] == (1, 0)]
    # A host that has no ranks takes no part, and may be named by an address.
    *_, two = network_of(read(STAR.replace('"a"', '"10.0.0.7"')), [Place("x", ("10.0.0.7",), (0,)), *places("b")])
    assert sorted(two) == [(0, 1, 50e-6, 25e6), (1, 0, 50e-6, 25e6)]


def test_ranks_of_a_host_that_share_no_memory_share_its_links() -> None:
    *_, cables = network_of(read(STAR), places("a", "a", "b"))
    ways = {(start, end) for start, end, *_ in cables}
    out, into = 3, 4
    assert {(0, out), (1, out), (into, 0), (into, 1), (out, 2), (2, into)} <= ways
    assert [cable for cable in cables if cable[3] == 25e6] == [(out, 2, 50e-6, 25e6), (2, into, 50e-6, 25e6)]


def test_hosts_that_a_switch_joins_alike_are_an_even_network() -> None:
    links = ", ".join(f'{{"between": ["{name}", "s"], "rate": "1gbit", "latency": "5us"}}' for name in "abc")
    text = f'{{"ringcore_topology": 1, "hosts": ["a", "b", "c"], "switches": ["s"], "links": [{links}]}}'
    assert network_of(read(text), places("c", "a")) == (1e-5, 1.25e8, [])
    slower = text.replace("1gbit", "100mbit", 1)
    assert len(network_of(read(slower), places("c", "a"))[2]) == 4


def test_what_joins_only_other_hosts_does_not_matter() -> None:
    ends = {"a": "s", "b": "s", "c": "t", "d": "t", "s": "t"}
    links = ", ".join(
        f'{{"between": ["{start}", "{end}"], "rate": "{"100mbit" if start == "s" else "1gbit"}", "latency": "5us"}}'
        for start, end in ends.items()
    )
    hosts = '["a", "b", {"name": "c", "send": "10mbit"}, "d"]'
    text = f'{{"ringcore_topology": 1, "hosts": {hosts}, "switches": ["s", "t"], "links": [{links}]}}'
    assert network_of(read(text), places("a", "b")) == (1e-5, 1.25e8, [])
    assert len(network_of(read(text), places("a", "d"))[2]) == 2 * 3


def test_a_host_that_the_topology_lacks_is_named() -> None:
    with pytest.raises(
        InvalidArgument, match=r"has no host 'd', where ranks \[1\] are; .* Remedy: add it .*10\.0\.0\.1"
    ):
        network_of(read(STAR), places("a", "d"))


def contacts(told: dict) -> list[dict]:
    return [
        {"host": name, "addresses": [f"eth0 10.0.0.{i}/24"]} | (told if i == 0 else {}) for i, name in enumerate("abc")
    ]


def test_rank_0_tells_what_its_file_says_and_the_others_plan_for_the_same(tmp_path: Path) -> None:
    path = tmp_path / "star.json"
    path.write_text(STAR)
    settings = Settings(topology_file=str(path))
    assert announce_network(1, settings) == {} == announce_network(0, Settings())
    told = contacts(announce_network(0, settings))
    topology = told_topology(told)
    assert topology is not None
    between = network_between(topology, told, [0, 1, 1])
    assert between.network == network_of(topology, places("a", "b"))
    assert (between.topology, between.host_names) == (topology, ("a", "b", "b"))
    assert told_topology(contacts({})) is None


@pytest.mark.parametrize(
    ("text", "elastic", "told"),
    [
        ("{", False, "star.json, line 1: a key in quotes is expected"),
        (None, False, "star.json cannot be read: .*No such file.* Remedy: name a file that is on the host of rank 0"),
        (STAR, True, "in an elastic job, whose hosts come and go. Remedy: leave it out"),
    ],
)
def test_a_file_that_is_of_no_use_is_refused_on_all_ranks(
    tmp_path: Path, text: str | None, elastic: bool, told: str
) -> None:
    path = tmp_path / "star.json"
    if text is not None:
        path.write_text(text)
    wrong = contacts(announce_network(0, Settings(topology_file=str(path), elastic=elastic)))
    with pytest.raises(InvalidArgument, match=told):
        told_topology(wrong)


def test_a_topology_that_was_damaged_on_its_way_is_refused() -> None:
    for damaged in ("x", "eA==", ""):
        with pytest.raises(InvalidArgument, match="rank 0"):
            told_topology(contacts({"topology": damaged}))


def shares(topology: Topology, pairs: list[tuple[int, int]]) -> list[float]:
    """What flows get that share links fairly: all grow alike until something is full."""
    names = [host.name for host in topology.hosts]
    room: dict[object, float] = {(link.start, link.end): link.bits_per_s for link in topology.links}
    ports: dict[object, float | None] = {}
    for host in topology.hosts:
        ports[host.name, "out"], ports[host.name, "in"] = host.send_bits_per_s, host.receive_bits_per_s
    room.update({port: rate for port, rate in ports.items() if rate is not None})
    ways: list[set[object]] = []
    for i, j in pairs:
        ways.append(
            {
                part
                for part in (*_way(topology, names[i], names[j]), (names[i], "out"), (names[j], "in"))
                if part in room
            }
        )
    rates, growing = [0.0] * len(pairs), set(range(len(pairs)))
    while growing:
        users = {part: sum(part in ways[flow] for flow in growing) for part in room}
        step = min(room[part] / count for part, count in users.items() if count)
        for part, count in users.items():
            room[part] -= count * step
        for flow in growing:
            rates[flow] += step
        growing = {flow for flow in growing if all(room[part] > 1 for part in ways[flow])}
    return rates


def _way(topology: Topology, start: str, end: str) -> list[tuple[str, str]]:
    left: list[list[str]] = [[start]]
    while True:
        way = left.pop(0)
        if way[-1] == end:
            return list(itertools.pairwise(way))
        after = [link.end for link in topology.links if link.start == way[-1]]
        left += [[*way, name] for name in after if name == end or name in topology.switches]


def measured(topology: Topology, noise: float = 0.0) -> Findings:
    """What the probe would find there."""
    draw = random.Random(7)
    count = len(topology.hosts)

    def rates(pairs: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
        return {
            pair: rate * (1 - noise * draw.random()) for pair, rate in zip(pairs, shares(topology, pairs), strict=True)
        }

    def matrix(by_pair: dict[tuple[int, int], float]) -> list[list[float]]:
        return [[by_pair.get((i, j), 0.0) for j in range(count)] for i in range(count)]

    busy = {pair: rate for pairs in rounds_of_pairs(count) for pair, rate in rates(pairs).items()}
    fans = [rates([(i, j) for j in range(count) if j != i]) for i in range(count)]
    gathers = [rates([(j, i) for j in range(count) if j != i]) for i in range(count)]
    latency = matrix({(i, j): 40e-6 for i in range(count) for j in range(count) if i != j})
    names = tuple(host.name for host in topology.hosts)
    away, here = ([sum(found.values()) for found in each] for each in (fans, gathers))
    found = Findings(names, away, here, matrix(busy), matrix(busy), latency, latency)
    for pair in doubtful_pairs(found):
        found.alone[pair[0]][pair[1]] = max(rates([pair])[pair], busy[pair])
    return found


def test_ports_that_fit_neither_one_link_nor_several_are_unclear() -> None:
    own, switch = (measured(each) for each in (meshed(4, 1e8), racks([4], 1e8, 1e8)))
    for found in (own, switch):
        assert unclear_ports(found) == ([], [])
        found.send[1] *= 0.8
        found.receive[2] *= 1.2
        assert unclear_ports(found) == ([1], [2])


def meshed(count: int, rate: float) -> Topology:
    names = [f"h{number}" for number in range(count)]
    links = tuple(Link(start, end, rate, 50e-6) for start, end in itertools.permutations(names, 2))
    return Topology(tuple(map(Host, names)), (), links)


def racks(sizes: list[int], port: float, between: float) -> Topology:
    hosts, links, switches = [], [], [f"s{number}" for number in range(len(sizes))]
    for number, size in enumerate(sizes):
        for host in range(size):
            hosts.append(Host(f"h{number}{host}"))
            ends = (hosts[-1].name, switches[number])
            links += [Link(*ends, port, 20e-6), Link(*reversed(ends), port, 20e-6)]
    if len(sizes) == 2:
        links += [Link("s0", "s1", between, 0), Link("s1", "s0", between, 0)]
        return Topology(tuple(hosts), tuple(switches), tuple(links))
    for switch in switches:
        links += [Link(switch, "core", between, 0), Link("core", switch, between, 0)]
    return Topology(tuple(hosts), (*switches, "core"), tuple(links))


def own_links(rate: Callable[[int, int], float], count: int) -> Topology:
    names = [f"h{number}" for number in range(count)]
    links = [Link(names[i], names[j], rate(i, j), 20e-6) for i in range(count) for j in range(count) if i != j]
    return Topology(tuple(map(Host, names)), (), tuple(links))


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("hosts", [2, 3, 8, 16])
def test_hosts_at_one_switch_are_found_to_be_alike(hosts: int, noise: float) -> None:
    found = derive(measured(racks([hosts], 1e9, 0), noise))
    assert found.switches == ("switch",)
    _, bytes_per_s, cables = network_of(read(found.to_json()), places(*(host.name for host in found.hosts)))
    assert cables == [] and 0.9e9 < 8 * bytes_per_s <= 1e9


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_host_with_a_slow_port_is_found(noise: float) -> None:
    truth = racks([5], 1e9, 0)
    slow = tuple(replace(link, bits_per_s=250e6) if "h03" in (link.start, link.end) else link for link in truth.links)
    found = derive(measured(replace(truth, links=slow), noise))
    rates = {(link.start, link.end): link.bits_per_s for link in found.links}
    assert found.switches == ("switch",) and len(rates) == 10
    for ends, rate in rates.items():
        expected = 250e6 if "h03" in ends else 1e9
        assert (1 - noise) * expected <= rate * 1.0001 and rate <= 1.0001 * expected


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("sizes", [[3, 3], [2, 4], [4, 4, 4], [8, 8]])
def test_racks_with_a_narrow_link_between_them_are_found(sizes: list[int], noise: float) -> None:
    truth = racks(sizes, 1e9, 250e6)
    found = derive(measured(truth, noise))
    assert len(found.switches) == len(truth.switches)
    switch_of = {link.start: link.end for link in found.links if link.start.startswith("h")}
    groups = {switch: sorted(host for host, at in switch_of.items() if at == switch) for switch in switch_of.values()}
    assert sorted(groups.values()) == [[f"h{n}{host}" for host in range(size)] for n, size in enumerate(sizes)]
    between = [
        link.bits_per_s for link in found.links if not {link.start, link.end} & {host.name for host in found.hosts}
    ]
    assert len(between) == (2 if len(sizes) == 2 else 2 * len(sizes))
    assert all((1 - noise) * 250e6 <= rate * 1.0001 and rate <= 250.1e6 for rate in between), between
    read(found.to_json())


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_links_of_their_own_are_found_with_their_rates(noise: float) -> None:
    def rate(i: int, j: int) -> float:
        return 200e6 if 0 in (i, j) else 40e6

    found = derive(measured(own_links(rate, 4), noise))
    assert found.switches == () and len(found.links) == 12
    for link in found.links:
        expected = rate(int(link.start[1:]), int(link.end[1:]))
        assert (1 - noise) * expected <= link.bits_per_s <= expected
    assert all(host.send_bits_per_s is None and host.receive_bits_per_s is None for host in found.hosts)


def test_links_that_share_a_port_are_told_from_those_that_do_not() -> None:
    def rate(i: int, j: int) -> float:
        return 100e6 if i + j == 1 else 60e6

    truth = own_links(rate, 4)
    truth = replace(truth, hosts=(replace(truth.hosts[0], send_bits_per_s=120e6), *truth.hosts[1:]))
    found = derive(measured(truth))
    assert found.hosts[0].send_bits_per_s == pytest.approx(120e6) and found.hosts[0].receive_bits_per_s is None
    assert [host.send_bits_per_s for host in found.hosts[1:]] == [None] * 3
    assert {(link.start, link.end): link.bits_per_s for link in found.links}["h0", "h1"] == pytest.approx(100e6)


def test_the_interface_that_was_measured_is_shown_and_named_where_it_carries_little() -> None:
    findings = measured(racks([3], 1e9, 0))
    cards = [(Interface("ib0", f"10.0.0.{i}", rate), Interface("eth0", f"10.1.0.{i}")) for i, rate in enumerate(
        [1.5e9, 2.5e9, None]
    )]  # fmt: skip
    findings = replace(findings, interfaces=tuple(cards))
    found = derive(findings)
    assert [host.interfaces for host in found.hosts] == cards
    assert read(found.to_json()) == found
    out = io.StringIO()
    print_tables(found, findings, out)
    text = " ".join(out.getvalue().split())
    assert "ib0 (1.5gbit)" in text and "ib0 (2.5gbit)" in text and "eth0" not in text
    assert text.count("less than half of what") == 1 and "h01: less than half of what ib0 (2.5gbit) carries" in text


def test_ranks_that_share_memory_are_shown_drawn_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # a narrow table would break its cells into lines
    groups = (((0, 1, 2, 3),), ((4, 5), (6, 7)), ((8,),))
    findings = replace(measured(racks([3], 1e9, 0)), ranks=groups)
    found = derive(findings)
    assert tuple(host.ranks for host in found.hosts) == groups
    assert read(found.to_json()) == found
    print_tables(found, findings)
    text = " ".join(capsys.readouterr().out.split())
    for cell in ("ranks 0-3 share memory", "ranks 4-5 share memory; ranks 6-7 share memory", "rank 8"):
        assert cell in text
    assert "memory is shared by ranks 0-3 and by ranks 4-5 and by ranks 6-7" in text
    found.save(tmp_path / "shared.json")
    picture = tmp_path / "shared.svg"
    # Who edits the file sees what it says, and the picture of it.
    text = (tmp_path / "shared.json").read_text()
    (tmp_path / "shared.json").write_text(text.replace("[4, 5], [6, 7]", "[4, 5, 6, 7]"))
    assert main(["topology", "--check", str(tmp_path / "shared.json"), "--picture", str(picture)]) == 0
    assert "memory is shared by ranks 0-3 and by ranks 4-7" in " ".join(capsys.readouterr().out.split())
    drawn = picture.read_text()
    assert "ranks 4-7: shared memory" in drawn and "rank 8" in drawn and "4-5" not in drawn


def test_of_many_groups_of_ranks_that_share_memory_some_are_named() -> None:
    hosts = tuple(Host(f"h{number}", ranks=((2 * number, 2 * number + 1),)) for number in range(10))
    assert describe(Topology(hosts, (), ())).endswith("and by ranks 14-15 and by 2 more groups")


def test_what_was_measured_is_shown_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = racks([3, 3], 1e9, 250e6)
    findings = measured(truth)
    print_tables(derive(findings), findings)
    text = capsys.readouterr().out
    assert "share a port" in text and "250mbit" in text and "83.33mbit" in text
    assert "6 hosts at rack0 (h00, h01, h02, rack1), rack1 (h10, h11, h12, rack0)" in " ".join(text.split())
    truth.save(tmp_path / "racks.json")
    picture = tmp_path / "racks.svg"
    assert main(["topology", "--check", str(tmp_path / "racks.json"), "--picture", str(picture)]) == 0
    assert "<svg" in picture.read_text() and "h12" in picture.read_text()
    assert "8 hosts" not in capsys.readouterr().out
    (tmp_path / "racks.json").write_text("{")
    assert main(["topology", "--check", str(tmp_path / "racks.json")]) == 2
    assert "racks.json, line 1: a key in quotes is expected" in capsys.readouterr().err
    assert main(["topology"]) == 2
    assert "no hosts were named. Remedy: -H node1" in capsys.readouterr().err
