"""What `nox -s fuzz` does: builds the fuzzers, lets each run for a while, and writes down what was run and reached."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import nox

from tools.engine import NATIVE, build_native
from tools.environments import BUILD, ROOT

RESULT = ROOT / "benchmarks" / "results" / "fuzz.json"
_CORPUS = {"native": NATIVE / "fuzz" / "corpus", "python": ROOT / "tests" / "fuzz" / "corpus"}
# The engine's parsers, and what acts on what they have read: of these files it is told how much all targets reach.
_PARSERS = [
    *(f"aggregation/{name}.cpp" for name in ("aggregation", "session", "worker")),
    *(f"carriers/plans/{name}.cpp" for name in ("executor", "receiving", "transfers")),
    *(f"engine/{name}.cpp" for name in ("agreement_tree", "comparisons", "decisions", "messages", "negotiation")),
    *(f"engine/{name}.cpp" for name in ("record", "signatures", "standstill", "tree_items", "view", "view_change")),
    *(f"plan/{name}.cpp" for name in ("cost", "forms/binary", "forms/text", "planner", "verifier/shape", "ways")),
    *(f"transport/{name}.cpp" for name in ("mpi/link", "secure_stream", "shm/arena_view", "shm/ring_buffer")),
    *(f"transport/{name}.cpp" for name in ("shm/segment", "tcp/connection", "tcp/stripes")),
]
# Functions of these files that see nothing of what others have written: what is sent, what a rank makes for itself or
# the kernel refuses it, and what is for tests and for who looks at a job. Their lines are not counted.
_NO_PARSERS = {
    "engine/messages.cpp": [
        *(f"Engine::{name}" for name in ("introduce", "announce", "append_own", "fill", "broadcast", "tell")),
        *(f"Engine::{name}" for name in ("tell_known", "say_hello", "send", "send_tree_record", "write")),
        "Engine::flush_backlog",
    ],
    "engine/record.cpp": ["append_part", "encode", "build_record"],
    "engine/signatures.cpp": ["Signatures::was_used"],
    "engine/standstill.cpp": ["put", "encode"],
    "engine/tree_items.cpp": ["put_number", "put_bytes", "put_hash", "put_variable", "folded", "TreeWriter"],
    "engine/view.cpp": ["put", "encode"],
    "carriers/plans/executor.cpp": ["PlanRun::time_steps", "PlanRun::note_step", "PlanRun::in_use", "describe"],
    "carriers/plans/transfers.cpp": ["PlanRun::send_messages", "PlanRun::settle"],
    "transport/tcp/stripes.cpp": [
        *(f"Stripes::{name}" for name in ("write", "write_blocks", "begin_block", "blocked", "pace", "add_wait_fds")),
        "Stripes::holds_unsent",
    ],
    "transport/tcp/connection.cpp": [
        *(f"Connection::{name}" for name in ("encrypt", "watch", "limit_unsent", "send", "send_clear")),
        *("Connection::drop_unread", "set_tcp_option"),
    ],
    "transport/secure_stream.cpp": ["RecordKey", "SecureStream::offer_key_to_wire", "told"],
    "transport/shm/arena_view.cpp": ["map_window"],
    "transport/shm/segment.cpp": [
        *("largest_file_bytes", "create_memory_file", "create_file", "available_memory_bytes", "free_address_bytes"),
        *(f"Segment::{name}" for name in ("default_arena_bytes", "create", "map_inbox_page", "reserve_inbox")),
        *("Segment::map_arena", "Segment::inbox_offset", "reserve_pages"),
    ],
    "plan/planner.cpp": ["Planner::forecast", "Planner::network_of"],
}


# So many runs of one process: what MPI may still write to is left to it on purpose, and is never freed.
_RUNS = {"native/mpi": 4000}


def run_fuzzers(session: nox.Session) -> None:
    """Run all targets, or those named, each for some seconds."""
    parser = argparse.ArgumentParser(prog="nox -s fuzz --")
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--keep", action="store_true", help="add to the corpora what reaches more")
    parser.add_argument(
        "--patience", type=int, default=20, help="seconds of one run: more than that is a flaw, where nothing stops it"
    )
    parser.add_argument("targets", nargs="*", help="native/NAME or python/NAME; all, if none is named")
    wanted = parser.parse_args(session.posargs)
    program = _build(session)
    # The C++ tests see to it that every target has a corpus.
    native = {f"native/{path.name}": [str(program)] for path in sorted(_CORPUS["native"].iterdir())}
    drive = [f"{session.bin}/python", str(ROOT / "tests" / "fuzz" / "drive.py")]
    python = {f"python/{path.name}": [*drive, path.name] for path in sorted(_CORPUS["python"].iterdir())}
    for name, command in (native | python).items():
        if not wanted.targets or name in wanted.targets:
            _count(name, _run(session, name, command, wanted))
    if not wanted.targets:
        _write({"lines_reached": _lines_reached(session, program, [_folder(name) / "profile" for name in native])})


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


def _folder(name: str) -> Path:
    """Of a target's files."""
    return BUILD / "fuzz" / name


def _run(session: nox.Session, name: str, command: list[str], wanted: argparse.Namespace) -> dict[str, Any]:
    kind, target = name.split("/")
    folder = _folder(name)
    found = folder / "corpus"
    found.mkdir(parents=True, exist_ok=True)
    kept = _CORPUS[kind] / target
    kept.mkdir(parents=True, exist_ok=True)
    profile = folder / "profile"
    environ = {
        **os.environ,
        "RINGCORE_FUZZ_TARGET": target,
        "LLVM_PROFILE_FILE": str(profile),
        # More than that there is not enough memory for: the engine says so, and what it has not foreseen is a flaw.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=2000",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    limits = [
        *((f"-runs={_RUNS[name]}",) if name in _RUNS else ()),
        f"-timeout={wanted.patience}",
        "-rss_limit_mb=3000",
        "-max_len=4096",
        "-print_final_stats=1",
    ]
    session.log(f"{name}: {wanted.seconds} s")
    before, executions = _cpu_seconds(), 0
    deadline = time.monotonic() + wanted.seconds
    while (left := round(deadline - time.monotonic())) > 0:
        done = subprocess.run(
            [*command, *limits, f"-max_total_time={left}", f"-artifact_prefix={folder}/", str(found), str(kept)],
            env=environ, cwd=folder, capture_output=True, text=True, check=False, errors="replace",
        )  # fmt: skip
        if done.returncode != 0:
            session.error(f"{name} has found something; what it was given lies in {folder}:\n{done.stderr[-6000:]}")
        told = re.search(r"stat::number_of_executed_units:\s*(\d+)|Done (\d+) ", done.stderr)
        executions += int(told[1] or told[2]) if told else 0
    row = {"executions": executions, "cpu_minutes": round((_cpu_seconds() - before) / 60, 2)}
    if wanted.keep:
        merge = [*command, "-merge=1", "-max_len=512", str(kept), str(found)]
        subprocess.run(merge, env=environ, cwd=folder, capture_output=True, check=True)
    return row


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _lines_reached(session: nox.Session, program: Path, profiles: list[Path]) -> dict[str, str]:
    """By source file, how many of its parsers' lines these runs have reached together."""
    data = BUILD / "fuzz" / "profile.data"
    subprocess.run([clang(session, "llvm-profdata"), "merge", "-o", str(data), *map(str, profiles)], check=True)

    files = {str(NATIVE / source): source for source in _PARSERS}

    def export(how: str) -> str:
        command = [clang(session, "llvm-cov"), "export", f"-format={how}", f"-instr-profile={data}", str(program)]
        return subprocess.run([*command, *files], capture_output=True, text=True, check=True).stdout

    left_out: dict[str, set[int]] = {source: set() for source in _PARSERS}
    for function in json.loads(export("text"))["data"][0]["functions"]:
        source = files.get(function["filenames"][0], "")  # and those of other files that are called
        if any(_mangled(name) in function["name"] for name in _NO_PARSERS.get(source, ())):
            first, _, last, *_ = function["regions"][0]
            left_out[source].update(range(first, last + 1))
    reached = {source: [0, 0] for source in _PARSERS}
    source = ""
    for line in export("lcov").splitlines():
        key, _, value = line.partition(":")
        if key == "SF":
            source = files[value]
        elif key == "DA" and int(value.split(",")[0]) not in left_out[source]:
            reached[source][0] += value.split(",")[1] != "0"
            reached[source][1] += 1
    return {source: f"{there} of {all_of_them}" for source, (there, all_of_them) in sorted(reached.items())}


def _mangled(name: str) -> str:
    """What stands for a function, or all of a class, in the names that the linker knows."""
    return "".join(f"{len(part)}{part}" for part in name.split("::"))


def _count(name: str, row: dict[str, Any]) -> None:
    """Executions and minutes of a target add up over all runs that were ever written down."""
    targets = _known().get("targets", {})
    before = targets.get(name, {})
    targets[name] = {counted: round(before.get(counted, 0) + row[counted], 2) for counted in row}
    hours = round(sum(each["cpu_minutes"] for each in targets.values()) / 60, 2)
    _write({"cpu_hours": hours, "targets": dict(sorted(targets.items()))})


def _known() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    return known


def _write(told: dict[str, Any]) -> None:
    RESULT.write_text(json.dumps(_known() | told, indent=1) + "\n")
