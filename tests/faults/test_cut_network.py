"""Ranks on several hosts, and the cable between them is pulled: nobody is told, and all find out."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import ringcore
from support import ranks
from support.namespaces import namespaces, place_ranks
from support.rank import reduce_until_lost


def reduces_over_the_network() -> dict:
    ringcore.init()
    error = reduce_until_lost(1 << 16, "over.the.network")
    error["transports"] = ringcore.job.state.context().runtime.transports()
    return error


@pytest.mark.parametrize("half_open", [False, True], ids=["cut", "half-open"])
def test_a_cut_cable_is_an_error_on_both_sides(tmp_path: Path, half_open: bool) -> None:
    with namespaces(2, sshd=False) as hosts:
        place = place_ranks(hosts, tmp_path)
        place["env"]["RINGCORE_HEARTBEAT_S"] = "1"
        with ranks.started(reduces_over_the_network, 2, tmp_path, **place) as job:
            job.await_mark("ready", 0, 1)
            hosts[1].set_link(False)
            if half_open:
                # Its kernel's last words are lost as well: the other side has a connection to nobody.
                job.signal(1, signal.SIGKILL)
            outcomes = job.wait()
    survivors = outcomes[:1] if half_open else outcomes
    for outcome in survivors:
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.result["type"] == "PeerLostError", outcome.result
        assert f"rank {1 - outcome.rank}" in outcome.result["message"]
        assert "over.the.network" in outcome.result["message"]
        assert outcome.result["transports"][1 - outcome.rank] == "tls"
