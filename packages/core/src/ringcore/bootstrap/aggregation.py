"""What ranks and `ringcore-switch` have alike: the switch's key, and the number of a session."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringcore._errors import BootstrapError
from ringcore.bootstrap.auth import Key
from ringcore.bootstrap.keys import read_key_file, users_key_path
from ringcore.environment.settings import Settings

# host, port, the switch's key, the session, whether sums are of integers, seconds of silence
Aggregation = tuple[str, int, bytes, int, bool, float]
_KEY_BYTES = 16
_SESSION_BYTES = 8


def switch_key(path: str | None) -> bytes:
    """The key of packets, 16 bytes, out of that in a file.

    Args:
        path: Of the file; None is ~/.ringcore/key.

    Raises:
        BootstrapError: It is not there, is not private, or holds no key.
    """
    file = Path(path) if path is not None else users_key_path()
    return hmac.digest(read_key_file(file), b"ringcore switch", "sha256")[:_KEY_BYTES]


def announce_switch(settings: Settings) -> dict[str, Any]:
    """What a rank's contact says of its switch."""
    return {} if settings.switch is None else {"switch": settings.switch_sums}


def check_switch(contacts: Sequence[Mapping[str, Any]]) -> None:
    """Ranks may have different switches, one below the other; but all of them have one, and sum the same.

    Raises:
        BootstrapError: It is not so. On every rank.
    """
    told = [contact.get("switch") for contact in contacts]
    if len(set(told)) <= 1:
        return
    other = next(rank for rank, one in enumerate(told) if one != told[0])
    said = [f"has {one} sums of a switch" if one else "has no switch" for one in (told[0], told[other])]
    raise BootstrapError(
        f"rank 0 {said[0]} and rank {other} {said[1]}. Remedy: set RINGCORE_SWITCH and RINGCORE_SWITCH_SUMS on all "
        "ranks, or on none (ringrun --switch does)"
    )


def aggregation_of(settings: Settings, key: Key, epoch: int) -> Aggregation | None:
    """What this rank's engine is told of the switch; None: it has none.

    Args:
        settings: Of this rank.
        key: The same on all ranks, also on those who join later: no other job has the session that follows from it.
        epoch: Of the meeting in which the engines began.

    Raises:
        BootstrapError: There is no key of the switch, or nothing may go over the network in clear text.
    """
    if settings.switch is None:
        return None
    if settings.encryption == "on":
        raise BootstrapError(
            "a switch adds what it can read: it is sent in clear text, and RINGCORE_ENCRYPTION=on forbids that. "
            "Remedy: leave out RINGCORE_SWITCH, or RINGCORE_ENCRYPTION"
        )
    session = hmac.digest(key, b"switch session %d" % epoch, "sha256")[:_SESSION_BYTES]
    # The lanes' sessions follow on it.
    number = int.from_bytes(session, "little") >> 1
    host, port = settings.switch
    integers = settings.switch_sums == "int32"
    packets = switch_key(settings.switch_key_file or settings.key_file)
    return host, port, packets, number, integers, settings.switch_timeout_s
