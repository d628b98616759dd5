"""Plants mistakes in a copy of the engine, one at a time, and sees the tests go red.

    python native/tests/mutants.py BUILD_FOLDER [NAME ...]

A mutant that survives is a hole in the tests. All tests are run on each, fewer fault schedules than elsewhere; one
that hangs counts as caught, because the tests would not pass, and is told apart: a busy machine can look like it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mistakes import MUTANTS

NATIVE = Path(__file__).parents[1]
BENCHMARKS = NATIVE.parent / "benchmarks" / "native"  # a part of them is tested with the engine
LIMIT_S = 300
JOBS = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2")


def copy_changed(original: Path, copy: Path) -> None:
    """Make `copy` equal to `original`; what was different gets a new time, so that it is compiled again."""
    kept = {path.relative_to(original) for path in original.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    for path in kept:
        target = copy / path
        content = (original / path).read_bytes()
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for path in list(copy.rglob("*")):
        if path.is_file() and path.relative_to(copy) not in kept:
            path.unlink()


def build(source: Path, folder: Path) -> None:
    """Compile the copy, as far as it has changed."""
    configure = ["cmake", "-S", str(source), "-B", str(folder), "-G", "Ninja", "-DRINGCORE_BUILD_TESTS=ON"]
    # What a mistake leaves unused is no error here.
    subprocess.run([*configure, "-DCMAKE_CXX_FLAGS=-w"], check=True, capture_output=True)
    done = subprocess.run(["cmake", "--build", str(folder), f"-j{JOBS}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout)


def verdict(folder: Path) -> str:
    """What the tests say: "passes", "fails", or "hangs"."""
    command = [str(folder / "ringcore_tests"), "--abort-after=1"]
    environment = {**os.environ, "RINGCORE_SIMULATION_SEEDS": "2000"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return "hangs"
    return "passes" if done.returncode == 0 else "fails"


def main() -> None:
    """Try all mutants, or those named."""
    folder = Path(sys.argv[1]).resolve()
    wanted = sys.argv[2:]
    source = folder / "native"
    copy_changed(NATIVE, source)
    copy_changed(BENCHMARKS, folder / "benchmarks" / "native")
    build(source, folder / "build")
    if (unharmed := verdict(folder / "build")) != "passes":
        raise SystemExit(f"without any mutant the test program {unharmed}")
    survivors = []
    for mutant in MUTANTS:
        if wanted and mutant.name not in wanted:
            continue
        path = source / mutant.file
        text = path.read_text()
        if text.count(mutant.right) != 1:
            raise SystemExit(f"{mutant.name}: what it changes stands {text.count(mutant.right)} times in {mutant.file}")
        path.write_text(text.replace(mutant.right, mutant.wrong))
        build(source, folder / "build")
        seen = verdict(folder / "build")
        path.write_text(text)
        print(f"{'SURVIVED' if seen == 'passes' else seen:8}  {mutant.name}", flush=True)
        if seen == "passes":
            survivors.append(mutant.name)
    if survivors:
        raise SystemExit(f"{len(survivors)} of {len(MUTANTS)} mutants survived")
    print(f"{len(wanted or MUTANTS)} of {len(wanted or MUTANTS)} mutants caught")


if __name__ == "__main__":
    main()
