"""How many connections it takes to fill the way between two addresses."""

from __future__ import annotations

import pytest
from ringcore.bootstrap.paths import Endpoint, connections_between


@pytest.mark.parametrize(
    ("first", "second", "connections"),
    [
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1), Endpoint("eth0", "10.0.1.1", 24, 1, 1), 1),
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1), Endpoint("eth0", "10.0.1.1", 24, 1, 4), 4),
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1, 0.0049), Endpoint("eth0", "10.0.1.1", 24, 1, 1), 1),
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1), Endpoint("eth0", "10.0.1.1", 24, 1, 1, 0.031), 6),
        (Endpoint("eth0", "10.0.0.1", 24, 1, 8), Endpoint("eth0", "10.0.1.1", 24, 1, 1, 0.031), 8),
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1, 0.3), Endpoint("eth0", "10.0.1.1", 24, 1, 1), 16),
        # More help only where what is lost slows a connection down.
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1, 0, True), Endpoint("eth0", "10.0.1.1", 24, 1, 1, 0.031, True), 2),
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1, 0, True), Endpoint("eth0", "10.0.1.1", 24, 1, 4, 0.031, True), 4),
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1, 0.1, True), Endpoint("eth0", "10.0.1.1", 24, 1, 1, 0.1, True), 5),
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1, 0.004, True), Endpoint("eth0", "10.0.1.1", 24, 1, 1, 0, True), 1),
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1, 0.1, True), Endpoint("eth0", "10.0.0.2", 24, 1, 1, 0.1, True), 1),
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1, 0.031), Endpoint("eth0", "10.0.1.1", 24, 1, 1, 0, True), 6),
        # Both are far from the rendezvous, and in one network.
        (Endpoint("eth0", "10.0.0.1", 24, 1, 1, 0.1), Endpoint("eth0", "10.0.0.2", 24, 1, 1, 0.1), 1),
    ],
    ids=[
        "near", "fast", "not far", "far", "fast and far", "very far", "BBR", "fast, BBR", "very far, BBR", "near, BBR",
        "one network, BBR", "BBR at one end", "one network",
    ],
)  # fmt: skip
def test_connections_between_two_addresses(first: Endpoint, second: Endpoint, connections: int) -> None:
    assert connections_between(first, second) == connections_between(second, first) == connections
