"""What a rank tells about itself when the ranks meet, and how it is sent: length (4 bytes, little-endian), seal, JSON.

A seal is an HMAC under the secret of the connection, over who sends and what: nobody on the way can change a contact or
the table of all of them, and what was recorded fits no other connection. Each side sends one message;
the answer is packed. Among many it is first the digest of the table, see `spread`.

It comes from a process that knows the job's key. Even so its size, depth and types are checked, so that one broken rank
is refused and does not break the others.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ringcore._errors import BootstrapError

HEADER = struct.Struct("<I32s")
RANK, SERVER = b"rank", b"server"
ASKED = b"?"  # A rank that has been told the table's digest wants the table.
MAX_CONTACT_BYTES = 64 * 1024
_MAX_COUNT = 1 << 31
_MAX_SECONDS = 1e9


class ContactError(BootstrapError):
    """What a rank said of itself cannot be understood."""


def encode(message: Mapping[str, Any]) -> bytes:
    """A message without its header."""
    return json.dumps(message).encode()


def encode_answer(message: Mapping[str, Any]) -> bytes:
    """What the rendezvous tells: the table of all ranks, whose entries are much alike, so it is packed."""
    return zlib.compress(encode(message))


def decode_answer(data: bytes) -> dict[str, Any]:
    """Read what the rendezvous tells, after `is_genuine`."""
    answer: dict[str, Any] = json.loads(zlib.decompress(data))
    return answer


def are_handed(contacts: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the table goes from rank to rank: all of them listen for it. See `spread`."""
    return all("table_port" in contact and contact.get("tcp") for contact in contacts)


def headers(data: bytes, sender: bytes, secrets: Iterable[bytes]) -> list[bytes]:
    """What goes before a message on each of several connections.

    Args:
        data: The message.
        sender: `RANK` or `SERVER`.
        secrets: One of each connection.
    """
    digest = hashlib.sha256(data).digest()
    return [HEADER.pack(len(data), hmac.digest(secret, sender + digest, "sha256")) for secret in secrets]


def is_genuine(header: bytes, data: bytes, sender: bytes, secret: bytes) -> bool:
    """Whether a message is what its sender said on this connection."""
    return hmac.compare_digest(header, headers(data, sender, [secret])[0])


def _is_count(value: Any) -> bool:
    return type(value) is int and -_MAX_COUNT < value < _MAX_COUNT


def _is_port(value: Any) -> bool:
    return _is_count(value) and 0 < value < 1 << 16


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
    "domain": _is_text,
    "epoch": _is_count,
    "serves": lambda value: isinstance(value, bool),
    "host": _is_text,
    "addresses": _list_of(_is_text),
    "tcp": _list_of(_is_endpoint),
    "round_trip_s": _is_seconds,
    "bbr": lambda value: isinstance(value, bool),
    "table_port": _is_port,
    "encryption": _is_text,
    "no_tls": _or_none(_is_text),
    "topology": _is_text,
    "topology_wrong": _is_text,
    "switch": _is_text,
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
