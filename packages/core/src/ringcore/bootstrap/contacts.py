"""What a rank tells about itself when the ranks meet, and how it is sent: a length (4 bytes, little-endian) and JSON.

It comes from a process that knows the job's key. Even so its size, depth and types are checked, so that one broken rank
is refused and does not break the others.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from ringcore._errors import BootstrapError

LENGTH = struct.Struct("<I")
MAX_CONTACT_BYTES = 64 * 1024
_MAX_COUNT = 1 << 31
_MAX_SECONDS = 1e9


class ContactError(BootstrapError):
    """What a rank said of itself cannot be understood."""


def frame(message: Mapping[str, Any]) -> bytes:
    """A message with its length."""
    data = json.dumps(message).encode()
    return LENGTH.pack(len(data)) + data


def _is_count(value: Any) -> bool:
    return type(value) is int and -_MAX_COUNT < value < _MAX_COUNT


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_seconds(value: Any) -> bool:
    # Not true of NaN; and a whole number of any size can be compared, though not converted.
    return type(value) in (int, float) and 0 <= value <= _MAX_SECONDS


def _is_endpoint(value: Any) -> bool:
    kinds = (_is_text, _is_text, _is_count, _is_count, _is_count)
    return isinstance(value, list) and len(value) == len(kinds) and all(k(v) for k, v in zip(kinds, value, strict=True))


def _list_of(is_item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_item, value))


def _or_none(is_value: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_value(value)


_REQUIRED: dict[str, Callable[[Any], bool]] = {
    "rank": _is_count,
    "size": _is_count,
    "version": _is_text,
    "start_timeout_s": _is_seconds,
}
_OPTIONAL: dict[str, Callable[[Any], bool]] = {
    "local_rank": _or_none(_is_count),
    "job": _or_none(_is_text),
    "unix": _or_none(_is_text),
    "host": _is_text,
    "addresses": _list_of(_is_text),
    "tcp": _list_of(_is_endpoint),
    "encryption": _is_text,
    "no_tls": _or_none(_is_text),
}


def parse_contact(data: bytes) -> dict[str, Any]:
    """Read a contact.

    Raises:
        ContactError: It is none; the message says why.
    """
    try:
        contact = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ContactError(f"it is no JSON ({error})") from None
    if not isinstance(contact, dict):
        raise ContactError(f"it is {type(contact).__name__} instead of an object")
    missing = [name for name in _REQUIRED if name not in contact]
    if missing:
        raise ContactError(f"it has no {missing[0]!r}")
    for name, value in contact.items():
        fits = _REQUIRED.get(name) or _OPTIONAL.get(name)
        if fits is None:
            raise ContactError(f"nothing in it is called {name[:40]!r}")
        if not fits(value):
            raise ContactError(f"its {name!r} is none")
    return contact
