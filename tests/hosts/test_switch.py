"""Sums that a switch makes on the way, between hosts that are network namespaces: `ringcore-switch` runs on one more.

Each kind and size is tried by the plans and by the switch in turns, so that some of the calls go through it whatever is
quicker here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support import ranks, weather
from support.namespaces import Host, namespaces, place_ranks
from support.switches import PORT, switch, write_key

# Calls until each candidate was tried, and some more.
CALLS = 16
ELEMENTS = (20_000, 70_001)  # what blocks with less goes with its announcement, whatever carries out the rest


def sums(elements: list[int], calls: int) -> dict:
    """Allreduces whose sums are known; digests of what came out."""
    import hashlib

    error = caught(ringcore.init)
    if error["type"] is not None:
        return error
    digest = hashlib.sha256()
    for count in elements:
        for call in range(calls):
            whole = np.arange(count, dtype=np.float32) % 1000
            tensor = whole * (ringcore.rank() + 1) + call
            error = caught(ringcore.allreduce_, tensor, op=ringcore.Sum, name=f"of {count}")
            if error["type"] is not None:
                return error
            size = ringcore.size()
            expected = whole * (size * (size + 1) // 2) + call * size
            if not np.allclose(tensor, expected, rtol=1e-6 if os.environ.get("RINGCORE_SWITCH_SUMS") else 0):
                return {"type": "wrong", "count": count, "call": call}
            average = tensor * np.float32(0.1) * (ringcore.rank() + 1)  # whose bits tell who was added when
            error = caught(ringcore.allreduce_, average, name=f"average of {count}")
            if error["type"] is not None:
                return error
            digest.update(average.tobytes())
    return {"type": None, "digest": digest.hexdigest()}


def leaves_behind_the_switch() -> float:
    """The first sum that goes through it is the last."""
    ringcore.init()
    runtime = ringcore.job.state.context().runtime
    carriers: set[str] = set()
    while "switch" not in carriers:
        runtime.start_timeline()
        tensor = np.full(2_000_000, ringcore.rank() + 1, np.float32)
        ringcore.allreduce_(tensor, op=ringcore.Sum, name="last")
        carriers = {span[1] for span in runtime.stop_timeline()}
    ringcore.shutdown()
    return float(tensor[-1])


def trains_asynchronously(steps: int) -> dict:
    """A net of which each rank contributes what it has; the sums go through the switch in the end."""
    import hashlib

    import ringcore_torch as ring
    import torch

    ring.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 300)
    optimizer = ring.AsyncOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), staleness=2, threshold=1)
    runtime = ringcore.job.state.context().runtime
    runtime.start_timeline()
    generator = torch.Generator().manual_seed(ring.rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 300, generator=generator)).square().mean().backward()
        optimizer.step()
    optimizer.synchronize()
    carriers = {span[1] for span in runtime.stop_timeline()}
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy().tobytes()
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "updates": optimizer.updates,
        "switch": "switch" in carriers,
    }


def segments(elements: Sequence[int], size: int) -> int:
    """Packets at least that a job sends to its switch: of each kind two calls go through it, a contribution a rank."""
    return 2 * 2 * size * sum(-(-count // 352) for count in elements)


def run(
    hosts: Sequence[Host], directory: Path, key: Path, address: str, own: dict[int, str] | None = None, **env: str
) -> list[dict]:
    place = place_ranks(hosts, directory, 1, own)
    place["env"].update(RINGCORE_SWITCH=address, RINGCORE_SWITCH_KEY_FILE=str(key), **env)
    with ranks.started(sums, len(hosts), directory, ELEMENTS, CALLS, **place) as job:
        outcomes = job.wait()
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.stderr
    return [outcome.result for outcome in outcomes]


def check_right(results: list[dict]) -> None:
    assert [result["type"] for result in results] == [None] * len(results), results
    assert len({result["digest"] for result in results}) == 1


@contextlib.contextmanager
def losing(hosts: Sequence[Host], part: float) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for host in hosts:
            stack.enter_context(host.losing(part))
        yield


@pytest.mark.parametrize(
    ("size", "lost"),
    [
        (2, 0), (4, 0.01),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((4, 0), (4, 0.001), (2, 0.01), (4, 0.05))),
    ],
)  # fmt: skip
def test_sums_are_right_whatever_part_of_the_packets_is_lost(tmp_path: Path, size: int, lost: float) -> None:
    with namespaces(size + 1, sshd=False) as (at, *hosts), losing(hosts if lost else (), lost):
        key = write_key(tmp_path / "switch-key")
        with switch(at, key) as running:
            check_right(run(hosts, tmp_path / "job", key, running.address))
            running.end()
        packets, foreign, forged, _ = running.counts
        assert packets >= segments(ELEMENTS, size) * (1 - 2 * lost)
        assert (foreign, forged) == (0, 0)


@pytest.mark.long
def test_a_rank_may_leave_when_it_has_the_last_sum_and_others_still_lack_it(tmp_path: Path) -> None:
    with namespaces(4, sshd=False) as (at, *hosts), losing(hosts[2:], 0.3):
        key = write_key(tmp_path / "switch-key")
        # Between rank 2 and the switch packets get lost: the others have their sums long before, and leave.
        with switch(at, key) as running:
            place = place_ranks(hosts, tmp_path / "job")
            place["env"].update(RINGCORE_SWITCH=running.address, RINGCORE_SWITCH_KEY_FILE=str(key))
            with ranks.started(leaves_behind_the_switch, len(hosts), tmp_path / "job", **place) as job:
                assert [outcome.result for outcome in job.wait()] == [6.0] * 3
            running.end()


@pytest.mark.long  # in each run they go the other ways, and other sums through the switch
def test_gradients_that_wait_for_nobody_are_summed_there_too(tmp_path: Path) -> None:
    with namespaces(4, sshd=False) as (at, *hosts):
        key = write_key(tmp_path / "switch-key")
        with switch(at, key) as running:
            place = place_ranks(hosts, tmp_path / "job")
            place["env"].update(RINGCORE_SWITCH=running.address, RINGCORE_SWITCH_KEY_FILE=str(key))
            with ranks.started(trains_asynchronously, len(hosts), tmp_path / "job", 40, **place) as job:
                results = [outcome.result for outcome in job.wait()]
            running.end()
    assert all(result == results[0] for result in results), results
    assert results[0]["updates"] > 0 and results[0]["switch"]


@contextlib.contextmanager
def relayed(at: Host, *parts: float) -> Iterator[str]:
    """Packets to this address get to the switch, as `support.weather` lets them."""
    command = [sys.executable, weather.__file__, at.address, str(PORT + 1), at.address, str(PORT), *map(str, parts)]
    relay = at.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert relay.stdout is not None and relay.stdout.readline() == b"ready\n"
    try:
        yield f"{at.address}:{PORT + 1}"
    finally:
        relay.communicate(timeout=30)


def test_sums_are_right_where_packets_are_doubled_and_overtake_each_other(tmp_path: Path) -> None:
    with namespaces(4, sshd=False) as (at, *hosts):
        key = write_key(tmp_path / "switch-key")
        with switch(at, key) as running, relayed(at, 0.005, 0.05, 0.05) as address:
            check_right(run(hosts, tmp_path / "job", key, address))
            running.end()
        assert running.counts[0] >= segments(ELEMENTS, 3)


def test_sums_of_integers_have_the_same_bits_in_every_job(tmp_path: Path) -> None:
    with namespaces(3, sshd=False) as (at, *hosts):
        key = write_key(tmp_path / "switch-key")
        with switch(at, key) as running:
            check_right(run(hosts, tmp_path / "job", key, running.address, RINGCORE_SWITCH_SUMS="int32"))


def test_two_levels_of_switches_sum_for_two_racks(tmp_path: Path) -> None:
    with namespaces(4 + 3, sshd=False) as (top, first, second, *hosts):
        key = write_key(tmp_path / "switch-key")
        with losing(hosts, 0.01), switch(top, key, "--members", "2") as above:
            below = ["--members", "2", "--parent", above.address]
            with switch(first, key, *below) as left, switch(second, key, *below) as right:
                own = {i: f"RINGCORE_SWITCH={(left if i < 2 else right).address}" for i in range(4)}
                check_right(run(hosts, tmp_path / "job", key, left.address, own))
                for each in (left, right):
                    each.end()
                    assert each.counts[0] >= segments(ELEMENTS, 2)
            above.end()
            assert above.counts[0] >= segments(ELEMENTS, 2)


def sums_around(elements: int, calls: int) -> dict:
    """Sums before and after something happens: in the midst of the trials, of which the switch has its turns."""
    error = caught(ringcore.init)
    for call in range(calls):
        if error["type"] is not None:
            return error
        tensor = np.full(elements, ringcore.rank() + call, np.float32)
        error = caught(ringcore.allreduce_, tensor, op=ringcore.Sum, name="on and on")
        size = ringcore.size() if ringcore.is_initialized() else 0
        if error["type"] is None and not (tensor == size * (size - 1) // 2 + call * size).all():
            return {"type": "wrong", "call": call}
        if call == 6:
            mark("going")
            await_mark("happened", "test")
    return error


@contextlib.contextmanager
def around(hosts: Sequence[Host], directory: Path, key: Path, address: str, **env: str) -> Iterator[ranks.Ranks]:
    place = place_ranks(hosts, directory)
    place["env"].update(RINGCORE_SWITCH=address, RINGCORE_SWITCH_KEY_FILE=str(key), **env)
    with ranks.started(sums_around, len(hosts), directory, 40_000, 30, **place) as job:
        job.await_mark("going", *range(len(hosts)))
        yield job


def test_a_killed_switch_is_an_error_that_names_it_and_the_remedy(tmp_path: Path) -> None:
    with namespaces(4, sshd=False) as (at, *hosts):
        key = write_key(tmp_path / "switch-key")
        with (
            switch(at, key) as running,
            around(hosts, tmp_path / "job", key, running.address, RINGCORE_SWITCH_TIMEOUT_S="1") as job,
        ):
            running.kill()
            job.mark("happened")
            for outcome in job.wait():
                assert outcome.result["type"] == "PeerLostError", outcome.result
                assert f"the switch {running.address} (RINGCORE_SWITCH)" in outcome.result["message"]
                assert "Remedy" in outcome.result["message"]


def test_a_switch_that_comes_back_without_its_memory_goes_on(tmp_path: Path) -> None:
    with namespaces(4, sshd=False) as (at, *hosts):
        key = write_key(tmp_path / "switch-key")
        with switch(at, key) as first, around(hosts, tmp_path / "job", key, first.address) as job:
            first.kill()
            job.mark("happened")
            with switch(at, key) as second:
                for outcome in job.wait():
                    assert outcome.result["type"] is None, outcome.result
                second.end()
            assert second.counts[0] > 0


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    with namespaces(4, sshd=False) as (at, *hosts):
        key = write_key(tmp_path / "switch-key")
        with switch(at, key) as running, around(hosts, tmp_path / "job", key, running.address) as job:
            job.signal(1, signal.SIGKILL)
            job.mark("happened")
            for outcome in job.wait():
                if outcome.rank == 1:
                    continue
                assert outcome.result["type"] == "PeerLostError", outcome.result
                assert "rank 1" in outcome.result["message"]


def test_packets_of_others_change_nothing(tmp_path: Path) -> None:
    with namespaces(3, sshd=False) as (at, *hosts):
        key = write_key(tmp_path / "switch-key")
        with switch(at, key) as running:
            stranger = hosts[0].popen([sys.executable, "-c", STRANGER, at.address, str(PORT)])
            try:
                check_right(run(hosts, tmp_path / "job", key, running.address))
            finally:
                stranger.kill()
                stranger.wait()
            running.end()
        packets, foreign, *_ = running.counts
        assert foreign > 0 and packets >= segments(ELEMENTS, 2)


@contextlib.contextmanager
def routed(at: Host, left: Host, right: Host) -> Iterator[tuple[Host, Host]]:
    """Two hosts in different networks, between which the first one routes; made of three that are in both."""
    (first, second), (near, far) = at.addresses, right.addresses
    for host, unused, gateway, beyond in ((left, 1, first, far), (right, 0, second, near)):
        host.run(["ip", "link", "set", host.interfaces[unused], "down"], check=True)
        host.run(["ip", "route", "add", f"{beyond.rpartition('.')[0]}.0/24", "via", gateway], check=True)
    at.run(["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"], check=True)
    yield left, dataclasses.replace(right, addresses=(far,), interfaces=right.interfaces[1:])


def forwarded(at: Host) -> int:
    """IP packets that the host has passed on."""
    names, numbers = (line.split() for line in at.run(["cat", "/proc/net/snmp"]).stdout.splitlines()[:2])
    return int(numbers[names.index("ForwDatagrams")])


def test_a_switch_that_routes_forwards_what_is_not_for_it_as_it_is(tmp_path: Path) -> None:
    with namespaces(3, sshd=False, networks=2) as (at, *both), routed(at, *both) as (left, right):
        key = write_key(tmp_path / "switch-key")
        with switch(at, key) as running:
            # Strangers' packets, to the switch's port, some of which begin as ours do: only the address differs.
            receiver = right.popen([sys.executable, "-c", RECEIVER, right.address, str(PORT)], stdout=subprocess.PIPE)
            assert receiver.stdout is not None and receiver.stdout.readline() == b"ready\n"
            sent = left.run([sys.executable, "-c", SENDER, right.address, str(PORT)])
            received, _ = receiver.communicate(timeout=30)
            assert received == sent.stdout.encode() != b""
            before = forwarded(at)
            check_right(run([left, right], tmp_path / "job", key, running.address))
            assert forwarded(at) > before  # the ranks' connections
            running.end()
        packets, foreign, *_ = running.counts
        assert foreign == 0 and packets >= segments(ELEMENTS, 2)


SENDER = """
import os, socket, sys
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for tos in (0, 0x2C, 0x30):
    out.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    for begin in (b"", b"RCS1"):
        packet = begin + os.urandom(1000)
        out.sendto(packet, (sys.argv[1], int(sys.argv[2])))
        print(tos, packet.hex())
"""

RECEIVER = """
import socket, sys
into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
into.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
into.settimeout(20)
into.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
for _ in range(6):
    packet, [(_, _, tos)], _, _ = into.recvmsg(2000, 100)
    print(tos[0], packet.hex())
"""


# Bytes that are no packet, and such as begin like one.
STRANGER = """
import os, socket, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    for size in (0, 1, 40, 200, 1448, 1449, 9000):
        out.sendto(os.urandom(size), (sys.argv[1], int(sys.argv[2])))
        out.sendto((b"RCS1" + os.urandom(9000))[:size], (sys.argv[1], int(sys.argv[2])))
    time.sleep(0.001)
"""


def test_a_switch_with_another_key_does_not_answer_and_is_named(tmp_path: Path) -> None:
    with namespaces(3, sshd=False) as (at, *hosts):
        key, other = write_key(tmp_path / "switch-key"), write_key(tmp_path / "other-key")
        with switch(at, key) as running:
            for result in run(hosts, tmp_path / "job", other, running.address, RINGCORE_SWITCH_TIMEOUT_S="1"):
                assert result["type"] == "PeerLostError", result
                assert running.address in result["message"] and "RINGCORE_SWITCH_KEY_FILE" in result["message"]
            running.end()
        assert running.counts[0] == 0 and running.counts[2] > 0


def test_ranks_that_differ_in_whether_they_have_a_switch_are_told_so(tmp_path: Path) -> None:
    with namespaces(3, sshd=False) as (at, *hosts):
        key = write_key(tmp_path / "switch-key")
        with switch(at, key) as running:
            own = {0: "RINGCORE_SWITCH_SUMS=float32", 1: "RINGCORE_SWITCH="}
            for result in run(hosts, tmp_path / "job", key, running.address, own):
                assert result["type"] == "BootstrapError", result
                assert "rank 1 has no switch" in result["message"]


def test_it_listens_at_loopback_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    with namespaces(1, sshd=False) as (at,):
        key = write_key(tmp_path / "switch-key")
        done = at.run(["sh", "-c", f"timeout 2 {os.path.dirname(sys.executable)}/ringcore-switch --key-file {key}"])
        assert "listens at 127.0.0.1:29600" in done.stdout, done
