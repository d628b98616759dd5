"""Building the engine alone, with its tests; checking it, its models and its style."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

from tools.distributions import COMPILERS, WARNINGS_ARE_ERRORS, mpi_headers
from tools.environments import BUILD, ROOT, fingerprint, install, is_current, require_system, requirements

NATIVE = ROOT / "native"
# Of those that simulate nothing.
_LONG_FILES = ("gpu_registration_test", "membership_test", "priority_test", "tcp_link_test")
# A file of tests takes a minute or two, and half an hour under a sanitizer.
_LONGEST_S = 3600
# Where each instruction takes long, a tenth of the long tests: they look for mistakes of the engine, in many schedules.
FEWER_SEEDS = {
    "RINGCORE_ELASTIC_SEEDS": "200",
    "RINGCORE_ELASTIC_TREE_SEEDS": "50",
    "RINGCORE_EVENTS_APART": "100",
    "RINGCORE_SIMULATION_PROGRAMS": "200",
    "RINGCORE_SIMULATION_SEEDS": "300",
    "RINGCORE_SIMULATION_TREES": "30",
    "RINGCORE_SWITCH_SEEDS": "150",
    "RINGCORE_TREE_SEEDS": "30",
    "RINGCORE_VIEW_SEEDS": "1000",
}


def build_native(session: nox.Session, variant: str, *options: str, target: str = "all") -> Path:
    """Compile the engine, in an environment that has the group `compile`; returns the build folder."""
    require_system(session, "g++", "doctest/doctest.h")
    folder = BUILD / "native" / variant
    session.log(f"compiling the engine ({variant}) in {folder.relative_to(ROOT)}")
    session.run(
        "cmake", "-S", str(NATIVE), "-B", str(folder), "-G", "Ninja", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        WARNINGS_ARE_ERRORS, *options, silent=True,
    )  # fmt: skip
    session.run("cmake", "--build", str(folder), "-j", str(COMPILERS), "--target", target)
    return folder


def run_native_tests(
    session: nox.Session,
    variant: str,
    *options: str,
    emulator: Iterable[str] = (),
    without: Iterable[str] = (),
    env: dict[str, str] | None = None,
) -> None:
    """Compile the engine's tests and run them, a process for each file, as many at a time as there are compilers.

    Args:
        session: The session that tests.
        variant: The build folder's name.
        options: For CMake.
        emulator: Runs the tests where this machine's processor cannot, and what they start.
        without: Names of test cases that are left out, with wildcards in place of commas.
        env: Variables besides the session's.
    """
    install(session, "compile")
    folder = build_native(session, variant, "-DRINGCORE_BUILD_TESTS=ON", *options)
    session.log(f"running the engine's tests ({variant})")
    tests = [*emulator, str(folder / "ringcore_tests")]
    env = {"RINGCORE_TEST_EMULATOR": " ".join(emulator), **(env or {})}
    if without:
        tests.append(f"--test-case-exclude={','.join(without)}")
    if session.posargs:
        session.run(*tests, *session.posargs, external=True, env=env)
        return
    # The simulated jobs take longest, so they come first, and no long one comes last.
    sources = sorted(
        (NATIVE / "tests").rglob("*_test.cpp"),
        key=lambda file: (file.parent.name != "simulation", file.stem not in _LONG_FILES, file),
    )

    def passes(source: Path) -> bool:
        begin = time.monotonic()
        only = f"--source-file=*{source.relative_to(NATIVE)}"
        try:
            done = subprocess.run(
                [*tests, only], env=os.environ | env, capture_output=True, text=True, check=False, timeout=_LONGEST_S
            )
        except subprocess.TimeoutExpired:
            session.log(f"{source.name} has not ended within {_LONGEST_S} s")
            return False
        ran = re.search(r"test cases: *(\d+).*passed", done.stdout)
        is_well = done.returncode == 0 and ran is not None and (int(ran[1]) > 0 or bool(without))
        report = ran[0] if ran and is_well else f"\n{done.stdout}{done.stderr}"
        session.log(f"{source.name}, {time.monotonic() - begin:.0f} s: {report}")
        return is_well

    with ThreadPoolExecutor(COMPILERS) as pool:
        if not all(list(pool.map(passes, sources))):
            session.error("some of the engine's tests failed: see above")


def run_sweeps(session: nox.Session) -> None:
    """Run the simulation's tests of which `native` takes samples: as many at a time as there are compilers."""
    install(session, "compile")
    tests = str(build_native(session, "release", "-DRINGCORE_BUILD_TESTS=ON") / "ringcore_tests")
    sweeps = [
        ("*elastic_test*,*joining_test*,*straggler_test*", {"RINGCORE_EVENTS_APART": "1"}),
        *(
            ("*elastic_schedules_test*", {"RINGCORE_ELASTIC_FIRST": str(first), "RINGCORE_ELASTIC_SEEDS": "250000"})
            for first in range(1, 1_000_000, 250_000)
        ),
        ("*elastic_trees_test*", {"RINGCORE_ELASTIC_TREE_SEEDS": "200000"}),
        ("*switch_simulation_test*", {"RINGCORE_SWITCH_SEEDS": "100000"}),
        ("*/simulation_test*", {"RINGCORE_SIMULATION_SEEDS": "100000"}),
        ("*agreement_tree_test*", {"RINGCORE_TREE_SEEDS": "100000"}),
        ("*tree_engines_test*", {"RINGCORE_SIMULATION_SEEDS": "10000"}),
        ("*tree_faults_test*", {"RINGCORE_SIMULATION_TREES": "10000"}),
    ]

    def is_well(sweep: tuple[str, dict[str, str]]) -> bool:
        sources, variables = sweep
        session.log(f"{sources} with {variables}")
        command = ["nice", tests, f"--source-file={sources}"]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
        session.log(f"{sources} with {variables}:\n{done.stdout[-6000:]}")
        return done.returncode == 0

    with ThreadPoolExecutor(COMPILERS) as pool:
        if not all(list(pool.map(is_well, sweeps))):
            session.error("a simulated job did not stand its faults")


def check_models(session: nox.Session) -> None:
    """Let spin see every state of the models in native/spec, and find the mistakes that are planted in them."""
    models = sorted((NATIVE / "spec").glob("*.pml"))
    if not models:
        session.error("native/spec has no model")
    for model in models:
        folder = BUILD / "spin" / model.stem
        folder.mkdir(parents=True, exist_ok=True)
        text = model.read_text()
        claims = re.findall(r"^\s*ltl\s+(\w+)", text, re.MULTILINE)
        compile_verifier = ["gcc", "-w", "-O2", "-DCOLLAPSE", "-DMEMLIM=8000"]
        with session.chdir(folder):
            for options in re.findall(r"^ \* check: (.*)$", text, re.MULTILINE) or [""]:
                session.run("spin", "-a", *options.split(), str(model))
                session.run(*compile_verifier, "-DSAFETY", "-DNOCLAIM", "-o", "safety", "pan.c")
                check_model(session, model, "./safety", "-w26")
                if claims:
                    session.run(*compile_verifier, "-o", "liveness", "pan.c")
                for claim in claims:
                    check_model(session, model, "./liveness", "-a", "-N", claim)
            for options in re.findall(r"^ \* mistake: (.*)$", text, re.MULTILINE):
                session.run("spin", "-a", *options.split(), str(model), silent=True)
                session.run(*compile_verifier, "-DSAFETY", "-DNOCLAIM", "-o", "safety", "pan.c")
                report = session.run("./safety", "-w26", "-m1000000", silent=True) or ""
                session.log(f"{model.name} {options}: {re.findall('errors: .*', report)}")
                if "errors: 1" not in report or "assertion violated" not in report:
                    session.error(f"{model.name}: the mistake of {options} was not found")


def check_model(session: nox.Session, model: Path, *command: str) -> None:
    """Run a verifier that spin generated, and read its report: its exit code says nothing."""
    session.log(f"{model.name}: {' '.join(command)}")
    report = session.run(*command, "-m1000000", silent=True) or ""
    print(report)
    if "errors: 0" not in report or "max search depth too small" in report or "not completed" in report:
        session.error(f"{model.name}: {' '.join(command)} found an error, or did not see every state")


def run_tidy(session: nox.Session) -> None:
    """Run clang-tidy on the engine's sources that have changed, or whose headers have, since they were last clean."""
    require_system(session, "g++", "doctest/doctest.h")
    folder = BUILD / "native" / "tidy"
    session.run(
        "cmake", "-S", str(NATIVE), "-B", str(folder), "-G", "Ninja", "-DRINGCORE_BUILD_TESTS=ON",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DRINGCORE_MPI_HEADERS={mpi_headers(session)}", silent=True,
    )  # fmt: skip
    headers = sorted(NATIVE.rglob("*.hpp"))
    common = fingerprint(*requirements("lint"), ROOT / ".clang-tidy", *headers)
    stamps = {
        source: (folder / f"{source.parent.name}-{source.stem}.clean", fingerprint(common, source))
        for source in sorted(NATIVE.rglob("*.cpp"))
        # The fuzzers' program is built by clang's build alone.
        if "tests" not in source.relative_to(NATIVE).parts and source != NATIVE / "fuzz" / "main.cpp"
    }
    changed = [source for source, (stamp, key) in stamps.items() if not is_current(stamp, key)]
    session.log(f"clang-tidy: {len(changed)} of {len(stamps)} files to check")
    program = Path(session.bin, "clang-tidy")

    def check(source: Path) -> subprocess.CompletedProcess[str]:
        command = [str(program), "--quiet", "-p", str(folder), str(source)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)

    failed = []
    with ThreadPoolExecutor(COMPILERS) as pool:
        for source, report in zip(changed, pool.map(check, changed), strict=True):
            if report.returncode == 0:
                stamp, key = stamps[source]
                stamp.write_text(key)
            else:
                failed.append(source.name)
                print(report.stdout, report.stderr, sep="")
    if failed:
        session.error(f"clang-tidy has something to say about {', '.join(failed)}")
