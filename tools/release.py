"""What is published: wheels for two processors, checked, reproducible, with sums and notes.

Publishing is left to a person. The compiled wheels serve systems whose C library is that of this machine or newer. To
go further back they would have to be compiled on an older system: the split mode of nanobind wants the system's C++
library, and that rules out compilers that bring one of their own (zig's).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Iterable
from pathlib import Path

import nox

from tools.distributions import DISTRIBUTIONS, JOBS, mpi_headers
from tools.environments import BUILD, ROOT, install

RELEASE = ROOT / "dist" / "release"
COMPILED = ["core", "tensorflow", "jax", "mxnet"]
# Processor -> what the names of its compiler and of the programs beside it begin with, and Debian's package of it.
PROCESSORS = {
    "x86_64": ("x86_64-linux-gnu-", "g++-x86-64-linux-gnu"),
    "aarch64": ("aarch64-linux-gnu-", "g++-aarch64-linux-gnu"),
}


def make_release(session: nox.Session) -> None:
    """Make everything that is published, in dist/release."""
    install(session, "release")
    shutil.rmtree(RELEASE, ignore_errors=True)
    RELEASE.mkdir(parents=True)
    epoch = session.run("git", "log", "-1", "--format=%ct", silent=True, external=True, log=False)
    environ = {"SOURCE_DATE_EPOCH": str(epoch).strip(), "CMAKE_BUILD_PARALLEL_LEVEL": JOBS}
    for package in DISTRIBUTIONS:
        if package not in COMPILED:
            _build(session, package, ROOT, ["--sdist", "--wheel"], RELEASE, environ)
            continue
        _build(session, package, ROOT, ["--sdist"], RELEASE, environ)
        for processor in PROCESSORS:
            _build_compiled(session, package, ROOT, processor, RELEASE, environ)
    _prove_reproducible(session, environ)
    session.run("twine", "check", "--strict", *map(str, _files()))
    _try_wheels(session)
    _write_sums(_files())
    notes = session.run("towncrier", "build", "--draft", silent=True, log=False)
    (RELEASE / "NOTES.md").write_text(str(notes))
    session.log(f"{RELEASE.relative_to(ROOT)} holds {len(_files())} distributions, their sums, and the notes")


def _files() -> list[Path]:
    return sorted([*RELEASE.glob("*.whl"), *RELEASE.glob("*.tar.gz")])


def _build(
    session: nox.Session, package: str, tree: Path, kinds: Iterable[str], to: Path, environ: dict[str, str]
) -> None:
    options = []
    if package == "core":
        options.append(f"-Ccmake.define.RINGCORE_MPI_HEADERS={mpi_headers(session)}")
    session.run(
        "pyproject-build", "--no-isolation", *kinds, f"--outdir={to}", *options, str(tree / "packages" / package),
        silent=True, env=environ,
    )  # fmt: skip


def _build_compiled(
    session: nox.Session, package: str, tree: Path, processor: str, to: Path, environ: dict[str, str]
) -> None:
    session.log(f"packages/{package}: the wheel for {processor}")
    raw = BUILD / "release" / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    prefix, debian = PROCESSORS[processor]
    if shutil.which(f"{prefix}g++") is None:
        session.error(f"there is no {prefix}g++; with apt: {debian}")
    crossing = {"SYSTEM_NAME": "Linux", "SYSTEM_PROCESSOR": processor, "STRIP": shutil.which(f"{prefix}strip")}
    _build(session, package, tree, ["--wheel"], raw, {
        **environ,
        "CXX": f"{prefix}g++",
        # Nothing tells in which folder it was compiled.
        "CXXFLAGS": f"-ffile-prefix-map={tree}=.",
        "CMAKE_ARGS": " ".join(f"-DCMAKE_{name}={value}" for name, value in crossing.items()),
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",
    })  # fmt: skip
    (wheel,) = raw.glob("*.whl")
    session.run("auditwheel", "repair", "--only-plat", f"--wheel-dir={to}", str(wheel), silent=True, env=environ)


def _prove_reproducible(session: nox.Session, environ: dict[str, str]) -> None:
    """Build the wheels for this processor once more, from a copy in another folder: they have to be the same."""
    copy, again = BUILD / "release" / "copy", BUILD / "release" / "again"
    for folder in (copy, again):
        shutil.rmtree(folder, ignore_errors=True)
    copy.mkdir(parents=True)
    session.run("git", "checkout-index", "--all", f"--prefix={copy}/", external=True)
    for package in COMPILED:
        _build_compiled(session, package, copy, platform.machine(), again, environ)
    differing = [wheel.name for wheel in again.glob("*.whl") if _hash(wheel) != _hash(RELEASE / wheel.name)]
    if differing:
        session.error(f"built twice from the same sources, these differ: {', '.join(differing)}")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_sums(files: Iterable[Path]) -> None:
    (RELEASE / "SHA256SUMS").write_text("".join(f"{_hash(path)}  {path.name}\n" for path in files))


def _try_wheels(session: nox.Session) -> None:
    """The core's wheel works in an empty environment, without a compiler on the way."""
    empty = BUILD / "release" / "empty"
    shutil.rmtree(empty, ignore_errors=True)
    session.run("python", "-m", "venv", str(empty))
    pip = [str(empty / "bin" / "python"), "-m", "pip", "-q"]
    session.run(*pip, "install", "--only-binary=:all:", f"--find-links={RELEASE}", "ringcore", external=True)
    session.run(*pip, "check", external=True)
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    session.run(str(empty / "bin" / "ringcore"), "doctor", external=True, env=without)
