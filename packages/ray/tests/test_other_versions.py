"""Actors that have another ringcore than those that they are to meet: their tickets say so."""

from __future__ import annotations

import re
import socket

import pytest
import ringcore
from ringcore.launcher.external import LaunchError, tickets
from ringcore_ray import RingExecutor

HOST = re.escape(socket.gethostname())


def pretend_on_one() -> int:
    """Rank 1's process takes itself for another version from now on."""
    import ringcore as ring
    from ringcore.launcher.external import tickets

    ring.init()
    if ring.rank() == 1:
        tickets.__version__ = "9.9"
    return ring.rank()


def test_an_actor_with_another_ringcore_is_named_with_both_hosts_and_versions() -> None:
    said = rf"take its rank: {HOST} has ringcore {ringcore.__version__}, but {HOST} has ringcore 9\.9; install the same"
    with RingExecutor(num_workers=2) as executor:
        executor.run(pretend_on_one)
        with pytest.raises(LaunchError, match=said) as caught:
            executor.restart()
        assert "ray::" not in str(caught.value), "without the actor's stack"


def test_a_driver_with_another_ringcore_than_its_elastic_workers_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "__version__", "9.9")
    said = rf"could not bring its rank: {HOST} has ringcore 9\.9, but {HOST} has ringcore {ringcore.__version__}; inst"
    with RingExecutor(min_workers=2) as executor, pytest.raises(LaunchError, match=said) as caught:
        executor.run(pretend_on_one)
    assert "ray::" not in str(caught.value), "without the actor's stack"
