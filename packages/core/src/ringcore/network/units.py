"""How rates, sizes, times, prices and ranks are written: `100gbit`, `100M`, `5us`, `0.02/GB`, `ranks 0-3`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ringcore._errors import InvalidArgument

_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def _parts(text: str, units: dict[str, float], accepted: str) -> tuple[float, float]:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)([a-z]*)", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in units or math.isinf(float(match[1])):
        raise InvalidArgument(f"{text!r} was given, but accepted is {accepted}")
    return float(match[1]), units[match[2]]


def parse_rate(text: str, accepted: str = "a rate like 10gbit or 2.5mbit") -> float:
    """Bits a second: `100gbit`.

    Args:
        text: What was written.
        accepted: What an error says instead.

    Raises:
        InvalidArgument: It is none.
    """
    value, unit = _parts(text, _BITS, accepted)
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
    value, unit = _parts(text, units, "a size like 4096, 100M (of 1000) or 64Mi (of 1024)")
    return round(value * unit)


def parse_price(text: str) -> float:
    """Money for 10^9 bytes: `0.02/GB`.

    Raises:
        InvalidArgument: It is none.
    """
    value, slash, unit = text.partition("/")
    accepted = "a price like 0.02/GB, of whatever money"
    if not slash or unit.strip().lower() != "gb":
        raise InvalidArgument(f"{text!r} was given, but accepted is {accepted}")
    return _parts(value, {"": 1.0}, accepted)[0]


def price_text(per_gb: float) -> str:
    """As `parse_price` reads it, with four digits."""
    return f"{_plain(per_gb)}/GB"


def rate_text(bits_per_s: float) -> str:
    """As `parse_rate` reads it, with four digits."""
    unit = next((name for name in ("gbit", "mbit", "kbit") if bits_per_s >= _BITS[name]), "bit")
    return f"{_plain(bits_per_s / _BITS[unit])}{unit}"


def seconds_text(seconds: float) -> str:
    """As `parse_seconds` reads it, with four digits."""
    unit = next((name for name in ("s", "ms", "us") if seconds * _PER_SECOND[name] >= 1), "ns")
    return f"{_plain(seconds * _PER_SECOND[unit])}{unit}"


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in short: `ranks 0-3, 6`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join('-'.join(map(str, run)) for run in runs)}"


def _plain(value: float) -> str:
    """Four digits, without an exponent."""
    return f"{float(f'{value:.4g}'):f}".rstrip("0").rstrip(".")
