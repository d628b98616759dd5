"""Where a job's key and its meeting place come from."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from ringcore import BootstrapError
from ringcore.bootstrap import connect, interfaces, keys
from ringcore.environment.placement import find_placement
from ringcore.environment.private_folder import private_folder
from ringcore.environment.settings import Settings

US, GROUP = os.getuid(), os.getgid()
STRANGERS = 4_000_000


@pytest.mark.parametrize(
    ("mode", "owner", "group", "private"),
    [
        (0o600, US, GROUP, True),
        (0o400, 0, 0, True),
        (0o440, 0, GROUP, True),  # a secret of Kubernetes with fsGroup
        (0o640, US + 1, GROUP, False),
        (0o460, 0, GROUP, False),
        (0o604, US, GROUP, False),
        (0o600, US + 1, GROUP, False),
    ],
)
def test_who_may_read_a_key(mode: int, owner: int, group: int, private: bool) -> None:
    status = SimpleNamespace(st_mode=0o100000 | mode, st_uid=owner, st_gid=group)
    assert keys._is_private(status) is private


def test_a_group_of_others_may_not_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert not keys._is_private(SimpleNamespace(st_mode=0o100440, st_uid=0, st_gid=STRANGERS))


def test_ranks_meet_where_the_runtime_folder_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "not here"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert private_folder() == tmp_path / f"ringcore-{US}"
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nor here"))
    with pytest.raises(BootstrapError, match="TMPDIR"):
        private_folder()


@pytest.mark.parametrize("rank", [0, 1])
def test_who_was_expected_on_this_host_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: int) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    told = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "node", "MASTER_PORT": "29500"}
    settings = Settings(start_timeout_s=0.05)
    with pytest.raises(BootstrapError) as raised:
        connect(find_placement(told), settings, create_segment=None)
    assert "if there are several hosts, set LOCAL_WORLD_SIZE to the number of ranks on each" in str(raised.value)
    with pytest.raises(BootstrapError) as raised:
        connect(find_placement({**told, "LOCAL_WORLD_SIZE": "2"}), settings, create_segment=None)
    assert "several hosts" not in str(raised.value)


def test_two_jobs_with_one_key_file_do_not_know_each_others_key(tmp_path: Path) -> None:
    """Their ports follow from their names, and can be the same."""
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    told = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "node"}
    found = set()
    for port, name in (("29500", "a"), ("29500", "b"), ("29501", "a"), ("29500", "a")):
        settings = Settings(key_file=str(path), job_id=name)
        with keys.rendezvous_of(find_placement({**told, "MASTER_PORT": port}), settings) as (_, key):
            found.add(key)
    assert len(found) == 3 and bytes(range(32)) not in found


def test_others_are_not_sent_to_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(*addresses: str) -> None:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    def has(*addresses: str) -> None:
        monkeypatch.setattr(interfaces, "addresses", lambda: [interfaces.Address("eth0", ip, 24) for ip in addresses])

    has("127.0.0.1", "192.0.2.7")
    resolved("127.0.1.1", "198.51.100.3")
    assert interfaces.address_for_others("node") == "198.51.100.3"
    resolved("127.0.1.1")  # as Debian's /etc/hosts says of the host itself
    assert interfaces.address_for_others("node") == "192.0.2.7"
    has("127.0.0.1")
    assert interfaces.own_address() == "127.0.0.1"
    with pytest.raises(BootstrapError, match="no address but 127"):
        interfaces.address_for_others("node")


def test_the_name_of_a_host_need_not_resolve_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "nowhere.invalid")
    monkeypatch.setattr(interfaces, "addresses", lambda: [interfaces.Address("eth0", "192.0.2.7", 24)])
    assert interfaces.own_address() == "192.0.2.7"
