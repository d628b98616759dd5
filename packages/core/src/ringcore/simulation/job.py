"""A simulated job, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore.network.cables import Network as Between
from ringcore.network.units import parse_bytes, parse_seconds
from ringcore.simulation.start import Start, start_of
from ringcore.simulation.values import Network

MOST_RANKS = 100_000


@dataclass(frozen=True)
class CollectiveTime:
    """What a collective takes by one algorithm.

    Attributes:
        algorithm: The plan's generator: "ring", "double_tree", ...
        seconds: From the start until the last rank has its result.
        parts: That each block is divided into, to go one behind the other.
        sent_bytes: What a rank sends, at most.
        program_bytes: Memory of a rank's program, at most.
        peers: How many others a rank is connected with for it, at most.
        steps: How many steps were simulated for this.
    """

    algorithm: str
    seconds: float
    parts: int
    sent_bytes: int
    program_bytes: int
    peers: int
    steps: int


@dataclass(frozen=True)
class Agreement:
    """What it takes that all ranks know of all others what they have announced.

    Attributes:
        first_s: Until all know an operation of which they have not heard before.
        again_s: The next time.
        step_s: For the operations of a training step, announced at once.
        step_bytes: What a rank sends for these, at most.
        step_records: And in how many records.
        neighbours: How many others a rank speaks with, at most.
    """

    first_s: float
    again_s: float
    step_s: float
    step_bytes: int
    step_records: int
    neighbours: int


@dataclass(frozen=True)
class Simulation:
    """A job that was simulated.

    Attributes:
        ranks: How many.
        hosts: On how many.
        nbytes: Of the collective.
        collective: Which one.
        network: Between hosts.
        times: By algorithm, the quickest first.
        agreement: Of the ranks.
        start: How long they take to find each other.
    """

    ranks: int
    hosts: int
    nbytes: int
    collective: str
    network: Network
    times: tuple[CollectiveTime, ...]
    agreement: Agreement
    start: Start

    @property
    def best(self) -> CollectiveTime:
        """The quickest."""
        return self.times[0]


def simulate(
    ranks: int,
    *,
    hosts: int | None = None,
    network: str | Network = "100gbit,10us",
    nbytes: int | str = "100M",
    collective: str = "allreduce",
    algorithms: Sequence[str] = (),
    jitter: float | str = 0.0,
    slow: Mapping[int, float] | None = None,
    operations: int = 50,
    seed: int = 1,
) -> Simulation:
    """What a collective and the agreement on it would take in a job that is not there.

    The plans are those that a real job would run, and the ranks agree by the code of a real job; time, processors and
    network are simulated. Without `jitter` and `slow` ranks that do the same are simulated once, which is exact. The
    start is calculated, see `Start`.

    Args:
        ranks: How many.
        hosts: On how many; `None`: one each.
        network: Between hosts: rate and latency.
        nbytes: Of the tensor: a number, or a text like "100M".
        collective: "allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter" or
            "alltoall".
        algorithms: Those to simulate; none: those that are not hopeless.
        jitter: What is sent between hosts arrives up to so much later: seconds, or a text like "20us".
        slow: By host: all that it does takes so many times longer.
        operations: Of a training step, for the agreement.
        seed: Of the jitter.

    Returns:
        What it takes.

    Raises:
        InvalidArgument: There is no such job, algorithm or collective.
    """
    hosts = ranks if hosts is None else hosts
    network = Network.parse(network) if isinstance(network, str) else network
    nbytes = parse_bytes(nbytes) if isinstance(nbytes, str) else nbytes
    jitter = parse_seconds(jitter) if isinstance(jitter, str) else jitter
    slow = dict(slow or {})
    _check(ranks, hosts, collective, slow, operations)
    native = _native.SimulatedNetwork(
        ranks, hosts, network.bits_per_s / 8, network.latency_s, network.message_s, jitter, slow, seed
    )
    times = native.collective(_native.COLLECTIVES[collective], nbytes, list(algorithms))
    return Simulation(
        ranks=ranks,
        hosts=hosts,
        nbytes=nbytes,
        collective=collective,
        network=network,
        times=tuple(_time(each) for each in times),
        agreement=_agreement(native.agreement(operations)),
        start=start_of(ranks, hosts, network),
    )


def collective_times(
    collective: str,
    nbytes: int,
    host_of: Sequence[int],
    network: Between,
    *,
    serving: int = 0,
    message_s: float = Network.message_s,
) -> tuple[CollectiveTime, ...]:
    """What the engine's own plans take where links may differ.

    Args:
        collective: Which one.
        nbytes: Of the tensor.
        host_of: By node: the number of its host.
        network: Between these hosts.
        serving: The last so many nodes are no ranks.
        message_s: What a message costs the processor of each end.

    Returns:
        By algorithm that is not hopeless, the quickest first.
    """
    native = _native.SimulatedNetwork.between(host_of, serving, network, message_s)
    return tuple(_time(each) for each in native.collective(_native.COLLECTIVES[collective], nbytes, []))


def _check(ranks: int, hosts: int, collective: str, slow: Mapping[int, float], operations: int) -> None:
    if not 2 <= ranks <= MOST_RANKS:
        raise InvalidArgument(f"{ranks} ranks were asked for, but 2 to {MOST_RANKS} can be simulated")
    if collective not in _native.COLLECTIVES or collective == "barrier":
        known = ", ".join(name for name in _native.COLLECTIVES if name != "barrier")
        raise InvalidArgument(f"there is no collective {collective!r} to simulate; there are: {known}")
    if operations < 1:
        raise InvalidArgument(f"a step of {operations} operations was asked for, but at least one is simulated")
    for host, factor in slow.items():
        if not 0 <= host < hosts or not factor > 0:
            raise InvalidArgument(f"host {host} cannot be {factor} times slower: hosts are 0 to {hosts - 1}")


def _time(native: _native.CollectiveTime) -> CollectiveTime:
    return CollectiveTime(
        algorithm=native.algorithm,
        seconds=native.seconds,
        parts=native.parts,
        sent_bytes=native.sent_bytes,
        program_bytes=native.program_bytes,
        peers=native.peers,
        steps=round(native.steps),
    )


def _agreement(native: _native.AgreementTime) -> Agreement:
    return Agreement(
        first_s=native.first_s,
        again_s=native.again_s,
        step_s=native.step_s,
        step_bytes=native.step_bytes,
        step_records=native.step_records,
        neighbours=native.neighbours,
    )
