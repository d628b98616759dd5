"""Loses a part of the UDP packets that a network device of this namespace receives, until standard input ends.

    python lossy.py DEVICE PART

A program of eight instructions for the kernel's XDP, which any kernel can run on a veth; netem, which would do as well,
is a module that not every machine has. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys

_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]  # the number of the system call
_PROG_LOAD, _LINK_CREATE = 5, 28
_TYPE_XDP, _ATTACH_XDP = 6, 37
_SKB_MODE = 2
_RANDOM = 7  # bpf_get_prandom_u32
_UDP, _PROTOCOL_AT, _HEADERS = 17, 23, 24  # of IPv4 behind Ethernet
_DROP, _PASS = 1, 2


def _instruction(code: int, to: int = 0, of: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, of << 4 | to, offset, value)


def _program(part: float) -> bytes:
    return b"".join(
        [
            _instruction(0x61, 2, 1, 0),  # r2 = where the packet begins
            _instruction(0x61, 3, 1, 4),  # r3 = and ends
            _instruction(0xBF, 4, 2),
            _instruction(0x07, 4, value=_HEADERS),
            _instruction(0x2D, 4, 3, 4),  # too short: pass
            _instruction(0x71, 5, 2, _PROTOCOL_AT),
            _instruction(0x55, 5, offset=2, value=_UDP),  # another one: pass
            _instruction(0x85, value=_RANDOM),
            _instruction(0xA5, 0, offset=2, value=min(int(part * 2**32), 2**31 - 1)),
            _instruction(0xB7, 0, value=_PASS),
            _instruction(0x95),
            _instruction(0xB7, 0, value=_DROP),
            _instruction(0x95),
        ]
    )


def _bpf(command: int, attributes: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(_BPF, command, ctypes.c_char_p(attributes), len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf command {command}: {os.strerror(ctypes.get_errno())}")
    return int(result)


def lose(device: str, part: float) -> int:
    """Begin; until the descriptor that is returned is closed."""
    program = ctypes.create_string_buffer(_program(part), len(_program(part)))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    count = len(program) // 8
    head = struct.pack("<IIQQ", _TYPE_XDP, count, ctypes.addressof(program), ctypes.addressof(licence))
    # Nothing of log, kernel, flags, name and device; then what it will be attached to.
    loaded = _bpf(_PROG_LOAD, head + bytes(4 + 4 + 8 + 4 + 4 + 16 + 4) + struct.pack("<I", _ATTACH_XDP))
    attributes = struct.pack("<IIII", loaded, socket.if_nametoindex(device), _ATTACH_XDP, _SKB_MODE)
    return _bpf(_LINK_CREATE, attributes)


def main() -> None:
    """Say when it has begun, and wait."""
    link = lose(sys.argv[1], float(sys.argv[2]))
    print("ready", flush=True)
    sys.stdin.read()
    os.close(link)


if __name__ == "__main__":
    main()
