"""Threads of a framework that a clock wakes, and that do nothing for the program then.

That all threads of a process wait for each other is seen by their sleep (`native/runtime/sleep.hpp`). A thread that a
clock will wake might do anything, unless it is known by the code that it is in.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from pathlib import Path

from ringcore import _native

_HEADER = struct.Struct("<5s35xQ10xHH")  # magic and class; where sections begin, how long the head of one is, how many
_SECTION = struct.Struct("<4xI16xQQI20x")  # type, offset, bytes, the section that belongs to it
_SYMBOL = struct.Struct("<I4xQQ")  # its name's offset, address, bytes
_ELF64 = b"\x7fELF\x02"
_SYMBOL_TABLE = 2


def add_bystanders(library: str, function: str) -> None:
    """Let threads that are inside a function count as asleep whenever they sleep.

    The function has to be one that calls nothing which others see, and that does not return. Where the library is not
    loaded, or does not tell its functions' names, nothing changes.

    Args:
        library: How its file is called.
        function: As the linker calls it.
    """
    with contextlib.suppress(OSError, ValueError, struct.error):
        base, path = _loaded(library)
        address, size = _find(path, function)
        _native.add_bystanders_code(base + address, base + address + size)


def _loaded(library: str) -> tuple[int, Path]:
    """Where a library begins in memory, and its file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, *_, path = line.split(maxsplit=5)
        if path.endswith(f"/{library}"):
            return int(begin.split("-")[0], 16), Path(path)
    raise ValueError(f"{library} is not loaded")


def _find(path: Path, function: str) -> tuple[int, int]:
    """A function's address and size, as the file counts."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        magic, sections_at, size, count = _HEADER.unpack_from(data)
        if magic != _ELF64:
            raise ValueError(f"{path} is no library of this machine")
        sections = [_SECTION.unpack_from(data, sections_at + size * index) for index in range(count)]
        for kind, begin, length, names in sections:
            if kind == _SYMBOL_TABLE:
                _, names_begin, names_length, _ = sections[names]
                name = _position(data, b"\0" + function.encode() + b"\0", names_begin, names_length) + 1
                symbol = _position(data, struct.pack("<I", name), begin, length, _SYMBOL.size)
                return _SYMBOL.unpack_from(data, begin + symbol)[1:]
    raise ValueError(f"{path} does not name its functions")


def _position(data: mmap.mmap, what: bytes, begin: int, length: int, step: int = 1) -> int:
    """Where something is in a part of a file, from the part's begin: at a multiple of a step."""
    found = data.find(what, begin, begin + length)
    while found >= 0 and (found - begin) % step != 0:
        found = data.find(what, found + 1, begin + length)
    if found < 0:
        raise ValueError("there is none")
    return found - begin
