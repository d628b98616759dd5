"""`ringcore doctor`: what is installed, what works here, and what to do about the rest.

It reports only what it has tried in this very run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from ringcore._version import __version__

_ADAPTERS = {
    "ringcore-torch": "torch",
    "ringcore-tensorflow": "tensorflow",
    "ringcore-keras": "keras",
    "ringcore-jax": "jax",
    "ringcore-mxnet": "mxnet",
    "ringcore-lightning": "lightning",
}
# Library -> the function that tells its version, and how.
_LIBRARIES = {
    "Open MPI": ("libmpi.so.40", "MPI_Get_library_version"),
    "MPI (standard ABI)": ("libmpi_abi.so.1", "MPI_Get_library_version"),
    "MPICH, Intel MPI": ("libmpi.so.12", "MPI_Get_library_version"),
    "NCCL": ("libnccl.so.2", "ncclGetVersion"),
}
_MIN_OPEN_FILES = 1024
_SELF_TEST_LIMIT_S = 60
_SELF_TEST = """
import json, ringcore
ringcore.init()
data = bytearray(4 * 1000)
view = memoryview(data).cast("f")
for i in range(1000):
    view[i] = ringcore.rank() + 1
ringcore.allreduce_(view, op=ringcore.Sum, name="doctor")
context = __import__("ringcore._context", fromlist=["context"]).context()
if ringcore.rank() == 0:
    print(json.dumps({"right": set(view) == {3.0}, "transports": context.runtime.transports()}))
"""


def doctor(file: TextIO | None = None) -> dict[str, Any]:
    """Examine this installation and print what was found.

    Args:
        file: Where to print; standard output by default.

    Returns:
        The findings: "ringcore", "python", "kernels", "self_test", "libraries", "adapters", "limits", and "problems", a
        list of sentences that say what to do.
    """
    file = file or sys.stdout
    findings: dict[str, Any] = {"problems": []}

    def section(title: str, values: dict[str, Any]) -> None:
        print(f"{title}", file=file)
        for key, value in values.items():
            print(f"  {key:<22} {value}", file=file)

    findings["ringcore"] = __version__
    findings["python"] = platform.python_version()
    findings["kernels"] = _kernels(findings["problems"])
    section(
        "this installation",
        {"ringcore": __version__, "python": f"{findings['python']} ({sys.executable})", "kernels": findings["kernels"]},
    )
    findings["self_test"] = {transport: _self_test(transport, findings["problems"]) for transport in ("shm", "tcp")}
    section("two processes of this host, tried now", findings["self_test"])
    findings["adapters"] = dict(_adapters(findings["problems"]))
    section("adapters", findings["adapters"] or {"none": "pip install ringcore-torch"})
    findings["libraries"] = {name: _library(*how) for name, how in _LIBRARIES.items()}
    section("libraries, opened now (this version of ringcore does not use them)", findings["libraries"])
    findings["limits"] = _limits(findings["problems"])
    section("limits", findings["limits"])
    print("problems" if findings["problems"] else "no problems found", file=file)
    for problem in findings["problems"]:
        print(f"  - {problem}", file=file)
    return findings


def _kernels(problems: list[str]) -> str:
    try:
        from ringcore import _native
    except ImportError as error:
        problems.append(
            f"the compiled engine cannot be loaded ({error}); reinstall ringcore for this Python and system"
        )
        return "not loaded"
    return _native.kernel_instruction_set()


def _self_test(transport: str, problems: list[str]) -> str:
    command = [sys.executable, "-m", "ringcore", "run", "-np", "2", sys.executable, "-c", _SELF_TEST]
    # The ranks' own output is wanted, not that of a job which this process may belong to.
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("RINGCORE_", "OMPI_", "PMI", "SLURM_"))
    }
    environment = {**clean, "RINGCORE_TRANSPORT": transport}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SELF_TEST_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        problems.append(f"an allreduce over {transport} did not end within {_SELF_TEST_LIMIT_S} s")
        return "hangs"
    for line in done.stdout.splitlines():
        _, brace, rest = line.partition("{")
        if brace and '"right"' in line:
            result = json.loads(brace + rest)
            if result["right"]:
                return f"works ({result['transports'][1]})"
            problems.append(f"an allreduce over {transport} gave a wrong sum; please report this")
            return "wrong sum"
    reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
    problems.append(f"two processes could not run an allreduce over {transport}: {reason}")
    return f"fails: {reason}"


def _adapters(problems: list[str]) -> Iterator[tuple[str, str]]:
    for distribution, framework in _ADAPTERS.items():
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        try:
            installed = metadata.version(framework)
        except metadata.PackageNotFoundError:
            installed = "not installed"
            problems.append(f"{distribution} is installed without {framework}: pip install {framework}")
        if version != __version__:
            problems.append(
                f"{distribution} is {version} but ringcore is {__version__}: pip install {distribution}=={__version__}"
            )
        yield distribution, f"{version} ({framework} {installed})"


def _library(name: str, version_function: str) -> str:
    """Opens the library in a child process: loading an MPI can have effects of its own."""
    code = f"import ringcore.doctor as d; print(d.library_version({name!r}, {version_function!r}))"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return f"{name} does not load within 20 s"
    return done.stdout.strip() or f"{name} cannot be loaded: {(done.stderr.strip().splitlines() or ['crashed'])[-1]}"


def library_version(name: str, version_function: str) -> str:
    """Open a shared library and ask for its version."""
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        return f"not found ({error})"
    if version_function == "ncclGetVersion":
        number = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(number))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100} ({name})"
    text = ctypes.create_string_buffer(8192)
    length = ctypes.c_int()
    getattr(library, version_function)(text, ctypes.byref(length))
    return f"{text.value.decode(errors='replace').splitlines()[0]} ({name})"


def _limits(problems: list[str]) -> dict[str, str]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if files < _MIN_OPEN_FILES:
        problems.append(f"only {files} files may be open at once, too few for many ranks: ulimit -n {_MIN_OPEN_FILES}")
    shm = Path("/dev/shm")
    status = os.statvfs(shm) if shm.exists() else None
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "open files": str(files),
        "locked memory": "unlimited" if locked == resource.RLIM_INFINITY else f"{locked // 1024} KiB",
        "/dev/shm": "absent" if status is None else f"{status.f_frsize * status.f_bavail >> 20} MiB free (not needed)",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit code 1 when there are problems."""
    parser = argparse.ArgumentParser(prog="ringcore doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(argv)
    if options.json:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            findings = doctor(nowhere)
        print(json.dumps(findings, indent=2))
    else:
        findings = doctor()
    return 1 if findings["problems"] else 0
