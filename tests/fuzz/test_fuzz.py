"""Every target over its corpus, in which what once crashed is kept, and over some hundred mutations of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fuzz import targets

CORPUS = Path(__file__).with_name("corpus")
_MUTATIONS = 500
_MOST_BYTES = 1024


def mutated(data: bytes, choose: random.Random, others: list[bytes]) -> bytes:
    """Bytes changed, cut, repeated, or joined with another seed's."""
    changed = bytearray(data)
    for _ in range(choose.randint(1, 4)):
        at = choose.randint(0, len(changed))
        match choose.randint(0, 4):
            case 0:
                changed[at : at + choose.randint(0, 8)] = b""
            case 1:
                changed[at:at] = choose.randbytes(choose.randint(1, 8))
            case 2:
                changed[at : at + 1] = bytes([choose.randint(0, 255)])
            case 3:
                changed += changed[at:]
            case 4:
                other = choose.choice(others)
                changed[at:] = other[choose.randint(0, len(other)) :]
    return bytes(changed[:_MOST_BYTES])


@pytest.mark.parametrize("name", targets.TARGETS)
def test_what_others_have_written_is_refused_and_breaks_nothing(name: str) -> None:
    run = targets.TARGETS[name]
    seeds = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    assert seeds, name
    for seed in seeds:
        run(seed)
    choose = random.Random(name)
    for _ in range(_MUTATIONS):
        data = mutated(choose.choice(seeds), choose, seeds)
        try:
            run(data)
        except BaseException as error:
            raise AssertionError(f"{name} is broken by {data!r}") from error
