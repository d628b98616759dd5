"""Plants mistakes in a copy of the engine, one at a time, and sees the tests go red.

    python native/tests/mutants.py BUILD_FOLDER [NAME ...]

A mutant that survives is a hole in the tests. Fault schedules, plan, negotiation and engine tests are run on each; one
that hangs counts as caught, because the tests would not pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).parents[1]
BENCHMARKS = NATIVE.parent / "benchmarks" / "native"  # a part of them is tested with the engine
LIMIT_S = 60
TESTS = "*simulation_test*,*plan_test*,*negotiation_test*,*engine_test*,*runtime_test*,*chooser_test*,*gpu_*test*"


@dataclass(frozen=True)
class Mutant:
    """A mistake: `right` stands once in `file`, and becomes `wrong`."""

    name: str
    file: str
    right: str
    wrong: str


MUTANTS = [
    Mutant("a closed connection is not noticed", "engine/watchdog.cpp",
           "if (!peer->left && failure_ == nullptr) lose(*peer, *failure);", ""),
    Mutant("a silent peer is not noticed", "engine/watchdog.cpp",
           "} else if (!peer->left && now - peer->last_heard > patience_) {", "} else if (false) {"),
    Mutant("what a library's data holds back is not waited for", "engine/execution.hpp",
           "kNanosecondsPerLibraryByte = 200;", "kNanosecondsPerLibraryByte = 0;"),
    Mutant("a wish for what takes the short cut is announced", "engine/eager.cpp",
           "set.unflushed = false;  // the buckets", "// the buckets"),
    Mutant("a rank joins at the place of what takes the short cut", "engine/engine.cpp",
           "rank has joined already\");\n    if (eager_.operation != nullptr) leave_eager();",
           "rank has joined already\");"),
    Mutant("a rank whose calls never wait looks at no timer", "engine/runtime.cpp",
           "if (const Nanoseconds now = clock_.now(); now - tended >= engine_.tend_interval()) {",
           "if (const Nanoseconds now = 0; now > 0) {"),
    Mutant("the end of a library's run tells nothing of its ranks", "engine/watchdog.cpp",
           "if (ended != library_ended_) {", "if (false) {"),
    Mutant("doubled records are accepted", "engine/messages.cpp",
           "if (header.sequence != peer.received_records) {", "if (false) {"),
    Mutant("records of another epoch are accepted", "engine/messages.cpp",
           "if (header.epoch != epoch_) {", "if (false) {"),
    Mutant("tasks run in another order on some ranks", "engine/execution_lanes.cpp",
           "tasks.insert(less_urgent, std::move(task));",
           "const bool swaps = self_ % 2 == 1 && !tasks.empty() && tasks.back()->run == nullptr;\n"
           "  tasks.insert(swaps ? std::prev(tasks.end()) : less_urgent, std::move(task));"),
    Mutant("mismatches are not looked for", "engine/negotiation.cpp",
           "if (contribution.signature != first->signature) other = &contribution;", ""),
    Mutant("a joined rank contributes what is in its buffer", "engine/execution_run.cpp",
           "fill_identity(descriptor.dtype, summing(descriptor.op), at, count);", ""),
    Mutant("open buckets are never closed", "engine/engine.cpp",
           "case Decision::Kind::kFlush: set.execution.flush(); return;", "case Decision::Kind::kFlush: return;"),
    Mutant("nobody fills a shorter log", "engine/engine.cpp",
           "if (until > set->negotiation.length(set->self)) fill(*set, until, nullptr);",
           "if (until == UINT64_MAX) fill(*set, until, nullptr);"),
    Mutant("nobody asks for a shorter log to be filled", "engine/watchdog.cpp",
           "if (released || set.negotiation.announced_by_all(name_hash)) {", "if (false) {"),
    Mutant("a second try of an operation cannot be cancelled", "engine/negotiation.cpp",
           "if (!pending.error && pending.contributions[member].present) return &pending;",
           "return pending.error ? nullptr : &pending;"),
    Mutant("a group is done with its first part", "engine/execution.cpp", "if (--whole->unfinished == 0)", "if (true)"),
    Mutant("the log of a rank that has left is waited for", "engine/negotiation.hpp",
           "void leave(int member) { left_[member] = true; }", "void leave(int) {}"),
    Mutant("what becomes complete after somebody had waited for it stays in its bucket", "engine/negotiation.cpp",
           "if (entry.type == RecordType::kNoop && (entry.flags & kFlush) != 0) "
           "want_pending(static_cast<int>(m));", ""),
    Mutant("a chunk is overwritten before it is sent", "plan/executor.cpp",
           "state.done_bytes == 0 && unsent(target) > 0", "false"),
    Mutant("a wait does not wait", "plan/executor.cpp",
           "if (!accept_header(step.peer, 0)) return false;", "accept_header(step.peer, 0);"),
    Mutant("the verifier does not look at final marks", "plan/verifier.cpp",
           "if (step.final != sum.complete()) {", "if (step.final && !sum.complete() && false) {"),
    Mutant("the verifier does not look for deadlocks", "plan/verifier.cpp",
           "    check_ended();\n", ""),
    Mutant("the verifier does not ask whether memory is still in use", "plan/verifier.cpp",
           "    check_memory_released();\n", ""),
    Mutant("our stream does not wait for the framework's", "engine/device_collectives.cpp",
           "if (ready != last) ready->hold_back(stream_->get());", ""),
    Mutant("the framework's stream does not wait for ours", "engine/device_streams.cpp",
           "completion->hold_back(stream_of(stream));", ""),
    Mutant("what is unpacked on a GPU is not scaled", "engine/device_collectives.cpp",
           "pack(task, false, scale);", "pack(task, false, 1.0);"),
    Mutant("memory that a GPU still uses is deregistered", "engine/device_queue.cpp",
           "!outgrown_.empty() && flights_.empty() && queue_.empty()", "!outgrown_.empty()"),
    Mutant("a rank that has joined registers nothing", "engine/device_collectives.cpp",
           "  communicator_->register_memory(fusion_, registering_);",
           "  if (!task.operations.empty()) communicator_->register_memory(fusion_, registering_);"),
    Mutant("memory is freed while a GPU still uses it", "device/device.cpp",
           "if (driver().cuStreamQuery(stream->get()) != cuda::kNotReady) {", "if (true) {"),
    Mutant("the last tensors of a large group are not packed", "device/kernels.cpp",
           "while (!segments.empty()) {", "for (int once = 0; once < 1; ++once) {"),
    Mutant("who leads on a GPU does not wait for the others' tensors", "engine/device_shared.cpp",
           "if (place != 0) arenas_.wait(SharedArenas::packed(place), piece_);", ""),
    Mutant("the others do not wait for the result", "engine/device_shared.cpp",
           "arenas_.wait(SharedArenas::kResult, piece_);", ""),
    Mutant("the next piece is packed over a result that not all have taken", "engine/device_shared.cpp",
           "if (piece_at_ > 0) drain();", ""),
    Mutant("what is copied from a shared GPU is scaled once more", "engine/device_shared.cpp",
           "copy_scale_ = gpus_.size() == 1 ? 1.0 : result_scale;", "copy_scale_ = result_scale;"),
    Mutant("every piece is packed from the beginning of the tensor", "engine/device_shared.cpp",
           "const std::size_t offset = begin - part.at;", "const std::size_t offset = 0;"),
    Mutant("an error leaves streams waiting on a shared GPU", "engine/device_arenas.cpp",
           "fill_words(address_of(place_, 0), value + kFarAhead, aborting_.get());", ""),
    Mutant("a late rank holds the streams of others back again", "engine/device_arenas.cpp",
           "write(place, packed(place_), value + kFarAhead);", ""),
    Mutant("shared memory is used again while streams may use it", "device/ipc.cpp",
           "return each.ended == nullptr && each.ordinal", "return each.exported && each.ordinal"),
]  # fmt: skip


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
    done = subprocess.run(["cmake", "--build", str(folder), "-j2"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout)


def passes(folder: Path) -> bool:
    """Whether the tests pass."""
    command = [str(folder / "ringcore_tests"), f"--source-file={TESTS}", "--abort-after=1"]
    environment = {**os.environ, "RINGCORE_SIMULATION_SEEDS": "3000"}
    try:
        return (
            subprocess.run(command, capture_output=True, timeout=LIMIT_S, env=environment, check=False).returncode == 0
        )
    except subprocess.TimeoutExpired:
        return False


def main() -> None:
    """Try all mutants, or those named."""
    folder = Path(sys.argv[1]).resolve()
    wanted = sys.argv[2:]
    source = folder / "native"
    copy_changed(NATIVE, source)
    copy_changed(BENCHMARKS, folder / "benchmarks" / "native")
    build(source, folder / "build")
    if not passes(folder / "build"):
        raise SystemExit("the tests fail without any mutant")
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
        caught = not passes(folder / "build")
        path.write_text(text)
        print(f"{'caught  ' if caught else 'SURVIVED'}  {mutant.name}", flush=True)
        if not caught:
            survivors.append(mutant.name)
    if survivors:
        raise SystemExit(f"{len(survivors)} of {len(MUTANTS)} mutants survived")
    print(f"{len(wanted or MUTANTS)} of {len(wanted or MUTANTS)} mutants caught")


if __name__ == "__main__":
    main()
