"""Messages to and from a board: length, seal and JSON, as where ranks meet.

The seal also covers which message of its connection it is.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from ringcore._errors import BootstrapError
from ringcore.bootstrap.auth import receive_exactly, send_all
from ringcore.bootstrap.contacts import HEADER, encode, headers, is_genuine

_MAX_BYTES = 1 << 20
# A message that has begun comes, or is taken, within this.
MESSAGE_S = 10.0


class SealedConnection:
    """One end of an authenticated connection: messages in turn, numbered from 0 in each direction.

    Args:
        connection: To the other end.
        secret: What only the two ends know.
        own: Who this end is, as its seals say.
        other: Who the other one is.
    """

    def __init__(self, connection: socket.socket, secret: bytes, own: bytes, other: bytes) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.connection = connection
        self._secret = secret
        self._own, self._other = own, other
        self._sent = self._received = 0

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            BootstrapError: It is too long, or the other end is gone.
        """
        data = encode(message)
        if len(data) > _MAX_BYTES:
            raise BootstrapError(f"a message of {len(data)} bytes is too long for a board: {_MAX_BYTES} are allowed")
        sender = self._own + str(self._sent).encode()
        self._sent += 1
        send_all(self.connection, headers(data, sender, [self._secret])[0] + data, time.monotonic() + MESSAGE_S)

    def receive(self, limit_s: float = MESSAGE_S) -> Any:
        """Wait for the next message.

        Raises:
            BootstrapError: It did not come within the limit, or was changed on its way, or the other end is gone.
        """
        deadline = time.monotonic() + limit_s
        header = receive_exactly(self.connection, HEADER.size, deadline)
        length, _ = HEADER.unpack(header)
        if length > _MAX_BYTES:
            raise BootstrapError(f"a message of {length} bytes came from a board, or to it: {_MAX_BYTES} are allowed")
        data = receive_exactly(self.connection, length, deadline)
        sender = self._other + str(self._received).encode()
        self._received += 1
        if not is_genuine(header, data, sender, self._secret):
            raise BootstrapError("what came from a board, or to it, was changed on its way")
        return json.loads(data)
