"""Finds the MPI that this process is to use: the one it has loaded already, else the one that launched it."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcore._errors import BootstrapError, InvalidArgument

if TYPE_CHECKING:
    from ringcore import _native
    from ringcore.environment.placement import Placement
    from ringcore.environment.settings import Settings

# Open MPI; MPICH, Intel MPI and whoever else keeps MPICH's ABI; the standard's ABI.
_OPEN_MPI: tuple[str, ...] = ("libmpi.so.40",)
_MPICH: tuple[str, ...] = ("libmpi.so.12", "libmpi_abi.so.1")
_LAUNCHERS = ("Open MPI", "MPICH")
_PARENTS = 4


class NoMpiLibrary(BootstrapError):
    """None of the libraries can be opened."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A library to try, and why."""

    library: str
    reason: str


def shims() -> Path:
    """The folder of the libraries that each speak to one kind of MPI."""
    return Path(__file__).parents[1]


def has_shims() -> bool:
    """Whether this build of ringcore can use MPI at all."""
    return any(shims().glob("libringcore_mpi_*.so"))


def launched_by_mpi(placement: Placement) -> bool:
    """Whether an MPI's launcher has started this process, so that MPI can be initialised here."""
    return placement.source in _LAUNCHERS


def candidates(environ: Mapping[str, str], setting: str | None = None) -> list[Candidate]:
    """Libraries in the order in which they should be tried.

    Args:
        environ: Usually `os.environ`.
        setting: `Settings.mpi_library`.
    """
    if setting is not None:
        return [Candidate(setting, "RINGCORE_MPI_LIBRARY")]
    loaded = _loaded()
    if loaded is not None:
        return [Candidate(loaded, "this process has loaded it")]
    if environ.get("OMPI_COMM_WORLD_RANK"):
        names, launcher = _OPEN_MPI, "Open MPI's launcher"
    elif environ.get("PMI_RANK"):
        names, launcher = _MPICH, "MPICH's launcher"
    else:
        names, launcher = (*_OPEN_MPI, *_MPICH), ""
    found = [
        Candidate(str(path), reason)
        for folder, reason in _folders(environ, launcher)
        for name in names
        if (path := folder / name).exists()
    ]
    usual = [Candidate(name, f"the linker's paths{f', for {launcher}' if launcher else ''}") for name in names]
    return list({candidate.library: candidate for candidate in reversed([*found, *usual])}.values())[::-1]


def _loaded() -> str | None:
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if path.startswith("/") and path.rsplit("/", 1)[-1].startswith(("libmpi.so", "libmpi_abi.so")):
                return path
    return None


def _folders(environ: Mapping[str, str], launcher: str) -> Iterator[tuple[Path, str]]:
    """Where an MPI's launcher leaves word of its library, or has it beside itself."""
    if launcher:
        for name in ("OPAL_PREFIX", "I_MPI_ROOT"):
            if environ.get(name):
                yield Path(environ[name], "lib"), name
                yield Path(environ[name], "lib", "release"), name
        for program in _parents():
            yield program.parent.parent / "lib", f"it belongs to {program}, which started this process"
    yield Path(sys.prefix, "lib"), "this Python's environment"


def _parents() -> Iterator[Path]:
    """The programs of the processes that this one comes from."""
    pid = os.getppid()
    for _ in range(_PARENTS):
        try:
            program = Path(f"/proc/{pid}/exe").readlink()
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return
        yield program


def open_world(placement: Placement | None, settings: Settings, comm: Any) -> _native.MpiWorld:
    """Load MPI, initialise it if nobody has, and meet the ranks of the communicator there.

    Args:
        placement: What the launcher says, to check it; None where `comm` says it all.
        settings: `mpi_library` and `start_timeout_s` are used.
        comm: A communicator of mpi4py; None is MPI_COMM_WORLD.

    Raises:
        NoMpiLibrary: There is no MPI library here.
        BootstrapError: The one that is here cannot be used, or it sees other ranks than the launcher.
        InvalidArgument: `comm` is none, or MPI was initialised for too few threads.
    """
    from ringcore import _native
    from ringcore._errors import ResourceError

    handle = None if comm is None else _fortran_handle(comm)
    reasons = []
    for candidate in candidates(os.environ, settings.mpi_library):
        try:
            world = _native.MpiWorld.open(candidate.library, str(shims()), handle, settings.start_timeout_s)
        except ResourceError as error:
            reasons.append(f"{error} [{candidate.reason}]")
            continue
        if placement is not None and (world.rank, world.size) != (placement.rank, placement.size):
            raise BootstrapError(
                f"{placement.source} says that this is rank {placement.rank} of {placement.size}, but {world.version} "
                f"({candidate.library}) sees rank {world.rank} of {world.size}: it is not the MPI that launched this "
                "job. Start the job with that MPI's mpirun, or name the right library in RINGCORE_MPI_LIBRARY"
            )
        return world
    kind = NoMpiLibrary if _loaded() is None else BootstrapError
    raise kind("no MPI library can be used: " + "; ".join(reasons))


def _fortran_handle(comm: Any) -> int:
    """What every MPI takes for a communicator: the C handles of one ABI mean nothing in another."""
    if not hasattr(comm, "py2f"):
        raise InvalidArgument(
            f"comm is a {type(comm).__name__}, but a communicator of mpi4py is needed, such as MPI.COMM_WORLD; for a "
            "list of ranks use ringcore.add_process_set after init()"
        )
    return int(comm.py2f())
