"""A rank's side of the meeting: it posts its contact at the rendezvous and is told everybody's."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from ringcore import _native
from ringcore._errors import BootstrapError
from ringcore.bootstrap.auth import (
    RENDEZVOUS,
    ConnectionClosedError,
    Hello,
    Key,
    TurnedAwayError,
    authenticate,
    key_of_round,
    receive_exactly,
    receive_key,
    send_all,
    until_let_in,
)
from ringcore.bootstrap.contacts import (
    ASKED,
    HEADER,
    MAX_CONTACT_BYTES,
    RANK,
    SERVER,
    are_handed,
    decode_answer,
    encode,
    headers,
    is_genuine,
)
from ringcore.bootstrap.sockets import RanksMissingError, dial, round_trip_s
from ringcore.bootstrap.spread import Spread, listen_for_table
from ringcore.environment.private_folder import peer_uid


def meet(
    address: str, key: Key | None, contact: dict[str, Any], deadline: float
) -> tuple[int, Key, list[dict[str, Any]]]:
    """Post this rank's contact.

    Args:
        address: Of the server.
        key: The job's key; None where the server gives it (a Unix socket of this user).
        contact: See `contacts`.
        deadline: By `time.monotonic()`.

    Returns:
        The epoch, the key of this round, and the contacts of all ranks.

    Raises:
        RanksMissingError: The server cannot be reached, or not all ranks came to it.
        BootstrapError: It does not know the key, or says that the job cannot start.
    """
    with contextlib.ExitStack() as stack:
        listener = None
        if contact["size"] > _native.DIRECT_MEMBERS and contact.get("tcp"):
            listener = stack.enter_context(listen_for_table(contact))
            contact = {**contact, "table_port": listener.getsockname()[1]}
        length = len(encode(contact))
        if length > MAX_CONTACT_BYTES:
            raise BootstrapError(
                f"what rank {contact['rank']} has to tell the others has {length} bytes, but {MAX_CONTACT_BYTES} "
                "are allowed; choose some of its addresses with --network (RINGCORE_NETWORK)"
            )
        here = f"rank {contact['rank']} on {contact.get('host')} at the rendezvous {address}"
        try:
            connection, secret, key = until_let_in(lambda: _enter(address, key, contact["rank"], deadline), deadline)
        except RanksMissingError:
            raise
        except BootstrapError as error:
            raise BootstrapError(f"{here}: {error}") from error
        stack.enter_context(connection)
        if "round_trip_s" in contact:
            contact = {**contact, "round_trip_s": round_trip_s(connection)}
        posted = encode(contact)
        data = _ask(connection, headers(posted, RANK, [secret])[0] + posted, secret, deadline, here)
        answer = decode_answer(data)
        if "error" in answer:
            kind = RanksMissingError if "missing" in answer else BootstrapError
            raise kind(f"the job cannot start: {answer['error']}")
        # Whoever is still in another round, of this job or of one before it, has another key.
        epoch, key = int(answer["epoch"]), key_of_round(key, answer["round"])
        spread = Spread(contact["rank"], contact["size"], epoch, key, deadline)
        if listener is not None and "table_sha256" in answer:
            handed = spread.take(listener, answer["table_sha256"])
            data = handed or _ask(connection, ASKED, secret, deadline, here)
            answer = decode_answer(data)
    contacts: list[dict[str, Any]] = answer["contacts"]
    if are_handed(contacts):
        spread.hand_on(data, contacts)
    return epoch, key, contacts


def _ask(connection: socket.socket, message: bytes, secret: bytes, deadline: float, here: str) -> bytes:
    """What the server says to this message."""
    try:
        send_all(connection, message, deadline)
        # The server itself says which ranks are missing, a little after this rank's patience ends.
        patience = deadline + 2.0
        header = receive_exactly(connection, HEADER.size, patience)
        length, _ = HEADER.unpack(header)
        data = receive_exactly(connection, length, patience)
    except BootstrapError as error:
        raise BootstrapError(
            f"{here} was not told where the others are: {error}; look at what rank 0 (or the launcher) says"
        ) from error
    if not is_genuine(header, data, SERVER, secret):
        raise BootstrapError(
            f"{here}: what it answered was changed on its way: something between the two hosts changes what they send"
        )
    return data


def _enter(address: str, key: Key | None, rank: int, deadline: float) -> tuple[socket.socket, bytes, Key]:
    """A connection to the server that is authenticated, its secret, and the key that this took."""
    connection = dial(address, deadline)
    try:
        if connection.family == socket.AF_UNIX:
            if peer_uid(connection) != os.getuid():
                raise BootstrapError(f"the rendezvous socket {address} belongs to another user")
            key = _take_key(connection, deadline)
        if key is None:
            raise BootstrapError(f"no key for the rendezvous at {address}; set RINGCORE_KEY_FILE")
        secret = authenticate(connection, key, Hello(RENDEZVOUS, 0, rank, 0), deadline)
    except BaseException:
        connection.close()
        raise
    return connection, secret, key


def _take_key(connection: socket.socket, deadline: float) -> Key:
    try:
        return receive_key(connection, deadline)
    except ConnectionClosedError as error:
        raise TurnedAwayError(f"the rendezvous closes connections at once: {error}") from error
