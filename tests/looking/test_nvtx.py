"""Operations as ranges of NVTX, by a double of its library."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.rank import caught

DOUBLE = """
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
static uint64_t count;
static FILE* file(void) {
  static FILE* opened;
  char name[64];
  snprintf(name, sizeof(name), "ranges.%d", (int)getpid());
  if (opened == 0) opened = fopen(name, "w");
  setvbuf(opened, 0, _IONBF, 0);
  return opened;
}
uint64_t nvtxRangeStartA(const char* message) { fprintf(file(), "%d+%s\\n", (int)++count, message); return count; }
void nvtxRangeEnd(uint64_t range) { fprintf(file(), "%d-\\n", (int)range); }
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    source, made = tmp_path / "nvtx.c", tmp_path / "libnvtx.so"
    source.write_text(DOUBLE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


def marks() -> list[str]:
    ringcore.init()
    ringcore.allreduce_(np.ones(2), name="in place")
    ringcore.allreduce(np.ones(2), name="blocking")
    handle = ringcore.allreduce_async(np.ones(2), name="beside", op=ringcore.Sum)
    ringcore.broadcast(np.ones(2), 0, name="while")
    found = [float(ringcore.synchronize(handle)[0])]
    caught(ringcore.allreduce, np.array(["text"]), name="refused")
    ringcore.shutdown()
    return [*found, Path(f"ranges.{os.getpid()}").read_text()]


def test_a_range_ends_when_the_program_has_the_result(tmp_path: Path, library: Path) -> None:
    env = {"RINGCORE_NVTX": "1", "RINGCORE_NVTX_LIBRARY": str(library)}
    for total, text in ranks.run(marks, 2, tmp_path, env=env):
        assert total == 2.0
        lines = [line for line in text.splitlines() if "noname" not in line]
        begun = {line.partition("+")[2]: int(line.partition("+")[0]) for line in lines if "+" in line}
        wanted = ["ringcore allreduce in place", "ringcore allreduce blocking", "ringcore allreduce beside"]
        assert list(begun)[:4] == [*wanted, "ringcore broadcast while"], text
        ends = {line: place for place, line in enumerate(text.splitlines())}
        assert all(f"{number}-" in ends for number in begun.values()), text
        beside, other = begun["ringcore allreduce beside"], begun["ringcore broadcast while"]
        assert ends[f"{other}-"] < ends[f"{beside}-"]


def has_none() -> dict:
    return caught(ringcore.init)


def test_without_the_library_it_says_which_one(tmp_path: Path) -> None:
    env = {"RINGCORE_NVTX": "1", "RINGCORE_NVTX_LIBRARY": "/nowhere/libnvToolsExt.so.1"}
    (found,) = ranks.run(has_none, 1, tmp_path, env=env)
    assert found["type"] == "InvalidArgument"
    assert "/nowhere/libnvToolsExt.so.1" in found["message"] and "Remedy: " in found["message"]
