"""Where NVIDIA's libraries are looked for, and what they are told by the environment."""

from __future__ import annotations

import os

import pytest
from ringcore import _native
from ringcore.environment.libraries import tell_engine
from ringcore.environment.settings import Settings


@pytest.fixture(autouse=True)
def _environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")  # so that it is put back
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")


def test_nccl_uses_the_interfaces_of_ringcore() -> None:
    """By their whole names: NCCL takes a name without "=" for the beginning of others."""
    tell_engine(Settings(network_interfaces=("eth0", "eth1")))
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=eth0,eth1"


def test_what_the_user_tells_nccl_stays() -> None:
    os.environ["NCCL_SOCKET_IFNAME"] = "ib0"
    tell_engine(Settings(network_interfaces=("eth0",)))
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0"


def test_nccl_is_not_used_where_everything_is_to_be_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[list[str], ...]] = []
    monkeypatch.setattr(_native, "set_library_paths", lambda *paths: told.append(paths))
    tell_engine(Settings(encryption="on", nccl_library="/opt/libnccl.so.2"))
    tell_engine(Settings(nccl_library="/opt/libnccl.so.2"))
    assert [nccl for _, nccl, _ in told] == [[], ["/opt/libnccl.so.2"]]


def test_nccl_chooses_where_ringcore_does() -> None:
    tell_engine(Settings())
    assert "NCCL_SOCKET_IFNAME" not in os.environ
