"""How long the ranks of a job that is not there take to find each other, from the moment when all processes run.

Calculated: what is sent, by whom and to whom is that of `ringcore.bootstrap`, and what a step of it costs a processor
was measured (`benchmarks/start_costs.py`). Each rank has a processor of its own, and so has the rendezvous, which is
one thread.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ringcore import _native
from ringcore.bootstrap.contacts import encode_answer
from ringcore.bootstrap.spread import CHILDREN
from ringcore.simulation.values import Network

# Seconds of a virtual processor (AMD EPYC, 2.6 GHz): of the rendezvous for a rank, of a rank for a proof, and of either
# for a contact.
GUEST_S = 270e-6
PROOF_S = 100e-6
PACK_S = 7.3e-6
UNPACK_S = 3.6e-6
# A proof takes three messages, one after the other.
_MESSAGES = 3
# The same for those at the job's beginning, middle and end: among ranks that are all placed alike.
_LOOKED_AT = 32


@dataclass(frozen=True)
class Start:
    """How long it takes until the ranks are connected.

    Attributes:
        met_s: Until the rendezvous knows all contacts.
        told_s: Until the last rank knows them.
        connected_s: Until all ranks are connected with those that they need from the start.
        table_bytes: Of all contacts, packed, as each rank is sent them.
        links: Of a rank, at most.
    """

    met_s: float
    told_s: float
    connected_s: float
    table_bytes: int
    links: int


def start_of(ranks: int, hosts: int, network: Network) -> Start:
    """Calculate the start of a job.

    Args:
        ranks: How many.
        hosts: On how many; each has as many ranks, or one less.
        network: Between hosts.
    """
    host_of = [rank * hosts // ranks for rank in range(ranks)]
    table_bytes = len(encode_answer({"contacts": [contact_of(rank, host) for rank, host in enumerate(host_of)]}))
    met_s = ranks * (GUEST_S + PACK_S)
    told_s = _spread(host_of, table_bytes, met_s, network)
    step = max(1, ranks // _LOOKED_AT)
    links = max(len(_native.connected_at_start(host_of, rank)) for rank in [*range(0, ranks, step), ranks - 1])
    connected_s = told_s + links * PROOF_S + _MESSAGES * network.latency_s
    return Start(met_s, told_s, connected_s, table_bytes, links)


def _spread(host_of: list[int], table_bytes: int, met_s: float, network: Network) -> float:
    """When the last rank knows all contacts."""
    ranks = len(host_of)
    sent_s = table_bytes * 8 / network.bits_per_s
    if ranks <= _native.DIRECT_MEMBERS:  # The rendezvous sends them to all.
        return met_s + ranks * sent_s + network.latency_s + ranks * UNPACK_S
    port_is_free = [0.0] * (host_of[-1] + 1)
    has_it = [0.0] * ranks
    has_it[0] = met_s + sent_s + network.latency_s
    last = 0.0
    for rank in range(ranks):  # Whoever hands it to a rank comes before it.
        knows = has_it[rank] + ranks * UNPACK_S
        last = max(last, knows)
        for number, child in enumerate(range(rank * CHILDREN + 1, min(ranks, rank * CHILDREN + 1 + CHILDREN))):
            proved = knows + (number + 1) * PROOF_S
            if host_of[child] == host_of[rank]:
                has_it[child] = proved
                continue
            begins = max(proved + _MESSAGES * network.latency_s, port_is_free[host_of[rank]])
            port_is_free[host_of[rank]] = begins + sent_s
            has_it[child] = begins + sent_s + network.latency_s
    return last


def contact_of(rank: int, host: int) -> dict[str, object]:
    """What a rank posts on a host with two networks; its random names cannot be packed, as those of real ones."""
    ip = f"10.{host >> 16 & 255}.{host >> 8 & 255}.{host & 255}"
    return {
        "rank": rank,
        "size": 1,
        "serves": False,
        "local_rank": 0,
        "job": "0123456789abcdef",
        "version": "1.0.0",
        "start_timeout_s": 30.0,
        "unix": f"ringcore-{random.Random(rank).getrandbits(128):032x}",  # noqa: S311 - no secret
        "domain": f"{random.Random(host).getrandbits(128):032x}/4026531840/1000",  # noqa: S311
        "host": f"node{host:05}",
        "addresses": [f"eth0 {ip}/8", f"eth1 172.16.{host >> 8 & 255}.{host & 255}/16"],
        "round_trip_s": 0.0001,
        "bbr": False,
        "tcp": [["eth0", ip, 8, 32768 + rank * 7919 % 28000, 1]],
        "table_port": 32768 + rank * 7907 % 28000,
        "encryption": "auto",
        "no_tls": None,
    }
