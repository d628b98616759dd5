"""What is published: wheels for two processors, checked, reproducible, with sums and notes.

Publishing is left to a person. Compiled wheels serve systems from `older.POLICY` on: auditwheel, which takes a name for
another processor from nobody, gives them that of the oldest systems that have what they ask for.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path

import nox

from tools.distributions import COMPILERS, DISTRIBUTIONS, mpi_headers
from tools.environments import BUILD, ROOT, install, require_system
from tools.older import POLICY, link_options, unnamed, unresolved

RELEASE = ROOT / "dist" / "release"
COMPILED = ["core", "tensorflow", "jax", "mxnet"]
# Processor -> what the names of its compiler and of the programs beside it begin with.
PREFIXES = {"x86_64": "x86_64-linux-gnu-", "aarch64": "aarch64-linux-gnu-"}


def make_release(session: nox.Session) -> None:
    """Make everything that is published, in dist/release."""
    require_system(session, "git", *(f"{prefix}g++" for prefix in PREFIXES.values()))
    install(session, "release")
    shutil.rmtree(RELEASE, ignore_errors=True)
    RELEASE.mkdir(parents=True)
    shutil.rmtree(BUILD / "release", ignore_errors=True)
    epoch = session.run("git", "log", "-1", "--format=%ct", silent=True, external=True, log=False)
    environ = {"SOURCE_DATE_EPOCH": str(epoch).strip(), "CMAKE_BUILD_PARALLEL_LEVEL": str(COMPILERS)}
    _build_all(session, ROOT, PREFIXES, RELEASE, environ)
    _check_names(session)
    _prove_reproducible(session, environ)
    session.run("twine", "check", "--strict", *map(str, _files()))
    _try_wheels(session)
    session.run("python", "tools/sbom.py", str(RELEASE), env=environ)
    _write_sums([*_files(), RELEASE / "ringcore.cdx.json"])
    _write_notes(session)
    session.log(f"{RELEASE.relative_to(ROOT)} holds {len(_files())} distributions, what is in them, sums, and notes")


def _check_names(session: nox.Session) -> None:
    newest = int(POLICY.rpartition("_")[2])
    for wheel in RELEASE.glob("*.whl"):
        found = re.search(r"manylinux_2_(\d+)_", wheel.name)
        if not wheel.name.endswith("-any.whl") and (found is None or int(found[1]) > newest):
            session.error(f"{wheel.name} is for newer systems than {POLICY}")


def _files() -> list[Path]:
    return sorted([*RELEASE.glob("*.whl"), *RELEASE.glob("*.tar.gz")])


def _build_all(session: nox.Session, tree: Path, processors: Iterable[str], to: Path, environ: dict[str, str]) -> None:
    for package in DISTRIBUTIONS:
        if package not in COMPILED:
            _build(session, package, tree, ["--sdist", "--wheel"], to, environ)
            continue
        _build(session, package, tree, ["--sdist"], to, environ)
        for processor in processors:
            _build_compiled(session, package, tree, processor, to, environ)


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
    prefix = PREFIXES[processor]
    crossing = {"SYSTEM_NAME": "Linux", "SYSTEM_PROCESSOR": processor, "STRIP": shutil.which(f"{prefix}strip")}
    _build(session, package, tree, ["--wheel"], raw, {
        **environ,
        "CXX": f"{prefix}g++",
        # Nothing tells in which folder it was compiled.
        "CXXFLAGS": f"-ffile-prefix-map={tree}=.",
        "LDFLAGS": " ".join(_link_options(session, processor)),
        "CMAKE_ARGS": " ".join(f"-DCMAKE_{name}={value}" for name, value in crossing.items()),
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",
    })  # fmt: skip
    (wheel,) = raw.glob("*.whl")
    _check_symbols(session, prefix, wheel)
    session.run("auditwheel", "repair", "--only-plat", f"--wheel-dir={to}", str(wheel), silent=True, env=environ)


def _link_options(session: nox.Session, processor: str) -> list[str]:
    folder = BUILD / "release" / "older" / processor
    where = "import auditwheel.policy; print(auditwheel.policy.__path__[0])"
    policies = session.run("python", "-c", where, silent=True, log=False)
    return link_options(PREFIXES[processor], processor, folder, Path(str(policies).strip(), "manylinux-policy.json"))


def _check_symbols(session: nox.Session, prefix: str, wheel: Path) -> None:
    """See that no symbol is left to chance: auditwheel looks at those with versions only, and at no older library."""
    unpacked = BUILD / "release" / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    for library in unpacked.rglob("*.so"):
        missing = unresolved(prefix, library)
        if unnamed(prefix, library):
            session.error(f"{wheel.name}: {library.name} does not name {', '.join(unnamed(prefix, library))}")
        if missing:
            session.error(f"{wheel.name}: {library.name} asks for {', '.join(missing)}, which {POLICY} does not have")


def _prove_reproducible(session: nox.Session, environ: dict[str, str]) -> None:
    """Build all but the wheels for other processors once more, from a copy in another folder: it has to be the same."""
    copy, again = BUILD / "release" / "copy", BUILD / "release" / "again"
    session.run("git", "checkout-index", "--all", f"--prefix={copy}/", external=True)
    # What a cache remembers of the first time would be the same whatever the compiler does.
    _build_all(session, copy, [platform.machine()], again, {**environ, "CCACHE_DISABLE": "1"})
    files = sorted(again.iterdir())
    differing = [path.name for path in files if _hash(path) != _hash(RELEASE / path.name)]
    if differing or not files:
        session.error(f"built twice, from here and from what git has added, these differ: {', '.join(differing)}")
    session.log(f"{len(files)} distributions are the same when they are built twice")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_sums(files: Iterable[Path]) -> None:
    (RELEASE / "SHA256SUMS").write_text("".join(f"{_hash(path)}  {path.name}\n" for path in files))


def _write_notes(session: nox.Session) -> None:
    (core,) = RELEASE.glob("ringcore-*.tar.gz")
    version = core.name.removeprefix("ringcore-").removesuffix(".tar.gz")
    notes = session.run("towncrier", "build", "--draft", f"--version={version}", silent=True, log=False, stderr=None)
    (RELEASE / "NOTES.md").write_text(str(notes))


def _try_wheels(session: nox.Session) -> None:
    """The core's wheel works in an empty environment, without a compiler on the way."""
    empty = BUILD / "release" / "empty"
    session.run("python", "-m", "venv", str(empty))
    python = str(empty / "bin" / "python")
    pip = [python, "-m", "pip", "-q"]
    session.run(*pip, "install", "--only-binary=:all:", f"--find-links={RELEASE}", "ringcore[numpy]", external=True)
    session.run(*pip, "check", external=True)
    program = BUILD / "release" / "errors.py"
    program.write_text(_ERRORS)
    for name, *arguments in (
        ("ringcore", "doctor"),
        ("ringcore", "demo"),
        ("ringrun", "-np", "2", python, str(program)),  # not the session's, which comes first in PATH
    ):
        session.run(str(empty / "bin" / name), *arguments, external=True, env={"PYTHONPATH": ""})


# An error of the engine on its way through nanobind's library, which is another one than ours.
_ERRORS = """
import numpy, ringcore
ringcore.init()
try:
    ringcore.allreduce(numpy.ones(2 + ringcore.rank()), name="different")
except ringcore.MismatchError:
    print("the error has arrived")
else:
    raise SystemExit("an error has not arrived")
"""
