"""What is compared, and on which network; docs/parameter-server.md says what was fixed before any result was seen."""

from __future__ import annotations

# ---- The network ----

# Each cable, in each direction, at the host and at the switch. At twice this rate two cores are the limit of 8 workers.
# The queues are deep, 50 ms are 625 KB, so that many workers that send to one server lose few packets: shallow ones
# would favour the ring.
RATE = "100mbit"
BURST = "64kb"
QUEUE = "50ms"

# ---- The training ----

# A perceptron of equal layers, float32, trained by SGD.
LAYERS = 8
WIDTH = 512
BATCH = 8  # samples a worker and step
LEARNING_RATE = 5.0
# What forward and backward take on every worker: a pause fills what the little net leaves of it. It stands for a device
# that computes while the cores of this machine are free for the network.
COMPUTE_S = 0.3
WARM_STEPS = 1
STEPS = 4
# MXNet divides larger tensors evenly among all servers, smaller ones go to one server each. Its default of a million
# elements would leave half of the servers without a layer; this one is the best for the servers.
BIGARRAY_BOUND = 1000

# ---- Who takes part ----

WORKERS = [1, 2, 4, 8]
RING = "ringcore"
# How many servers there are for so many workers. Every worker and every server is a machine.
_SHARES = {
    "1 server": lambda _: 1,
    "1:1 servers": lambda workers: workers,
    "2:1 servers": lambda workers: 2 * workers,
}
# System -> that number: ringcore's rings, MXNet's servers, and ringcore's servers.
SERVERS = {RING: lambda _: 0, **_SHARES, **{f"{RING}, {name}": number for name, number in _SHARES.items()}}


def is_ours(system: str) -> bool:
    """Whether workers, and servers if there are any, are ringcore's."""
    return system.startswith(RING)
