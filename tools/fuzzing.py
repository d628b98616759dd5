"""What `nox -s fuzz` does: builds the fuzzers, lets each run for a while, and writes down what was run and reached."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

import nox

from tools.engine import NATIVE, build_native
from tools.environments import BUILD, ROOT

RESULT = ROOT / "benchmarks" / "results" / "fuzz.json"
_CORPUS = {"native": NATIVE / "fuzz" / "corpus", "python": ROOT / "tests" / "fuzz" / "corpus"}
# What each target of the engine is about: of these files it says how much was reached.
_SOURCES = {
    "records": ["engine/record.cpp"],
    "tree": ["engine/tree_items.cpp", "engine/agreement_tree.cpp"],
    "view_messages": ["engine/view.cpp"],
    "view_change": ["engine/view_change.cpp", "engine/view.cpp"],
    "engine": [
        *("engine/messages.cpp", "engine/negotiation.cpp", "engine/decisions.cpp"),
        *("engine/comparisons.cpp", "engine/record.cpp"),
    ],
    "transfers": ["carriers/plans/executor.cpp", "carriers/plans/transfers.cpp", "carriers/plans/receiving.cpp"],
    "stripes": ["transport/tcp/stripes.cpp", "transport/tcp/connection.cpp"],
    "secure_stream": ["transport/secure_stream.cpp"],
    "segment": ["transport/segment.cpp", "transport/arena_view.cpp"],
    "rings": ["transport/ring.cpp"],
    "mpi": ["transport/mpi/link.cpp"],
    "plans": ["plan/planner.cpp", "plan/ways.cpp", "plan/cost.cpp"],
    "plan_forms": ["plan/forms/text.cpp", "plan/forms/binary.cpp", "plan/verifier/shape.cpp"],
    "aggregation": ["aggregation/aggregation.cpp", "aggregation/session.cpp", "aggregation/worker.cpp"],
}


def run_fuzzers(session: nox.Session) -> None:
    """Run all targets, or those named, each for some seconds."""
    parser = argparse.ArgumentParser(prog="nox -s fuzz --")
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--keep", action="store_true", help="add to the corpora what reaches more")
    parser.add_argument("targets", nargs="*", help="native/NAME or python/NAME; all, if none is named")
    wanted = parser.parse_args(session.posargs)
    program = _build(session)
    # The C++ tests see to it that every target has a corpus.
    native = {f"native/{path.name}": [str(program)] for path in sorted(_CORPUS["native"].iterdir())}
    drive = [f"{session.bin}/python", str(ROOT / "tests" / "fuzz" / "drive.py")]
    python = {f"python/{path.name}": [*drive, path.name] for path in sorted(_CORPUS["python"].iterdir())}
    rows = {}
    for name, command in (native | python).items():
        if not wanted.targets or name in wanted.targets:
            rows[name] = _run(session, name, command, wanted.seconds, program, keep=wanted.keep)
    _write(rows)


def clang(session: nox.Session, tool: str) -> str:
    """The newest clang's program of this name; the engine needs 16 or newer."""
    for version in range(30, 15, -1):
        found = shutil.which(f"{tool}-{version}")
        if found is not None:
            return found
    session.error(f"there is no {tool}-16 or newer here; with apt: clang-19, libclang-rt-19-dev and llvm-19")


def _build(session: nox.Session) -> Path:
    # Warnings are the other builds' business: gcc's and clang's differ.
    options = ["-DRINGCORE_BUILD_FUZZERS=ON", "-DRINGCORE_SANITIZE=address,undefined"]
    options.append("-DCMAKE_COMPILE_WARNING_AS_ERROR=OFF")
    compiler = f"-DCMAKE_CXX_COMPILER={clang(session, 'clang++')}"
    return build_native(session, "fuzz", compiler, *options, target="ringcore_fuzz") / "ringcore_fuzz"


def _run(
    session: nox.Session, name: str, command: list[str], seconds: int, program: Path, *, keep: bool
) -> dict[str, object]:
    kind, target = name.split("/")
    folder = BUILD / "fuzz" / kind / target
    found = folder / "corpus"
    found.mkdir(parents=True, exist_ok=True)
    kept = _CORPUS[kind] / target
    kept.mkdir(parents=True, exist_ok=True)
    profile = folder / "profile"
    environ = {
        **os.environ,
        "RINGCORE_FUZZ_TARGET": target,
        "LLVM_PROFILE_FILE": str(profile),
        # What MPI may still write to is left to it on purpose.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    limits = [
        f"-max_total_time={seconds}",
        "-timeout=20",
        "-rss_limit_mb=3000",
        "-max_len=4096",
        "-print_final_stats=1",
    ]
    before = _cpu_seconds()
    session.log(f"{name}: {seconds} s")
    done = subprocess.run(
        [*command, *limits, f"-artifact_prefix={folder}/", str(found), str(kept)],
        env=environ, cwd=folder, capture_output=True, text=True, check=False, errors="replace",
    )  # fmt: skip
    if done.returncode != 0:
        session.error(f"{name} has found something; what it was given lies in {folder}:\n{done.stderr[-6000:]}")
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr) or re.search(r"Done (\d+) ", done.stderr)
    row: dict[str, object] = {
        "executions": int(runs[1]) if runs else 0,
        "cpu_minutes": round((_cpu_seconds() - before) / 60, 2),
    }
    if kind == "native":
        row["lines_reached"] = _lines_reached(session, program, profile, _SOURCES[target])
    if keep:
        merge = [*command, "-merge=1", "-max_len=512", str(kept), str(found)]
        subprocess.run(merge, env=environ, cwd=folder, capture_output=True, check=True)
    return row


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _lines_reached(session: nox.Session, program: Path, profile: Path, sources: list[str]) -> dict[str, str]:
    """By source file, the part of its lines that the last run has reached."""
    data = profile.with_suffix(".data")
    subprocess.run([clang(session, "llvm-profdata"), "merge", "-o", str(data), str(profile)], check=True)
    export = [clang(session, "llvm-cov"), "export", "-summary-only", f"-instr-profile={data}", str(program)]
    report = json.loads(
        subprocess.run(
            [*export, *(str(NATIVE / source) for source in sources)], capture_output=True, text=True, check=True
        ).stdout
    )
    files = {Path(file["filename"]): file["summary"]["lines"] for file in report["data"][0]["files"]}
    return {
        str(path.relative_to(NATIVE)): f"{lines['covered']} of {lines['count']}"
        for path, lines in sorted(files.items())
    }


def _write(rows: dict[str, dict[str, object]]) -> None:
    """Executions and minutes add up over all runs that were ever written down; lines are those of the last."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name, row in rows.items():
        before = known.get(name, {})
        for counted in ("executions", "cpu_minutes"):
            row[counted] = round(before.get(counted, 0) + row[counted], 2)
        known[name] = row
    RESULT.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
