"""What a process listens on, as the kernel tells."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path

from support.processes import descendants

_TCP_LISTEN = "0A"
_UNIX_LISTEN = 0x10000  # SO_ACCEPTCON


def listening(pid: int) -> list[tuple[str, int] | str]:
    """The addresses that a process listens on: (host, port) for TCP, paths of Unix sockets ("\\0..." if abstract)."""
    inodes = set(_socket_inodes(pid))
    found: list[tuple[str, int] | str] = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == _TCP_LISTEN and words[9] in inodes:
            host, port = words[1].split(":")
            found.append((socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)))
    for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == _TCP_LISTEN and words[9] in inodes:
            found.append((f"[{words[1].split(':')[0]}]", int(words[1].split(":")[1], 16)))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[3], 16) & _UNIX_LISTEN and words[6] in inodes and len(words) > 7:
            found.append(re.sub("^@", "\0", words[7]))
    return found


def listening_below(pid: int) -> set[tuple[int, tuple[str, int] | str]]:
    """A process, or one that comes from it, with an address that it listens on."""
    found: set[tuple[int, tuple[str, int] | str]] = set()
    for one in descendants(pid):
        with contextlib.suppress(OSError):  # It has ended.
            found.update((one, address) for address in listening(one))
    return found


def connect(address: tuple[str, int] | str) -> socket.socket:
    """Connect to one of them."""
    connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, socket.SOCK_STREAM)
    connection.settimeout(5)
    try:
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def sockets_of(pid: int) -> int:
    """How many sockets a process has, of whatever kind."""
    return len(_socket_inodes(pid))


def _socket_inodes(pid: int) -> list[str]:
    inodes = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path))
        except FileNotFoundError:
            continue  # closed meanwhile
        if match:
            inodes.append(match[1])
    return inodes
