"""Ranks on several hosts: which networks they use, over how many connections, and with which plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import ringcore
from ringcore.bootstrap.sockets import allows_bbr
from support import ranks
from support.namespaces import Host, far_apart, namespaces, place_ranks
from support.rank import caught, reduce_until_lost

ELEMENTS = 1 << 20
NBYTES = 4 * ELEMENTS


def reduces() -> dict:
    """Sums of several sizes, and everything else once; what this rank knows about its place."""
    error = caught(ringcore.init)
    if error["type"] is not None:
        return error
    rank, size = ringcore.rank(), ringcore.size()
    right = []
    for count in (1, 1000, 1 << 20):
        for dtype in (np.float32, np.int64):
            tensor = np.arange(count, dtype=dtype) % 100 + rank
            ringcore.allreduce_(tensor, op=ringcore.Sum, name=f"sum.{count}.{dtype.__name__}")
            expected = (np.arange(count, dtype=dtype) % 100) * size + size * (size - 1) // 2
            right.append(bool((tensor == expected).all()))
    gathered = ringcore.allgather(np.full(rank + 1, rank, np.int32), name="gathered")
    right.append(gathered.tolist() == [r for r in range(size) for _ in range(r + 1)])
    right.append(ringcore.broadcast(np.full(3, rank), 1, name="broadcast").tolist() == [1, 1, 1])
    context = ringcore.job.state.context()
    return {
        "type": None, "right": right, "transports": context.runtime.transports(), "host_of": context.host_of,
        "sockets": sum(map(len, context.peer_fds.values())), "local": [ringcore.local_rank(), ringcore.local_size()],
    }  # fmt: skip


def sums_once() -> dict:
    """The sum of 1 MiB; by how many connections, and what controls congestion. Whoever has it leaves at once."""
    import os
    import socket

    ringcore.init()
    total = ringcore.allreduce(np.full(1 << 18, ringcore.rank() + 1, np.float32), op=ringcore.Sum, name="once")
    descriptors = [fd for fds in ringcore.job.state.context().peer_fds.values() for fd in fds]
    congestion = set()
    for fd in descriptors:
        with socket.socket(fileno=os.dup(fd)) as one:
            congestion.add(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode())
    right = [bool((total == 3).all())]
    return {"type": None, "right": right, "sockets": len(descriptors), "congestion": sorted(congestion)}


def run(
    hosts: Sequence[Host], directory: Path, each: int = 1, env: Mapping[str, str] | None = None,
    own_env: Mapping[int, str] | None = None, program: Callable[[], object] = reduces,
) -> list[ranks.Outcome]:  # fmt: skip
    """A program on `each` ranks of every host; `own_env` is a host's, as NAME=VALUE."""
    place = place_ranks(hosts, directory, each, own_env)
    place["env"].update(env or {})
    with ranks.started(program, each * len(hosts), directory, **place) as job:
        outcomes = job.wait()
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.stderr
    return outcomes


def all_right(outcomes: list[ranks.Outcome]) -> list[ranks.Outcome]:
    for outcome in outcomes:
        assert outcome.result["type"] is None, outcome.result
        assert all(outcome.result["right"]), outcome.result
    return outcomes


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with namespaces(2, networks=2, sshd=False) as made:
        yield made


@pytest.fixture(scope="module")
def hosts6() -> Iterator[list[Host]]:
    with namespaces(2, networks=2, sshd=False, ipv6=True) as made:
        yield made


def sent(hosts: Sequence[Host]) -> np.ndarray:
    """Bytes sent, by host and cable."""
    return np.array([[tx for _, tx in host.cable_bytes()] for host in hosts])


# What crosses the network in `reduces`: the large sums of 4 and 8 bytes an element.
LARGE = NBYTES + 2 * NBYTES


def shared(cables: np.ndarray) -> bool:
    """Whether both cables of each host carried the large sums, once.

    A block goes over the next cable that has room, so how much each gets is the kernel's to say; over one that is not
    used go some records only.
    """
    return bool((cables > 0.1 * LARGE).all() and (cables.sum(1) < 1.3 * LARGE).all())


@pytest.mark.parametrize("by", ["network", "interface"])
def test_two_networks_share_the_traffic(hosts: list[Host], tmp_path: Path, by: str) -> None:
    before = sent(hosts)
    if by == "network":
        env, own = {"RINGCORE_NETWORK": "10.214.0.0/16,10.213.0.0/16"}, None
    else:
        env, own = {}, {i: f"RINGCORE_NETWORK_INTERFACES={','.join(host.interfaces)}" for i, host in enumerate(hosts)}
    assert hosts[0].interfaces[1] != hosts[1].interfaces[1]
    outcomes = all_right(run(hosts, tmp_path, env=env, own_env=own))
    assert [o.result["sockets"] for o in outcomes] == [5, 5]  # two lanes were used
    cables = sent(hosts) - before
    assert shared(cables), cables


def is_cut_off() -> dict:
    error = caught(ringcore.init)
    return error if error["type"] is not None else reduce_until_lost(4 << 20, "over.both")


@pytest.mark.long
def test_a_network_of_two_that_is_cut_ends_what_needs_it(tmp_path: Path) -> None:
    """The heart beats on the other one. For half a minute it is hoped that somebody acknowledges."""
    with namespaces(2, networks=2, sshd=False) as own:
        place = place_ranks(own, tmp_path)
        place["env"]["RINGCORE_NETWORK"] = "10.213.0.0/16,10.214.0.0/16"
        with ranks.started(is_cut_off, 2, tmp_path, **place) as job:
            job.await_mark("ready", 0, 1)
            own[1].set_link(False, network=1)
            outcomes = job.wait()
    errors = [outcome.result for outcome in outcomes]
    assert [error["type"] for error in errors] == ["PeerLostError"] * 2, errors
    assert any("stopped answering" in error["message"] for error in errors), errors
    assert all("over.both" in error["message"] for error in errors), errors


def test_two_ranks_on_each_host_send_what_one_would(hosts: list[Host], tmp_path: Path) -> None:
    """A ring over all four would send half as much again."""
    before = sent(hosts)
    outcomes = all_right(run(hosts, tmp_path, each=2))
    assert [o.result["host_of"] for o in outcomes] == [[0, 0, 1, 1]] * 4
    assert [o.result["local"] for o in outcomes] == [[0, 2], [1, 2]] * 2
    assert outcomes[0].result["transports"] == ["self", "shm", "tls", "tls"]
    cables = sent(hosts) - before
    assert (cables[:, 0] < 1.25 * LARGE).all() and (cables[:, 1] < 0.01 * LARGE).all(), cables


def test_one_network_over_several_connections(hosts: list[Host], tmp_path: Path) -> None:
    # They need not agree about how many.
    outcomes = all_right(run(hosts, tmp_path, own_env={0: "RINGCORE_CONNECTIONS=3", 1: "RINGCORE_CONNECTIONS=1"}))
    assert [o.result["sockets"] for o in outcomes] == [7, 7]


def test_a_long_way_takes_more_connections_and_what_it_loses_comes_again(tmp_path: Path) -> None:
    more = 2 if allows_bbr() else 6
    with (
        namespaces(2, sshd=False) as hosts,
        far_apart(hosts, bytes_per_s=12.5e6, round_trip_s=0.03, loss=0.02),
    ):
        # One connection for each 5 ms of the way there and back.
        for env, stripes in (({}, more), ({"RINGCORE_CONNECTIONS": "1"}, 1)):
            for outcome in all_right(run(hosts, tmp_path, env=env, program=sums_once)):
                assert outcome.result["sockets"] == 1 + stripes  # that for control, and those of a lane
                assert outcome.result["congestion"] == ["bbr" if allows_bbr() else "cubic"]


def test_hosts_of_one_name_that_share_no_memory(hosts: list[Host], tmp_path: Path) -> None:
    names = [host.run(["hostname"], check=True).stdout.strip() for host in hosts]
    try:
        for host in hosts:
            host.run(["hostname", "the-same"], check=True)
        # As a launcher says that goes by names: two ranks of one host.
        own = {0: "LOCAL_RANK=0", 1: "LOCAL_RANK=1"}
        outcomes = all_right(run(hosts, tmp_path, env={"LOCAL_WORLD_SIZE": "2"}, own_env=own))
        assert [o.result["transports"] for o in outcomes] == [["self", "tls"], ["tls", "self"]]
        assert [o.result["host_of"] for o in outcomes] == [[0, 1]] * 2
    finally:
        for host, name in zip(hosts, names, strict=True):
            host.run(["hostname", name], check=True)


def test_many_ranks_share_memory_in_their_host_and_connect_along_the_tree(tmp_path: Path) -> None:
    each = 6  # 18 ranks: more than tell each other everything
    env = {"RINGCORE_HEARTBEAT_S": "20"}  # so many share few processors
    with namespaces(3, networks=1, sshd=False) as three:
        outcomes = all_right(run(three, tmp_path, each=each, env=env))
    for outcome in outcomes:
        host = outcome.rank // each
        assert outcome.result["host_of"] == [rank // each for rank in range(3 * each)]
        near = outcome.result["transports"][host * each : (host + 1) * each]
        assert sorted(near) == ["self", *["shm"] * (each - 1)]
        # What has no connection yet would be shown as "tcp": on no rank all links were needed.
        assert "tcp" in outcome.result["transports"]


def test_a_network_that_a_host_is_not_on(hosts: list[Host], tmp_path: Path) -> None:
    own = {0: "RINGCORE_NETWORK=10.213.0.0/16", 1: "RINGCORE_NETWORK=192.0.2.0/24"}
    for outcome in run(hosts, tmp_path, own_env=own):
        assert outcome.result["type"] == "BootstrapError"
        message = outcome.result["message"]
        assert "is on no interface of host1 (ranks [1]); choose a network that all hosts are on" in message
        for host in hosts:
            listed = [f"{name} {ip}/24" for name, ip in zip(host.interfaces, host.addresses, strict=True)]
            assert f"{host.name} has {', '.join(listed)}" in message


def test_hosts_with_addresses_of_ipv6_only(hosts6: list[Host], tmp_path: Path) -> None:
    all_right(run(hosts6, tmp_path / "default"))
    before = sent(hosts6)
    networks = ",".join(f"{ip.rpartition('::')[0]}::/64" for ip in hosts6[0].addresses)
    all_right(run(hosts6, tmp_path / "both", each=2, env={"RINGCORE_NETWORK": networks}))
    cables = sent(hosts6) - before
    assert shared(cables), cables


def test_addresses_that_mean_something_on_their_link_only(hosts6: list[Host], tmp_path: Path) -> None:
    # The ranks meet at another address: the setting is for what goes between them.
    outcomes = all_right(run(hosts6, tmp_path, env={"RINGCORE_NETWORK": "fe80::/10"}))
    assert [o.result["sockets"] for o in outcomes] == [5, 5]


def reduces_and_goes() -> bool:
    ringcore.init()
    tensor = np.full(1 << 22, ringcore.rank(), np.float32)
    ringcore.allreduce_(tensor, op=ringcore.Sum, name="last")
    return bool((tensor == 6).all())


def test_what_a_rank_sent_before_it_left_arrives_over_a_slow_network(tmp_path: Path) -> None:
    """The last bytes of a ring are in the kernel's buffers when their sender is done; its goodbye overtakes them."""
    with namespaces(2, sshd=False, rate="200mbit") as slow:
        outcomes = run(slow, tmp_path, each=2, env={"RINGCORE_TRANSPORT": "tcp"}, program=reduces_and_goes)
    assert [outcome.result for outcome in outcomes] == [True] * 4
