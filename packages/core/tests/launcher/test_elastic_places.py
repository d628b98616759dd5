"""Where the ranks of an elastic job run, who becomes which rank, and what a discovery script may say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ringcore.launcher._hosts import Host, HostError
from ringcore.launcher._loop import Loop
from ringcore.launcher.elastic.discovery import Discovery, argv_of, parse
from ringcore.launcher.elastic.places import Places, RankProcess, deal


def places_of(*hosts: Host, least: int = 1, most: int | None = None) -> Places:
    places = Places(1.0, 60.0, least, most)
    places.offer(hosts)
    for place in places.vacant():
        place.process = RankProcess(place)
    return places


def ranks_of(processes: Sequence[RankProcess]) -> dict[int, tuple[int, int, int]]:
    """Place -> rank, local rank, cross rank."""
    return {p.place.number: (slot.rank, slot.local_rank, slot.cross_rank) for p, slot in deal(processes)}


def settle(places: Places) -> None:
    for process, slot in deal(places.processes()):
        process.rank, process.epoch, process.began_at = slot.rank, process.epoch + 1, 0.0


def test_ranks_of_a_host_are_neighbours() -> None:
    places = places_of(Host("a", 2), Host("b", 1))
    assert ranks_of(places.processes()) == {0: (0, 0, 0), 1: (1, 1, 0), 2: (2, 0, 1)}


def test_survivors_come_first_and_keep_their_devices() -> None:
    places = places_of(Host("a", 2), Host("b", 2))
    settle(places)
    places.all[0].process = None
    assert ranks_of(places.processes()) == {1: (0, 0, 0), 2: (1, 0, 1), 3: (2, 1, 0)}
    settle(places)
    places.all[0].process = RankProcess(places.all[0])
    # Local rank 0 is the newcomer's, as is the device; rank 0, who has the state, is not.
    assert ranks_of(places.processes()) == {1: (0, 1, 0), 0: (1, 0, 0), 2: (2, 0, 1), 3: (3, 1, 1)}


def test_a_place_rests_twice_as_long_after_each_failure_and_never_for_ever() -> None:
    places = places_of(Host("a", 1))
    place = places.all[0]
    rests = []
    for now in range(8):
        rests.append(places.fail(place, float(now)))
        place.process = RankProcess(place)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60]
    place.process.began_at = 100.0
    assert places.fail(place, 130.0) == 60.0
    place.process = RankProcess(place, began_at=200.0)
    assert places.fail(place, 300.0) == 1.0, "it was a rank for long"


def test_no_more_places_than_asked_for_are_used_and_those_that_rest_come_last() -> None:
    places = places_of(Host("a", 4), most=2)
    assert [p.place.number for p in places.processes()] == [0, 1]
    places.fail(places.all[0], 0.0)
    places.all[0].process = None
    assert [place.number for place in places.vacant()] == [2]


def test_who_has_no_place_any_more_stays_while_there_are_too_few_others() -> None:
    places = places_of(Host("a", 2), Host("b", 1), least=2)
    places.offer([Host("b", 1)])
    assert [p.place.number for p in places.surplus()] == [0]
    places.offer([Host("b", 1), Host("c", 3)])
    places.all[-1].process = RankProcess(places.all[-1])
    assert [p.place.number for p in places.surplus()] == [0, 1]


def test_whoever_waits_to_be_let_in_counts_as_a_rank() -> None:
    places = places_of(Host("a", 2), most=2)
    places.processes()[0].in_epoch = True
    assert not places.is_full(0)
    assert places.is_full(1)


def test_a_host_that_comes_again_has_its_places_again() -> None:
    places = places_of(Host("a", 1), Host("b", 1))
    places.all[1].process, places.all[1].retired = None, True
    assert places.vacant() == []
    places.offer([Host("a", 1), Host("b", 1)])
    assert places.vacant() == []
    places.offer([Host("a", 1)])
    places.offer([Host("a", 1), Host("b", 1)])
    assert places.vacant() == [places.all[1]]


def test_hosts_that_a_script_names() -> None:
    assert parse(b"a\n\n b:3 \n[::1]\n", 2) == [Host("a", 2), Host("b", 3), Host("[::1]", 2)]
    assert parse(b"", None) == []


@pytest.mark.parametrize(
    "said", [b"a;id", b"$(id)", b"-oProxyCommand=id", b"a b", b"a:0", b"a\na:2", b"\xff", b"a" * 2**21]
)
def test_what_is_no_host_is_none(said: bytes) -> None:
    with pytest.raises(HostError):
        parse(said, None)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 3", "failed with exit code 3"),
        ("echo 'a; id'", "printed 'a; id', which is no host"),
        ("sleep 600", "did not end within 0.2 s"),
        ("kill -9 $$", "was killed by signal 9"),
    ],
)
def test_why_a_script_cannot_be_used_is_told_once(tmp_path: Path, script: str, says: str) -> None:
    path = tmp_path / "discover.sh"
    path.write_text(f"#!/bin/sh\necho >> {tmp_path}/runs\n{script}\n")
    path.chmod(0o755)
    problems: list[str] = []
    loop = Loop()
    discovery = Discovery(loop, str(path), None, lambda _: None, problems.append, period_s=0.01, limit_s=0.2)
    discovery.ask()
    while not (tmp_path / "runs").exists() or len((tmp_path / "runs").read_text()) < 3:
        loop.run_once()
    discovery.close()
    assert len(problems) == 1 and says in problems[0] and str(path) in problems[0]


def test_a_script_is_no_shell_command(tmp_path: Path) -> None:
    path = tmp_path / "a script"
    path.write_text('#!/bin/sh\necho "$1"\n')
    path.chmod(0o755)
    found: list[list[Host]] = []
    loop = Loop()
    discovery = Discovery(loop, f"'{path}' 'host:2'", None, found.append, pytest.fail)
    discovery.ask()
    while not found:
        loop.run_once()
    discovery.close()
    assert found == [[Host("host", 2)]]
    for command in (f"{path}", "'", "", str(tmp_path / "none")):
        with pytest.raises(HostError):
            argv_of(command)
