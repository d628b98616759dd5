"""What lies between the hosts of a simulated job, as it is written: `100gbit,10us`."""

from __future__ import annotations

from dataclasses import dataclass

from ringcore._errors import InvalidArgument
from ringcore.network.units import parse_rate, parse_seconds


@dataclass(frozen=True)
class Network:
    """What lies between hosts: a port of each of them to one switch that holds nobody up.

    Attributes:
        bits_per_s: What a port carries each way.
        latency_s: From the last byte's departure to its arrival.
        message_s: What a message costs the processor of each end; the default is that of TCP.
    """

    bits_per_s: float
    latency_s: float
    message_s: float = 2.8e-6

    def __post_init__(self) -> None:
        if self.bits_per_s <= 0 or self.latency_s < 0 or self.message_s < 0:
            raise InvalidArgument(f"{self} is no network: its rate must be positive, and its times not negative")

    @classmethod
    def parse(cls, text: str) -> Network:
        """Read `RATE,LATENCY`, as in `100gbit,10us`; a third part is the cost of a message.

        Raises:
            InvalidArgument: It is none.
        """
        accepted = "a rate and a latency like 100gbit,10us"
        rate, *times = text.split(",")
        if len(times) not in (1, 2):
            raise InvalidArgument(f"the network is {text!r}, but accepted is {accepted}")
        return cls(parse_rate(rate, accepted), *map(parse_seconds, times))
