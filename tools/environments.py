"""The environments of sessions: what is installed in them, and how a framework's programs are run."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import nox
from nox.project import dependency_groups, load_toml

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
STAMPS = BUILD / "stamps"

# Program, header, library or module of Python -> the package of Debian and Ubuntu that has it.
SYSTEM_PACKAGES = {
    line.split()[0]: line.split()[1]
    for line in (ROOT / "tools" / "system-packages.txt").read_text().splitlines()
    if not line.startswith("#")
}


def at_a_time(gib: int) -> int:
    """How many programs, each of which may take so many GiB, this machine runs side by side; at least two."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(2, min(len(os.sched_getaffinity(0)), (memory >> 30) // gib))


def _has(thing: str) -> bool:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # Debian keeps ip and sshd where users do not look
    if thing == "Python.h":
        return Path(sysconfig.get_path("include"), thing).exists()
    if thing.endswith(".h"):
        return Path("/usr/include", thing).exists()
    if ".so." in thing:
        return any(Path("/usr/lib").glob(f"*/{thing}"))
    return shutil.which(thing, path=path) is not None


def require_system(session: nox.Session, *things: str) -> None:
    """Make sure that programs, headers and libraries are there; on Debian, as root, install what is missing.

    Args:
        session: The session that needs them.
        things: Keys of `SYSTEM_PACKAGES`. `./nox` names those of all sessions before anything starts.
    """
    missing = [thing for thing in things if not _has(thing)]
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


def run_with_steps(session: nox.Session, what: str, *command: str, env: dict[str, str] | None = None) -> None:
    """Run a command of the session's environment that builds: a line for each step of ninja, all of it where it fails.

    Args:
        session: The session that builds.
        what: What is built; each line begins with it.
        command: Its program and arguments.
        env: Variables besides the session's.
    """
    environ = {**os.environ, **{name: value for name, value in session.env.items() if value is not None}, **(env or {})}
    said: list[str] = []
    with subprocess.Popen(
        [str(Path(session.bin, command[0])), *command[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env=environ,
    ) as build:  # fmt: skip
        for line in build.stdout or ():
            said.append(line)
            step = re.match(r"\[(\d+)/(\d+)\] (?:Building CXX object )?(.*?)(?:\.o)?$", line)
            if step is not None:
                print(f"  {what}: {step[1]} of {step[2]}: {re.sub('.*[.]dir/', '', step[3])}", flush=True)
    if build.returncode != 0:
        print("".join(said))
        session.error(f"{' '.join(command)} ended with {build.returncode}")


def environment_binary(framework: str, program: str) -> Path:
    """A program in a framework's environment."""
    stamp = STAMPS / f"environment-{framework}"
    if not stamp.exists():
        raise SystemExit(f"there is no environment for {framework}, which session environment({framework}) makes")
    return Path(stamp.read_text(), "bin", program)


def in_environment(session: nox.Session, framework: str, *command: str, env: dict[str, str] | None = None) -> None:
    """Run a command of a framework's environment."""
    program = environment_binary(framework, command[0])
    path = f"{program.parent}:{os.environ['PATH']}"
    session.run(str(program), *command[1:], external=True, env={"PATH": path, **(env or {})})
