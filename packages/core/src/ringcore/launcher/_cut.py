"""Cuts a traceback to the lines that help whoever wrote the script: what goes first are frames inside of ringcore."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence

_FRAME = re.compile(r'  File "(.*)", line \d+')
# Where the packages lie that this one was installed with: a folder of the user's may be called ringcore, too.
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_INSTALLED = rf"(?:{re.escape(_HERE)}|.*/(?:site|dist)-packages|.*/packages/[a-z]+/src)"
_RINGCORE = re.compile(rf"{_INSTALLED}/(?:ringcore(?:_[a-z]+)?|horovod)/")
# Other libraries, Python's own, and what has no file.
_LIBRARY = re.compile(r".*/(?:site|dist)-packages/|.*/lib/python3[^/]*/|<frozen ")


@dataclasses.dataclass(frozen=True)
class _Unit:
    """Lines that are kept together, or left out together: those of a frame, or one of another kind.

    Attributes:
        lines: Of the traceback.
        file: Of a frame.
    """

    lines: tuple[str, ...]
    file: str | None


def shorten(lines: list[str], limit: int) -> list[str]:
    """Cut a traceback, and say in place of each gap how many lines are missing there.

    What stays in any case are its first line, the error text at its end, and the frame that is the script's own, as far
    as the limit has room for them.

    Args:
        lines: Of the traceback, or of whatever else a rank has said.
        limit: How many may be left.
    """
    if len(lines) <= limit:
        return lines
    lines = [line for line in lines if line.strip("~^ ")]  # without what points at parts of the line before
    if len(lines) <= limit:
        return lines
    units = list(_units(lines))
    kept: set[int] = set()
    for index in _essential(units):
        if len(_rendered(units, kept | {index})) <= limit:
            kept.add(index)
    for indices in _rest(units):
        for index in indices:
            if len(_rendered(units, kept | {index})) > limit:
                break
            kept.add(index)
    return _rendered(units, kept)


def is_cut(lines: list[str], limit: int) -> bool:
    """Whether `shorten` leaves out anything that says more than where in a line something is."""
    return len([line for line in lines if line.strip("~^ ")]) > limit


def _units(lines: Sequence[str]) -> Iterator[_Unit]:
    index = 0
    while index < len(lines):
        match = _FRAME.match(lines[index])
        end = index + 1
        while match and end < len(lines) and lines[end].startswith("    "):
            end += 1
        yield _Unit(tuple(lines[index:end]), match[1] if match else None)
        index = end


def _essential(units: Sequence[_Unit]) -> Iterator[int]:
    """Indices of the units that are to stay, as far as there is room for them: the first one needs it most."""
    outside = list(_outside(units))
    own = [index for index in outside if not _LIBRARY.match(units[index].file or "")]
    error = range(max((index + 1 for index, unit in enumerate(units) if unit.file is not None), default=1), len(units))
    yield 0
    yield from error[:1]
    yield from (own or outside)[-1:]
    yield from reversed(error)
    yield from outside[-1:]


def _rest(units: Sequence[_Unit]) -> Iterator[Iterator[int]]:
    """Indices of all, from the end: those outside of ringcore, then those inside of it."""
    yield reversed(list(_outside(units)))
    yield reversed(range(len(units)))


def _outside(units: Sequence[_Unit]) -> Iterator[int]:
    return (index for index, unit in enumerate(units) if unit.file is not None and not _RINGCORE.match(unit.file))


def _rendered(units: Sequence[_Unit], kept: set[int]) -> list[str]:
    lines: list[str] = []
    missing = 0
    for index, unit in enumerate([*units, None]):
        if unit is not None and index not in kept:
            missing += len(unit.lines)
            continue
        if missing:
            lines.append(f"  ... {missing} lines left out")
        missing = 0
        lines += unit.lines if unit is not None else ()
    return lines
