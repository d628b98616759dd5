"""How networks, sizes and times are written: `100gbit,10us`, `100M`, `5us`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ringcore._errors import InvalidArgument

_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def _parts(text: str, units: dict[str, float], accepted: str) -> tuple[float, float]:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)([a-z]*)", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in units:
        raise InvalidArgument(f"{text!r} was given, but accepted is {accepted}")
    return float(match[1]), units[match[2]]


def _number(text: str, units: dict[str, float], accepted: str) -> float:
    value, unit = _parts(text, units, accepted)
    return value * unit


def parse_seconds(text: str) -> float:
    """A time: `10us`, `1.5ms`.

    Raises:
        InvalidArgument: It is none.
    """
    value, unit = _parts(text, _PER_SECOND, "a time like 10us, 1.5ms or 1s")
    return value / unit  # the nearest number to what was written


def parse_bytes(text: str) -> int:
    """A size: `100M`, `64Mi`, `4096`.

    Raises:
        InvalidArgument: It is none.
    """
    units = {unit + ending: float(size) for unit, size in _BYTES.items() for ending in ("", "b")}
    return round(_number(text, units, "a size like 4096, 100M (of 1000) or 64Mi (of 1024)"))


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
        return cls(_number(rate, _BITS, accepted), *map(parse_seconds, times))
