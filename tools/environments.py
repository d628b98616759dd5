"""The environments of sessions: what is installed in them, and how a framework's programs are run."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import nox
from nox.project import dependency_groups, load_toml

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
STAMPS = BUILD / "stamps"

# Program, header or library -> the Debian package that has it.
SYSTEM_PACKAGES = {
    "g++": "g++",
    "doctest/doctest.h": "doctest-dev",
    "spin": "spin",
    "ip": "iproute2",
    "sshd": "openssh-server",
    "libgomp.so.1": "libgomp1",
    "libquadmath.so.0": "libquadmath0",
    "mpiexec.openmpi": "openmpi-bin",
    "slurmd": "slurm-wlm",
    "munged": "munge",
    "java": "openjdk-17-jre-headless",
}


def require_system(session: nox.Session, *things: str) -> None:
    """Make sure that programs, headers and libraries are there; on Debian, as root, install what is missing.

    Args:
        session: The session that needs them.
        things: Keys of `SYSTEM_PACKAGES`.
    """
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # Debian keeps ip and sshd where users do not look
    missing = [
        thing
        for thing in things
        if not (
            Path("/usr/include", thing).exists()
            if thing.endswith(".h")
            else any(Path("/usr/lib").glob(f"*/{thing}"))
            if ".so." in thing
            else shutil.which(thing, path=path)
        )
    ]
    if not missing:
        return
    packages = [SYSTEM_PACKAGES[thing] for thing in missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        session.error(f"missing: {', '.join(missing)}. Install with: sudo apt-get install -y {' '.join(packages)}")
    session.log(f"installing Debian's {', '.join(packages)} for {', '.join(missing)}")
    session.run("apt-get", "update", "-q", external=True, silent=True)
    session.run(
        "apt-get", "install", "-y", "-q", "--no-install-recommends", *packages,
        external=True, silent=True, env={"DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip


def requirements(group: str) -> tuple[str, ...]:
    """What pyproject.toml lists under [dependency-groups]."""
    return dependency_groups(load_toml(ROOT / "pyproject.toml"), group)


def fingerprint(*parts: str | Path) -> str:
    """Hash of strings and of everything in files and folders, but for tests and what tools leave there."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode() + b"\0")
            continue
        for path in sorted(part.rglob("*")) if part.is_dir() else [part]:
            inside = path.relative_to(ROOT).parts
            if path.is_file() and "__pycache__" not in inside and "tests" not in inside:
                digest.update("/".join(inside).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_current(stamp: Path, key: str) -> bool:
    """Whether the stamp was left by the same inputs."""
    return stamp.exists() and stamp.read_text() == key


def install(session: nox.Session, group: str, wheels: Iterable[Path] = ()) -> None:
    """Install a dependency group into the session's environment, unless exactly this was installed there before."""
    wheels = list(wheels)
    needed = requirements(group)
    key = fingerprint(*needed, *wheels)
    stamp = Path(session.virtualenv.location, "installed")
    if is_current(stamp, key):
        session.log("the environment is up to date")
        return
    session.log(f"installing {', '.join([*needed, *(wheel.name for wheel in wheels)])}")
    session.install(*needed, *map(str, wheels))
    if wheels:  # pip takes a wheel of the same version for the same wheel
        session.install("--force-reinstall", "--no-deps", *map(str, wheels))
    stamp.write_text(key)


def environment_binary(framework: str, program: str) -> Path:
    """A program in a framework's environment."""
    return Path((STAMPS / f"environment-{framework}").read_text(), "bin", program)


def in_environment(session: nox.Session, framework: str, *command: str, env: dict[str, str] | None = None) -> None:
    """Run a command of a framework's environment."""
    program = environment_binary(framework, command[0])
    path = f"{program.parent}:{os.environ['PATH']}"
    session.run(str(program), *command[1:], external=True, env={"PATH": path, **(env or {})})
