"""The command `ringcore doctor`: what is installed and usable here, by trying, and what to do about what is not."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import IO, Any

from ringcore._version import __version__
from ringcore.commands import security
from ringcore.environment.libraries import CUDA, NCCL, NVRTC, bundled, nccl_shares_gpus, try_library
from ringcore.environment.settings import CLEAR_TEXT, Settings

_TRANSPORTS = ("shm", "tcp")
_SELF_TEST_LIMIT_S = 30.0
_ADAPTER_PREFIX = "ringcore-"
# Distribution of a framework, and of the adapter for it.
_FRAMEWORKS = {
    "torch": "ringcore-torch",
    "tensorflow": "ringcore-tensorflow",
    "keras": "ringcore-keras",
    "mxnet": "ringcore-mxnet",
    "lightning": "ringcore-lightning",
    "jax": "ringcore-jax",
}
# Distributions that bring a framework under another name.
_OTHER_NAMES = {"tensorflow": ("tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tf-nightly-cpu")}
_LIBRARIES = {
    "OpenSSL (encrypts between hosts)": ("libssl.so.3",),
    "MPI": ("libmpi.so.40", "libmpi.so.12", "libmpi_abi.so.1"),
    "NCCL": NCCL,
    "CUDA driver": CUDA,
    "NVRTC": NVRTC,
}
_MIN_OPEN_FILES = 1024
_NCCL_SHARES_GPUS = (2, 30)
_CUDA_WAITS_FOR_WORDS = (11, 7)
_MIN_SHM_BYTES = 64 << 20

# Each rank of the self-test: one small and one large allreduce, and which transport they took.
_SELF_TEST = """
import array, os, sys
import ringcore
ringcore.init()
from ringcore.job.state import context
for count in (3, 1 << 18):
    values = array.array("d", [2.0 ** ringcore.rank()]) * count
    ringcore.allreduce_(values, op=ringcore.Sum)
    wrong = sum(value != 3.0 for value in values)
    if wrong:
        sys.exit(f"{wrong} of {count} sums are wrong")
if ringcore.rank() == 0:
    print("transport", context().runtime.transports()[1])
ringcore.shutdown()
"""


def doctor(file: IO[str] | None = None, *, everything: bool = False) -> dict[str, Any]:
    """Print what is installed and usable, and what to do about each problem; takes a few seconds.

    Args:
        file: Where to print; `None` is standard output.
        everything: Print of libraries that are not here, too, what was tried, and why it failed.

    Returns:
        The same as a dict: `ringcore`, `python`, `platform`, `kernels`, `transports`, `mpi`, `libraries`, `encryption`,
        `kernel_tls`, `shared_gpu`, `frameworks`, `adapters`, `limits` and `problems`, a list of texts that is empty
        when all is well.
    """
    report: dict[str, Any] = {
        "ringcore": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "problems": [],
    }
    report["kernels"] = _kernels(report["problems"])
    report["limits"] = _limits(report["problems"])
    report["frameworks"] = _frameworks()
    report["adapters"] = _adapters(report["frameworks"], report["problems"])
    report["libraries"] = {
        kind: [try_library(name) for name in [*names, *bundled(names)]] for kind, names in _LIBRARIES.items()
    }
    report["encryption"] = _encryption()
    report["kernel_tls"] = _kernel_tls()
    report["shared_gpu"] = _shared_gpu(report["libraries"])
    report["mpi"] = _mpi(report["problems"])
    report["transports"] = {name: _try_transport(name) for name in _TRANSPORTS}
    for name, outcome in report["transports"].items():
        if not outcome["works"]:
            report["problems"].append(_transport_problem(name, outcome["reason"]))
    print("\n".join(_lines(report, everything)), file=file or sys.stdout)
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """The sub-command.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0 when all is well, 1 when there are problems.
    """
    parser = argparse.ArgumentParser(
        prog="ringcore doctor",
        description="Tries what is installed here, tells what works, and what to do about what does not.",
    )
    parser.add_argument("--all", action="store_true", help="tell of libraries that are not here, too, what was tried")
    parser.add_argument(
        "--security",
        nargs="?",
        const="",
        metavar="JOB",
        help="tell instead what a running job has open, and what is wrong",
    )
    arguments = parser.parse_args(argv)
    if arguments.security is not None:
        return security.look(arguments.security or None)
    return 1 if doctor(everything=arguments.all)["problems"] else 0


def _kernels(problems: list[str]) -> str:
    try:
        from ringcore import _native
    except ImportError as error:
        problems.append(f"the compiled engine cannot be loaded ({error}): pip install --force-reinstall ringcore")
        return "the engine cannot be loaded"
    return _native.kernel_instruction_set()


def _encryption() -> str:
    setting = Settings.from_environ(os.environ).encryption
    return {"auto": "what leaves this host over TCP", "on": "all TCP, and nothing else is used"}.get(
        setting, f"nothing (RINGCORE_ENCRYPTION=off): {CLEAR_TEXT}"
    )


def _kernel_tls() -> str:
    try:
        from ringcore import _native
    except ImportError:
        return "the engine cannot be loaded"
    refusal = _native.kernel_tls_refusal()
    return f"no: {refusal}" if refusal else "yes, where RINGCORE_KERNEL_TLS=1 asks for it"


def _limits(problems: list[str]) -> dict[str, Any]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if files != resource.RLIM_INFINITY and files < _MIN_OPEN_FILES:
        problems.append(f"only {files} files may be open, and each peer takes a few: ulimit -n {_MIN_OPEN_FILES}")
    limits = {
        "cores": len(os.sched_getaffinity(0)),
        "open files": _amount(files),
        "locked memory": _amount(locked, "bytes"),
    }
    try:
        status = os.statvfs("/dev/shm")
    except OSError as error:
        limits["/dev/shm"] = f"not there ({error.strerror})"
        return limits
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    limits["/dev/shm"] = f"{size >> 20} MiB, {free >> 20} MiB free"
    if free < _MIN_SHM_BYTES:
        # ringcore's own memory files have no name and do not count here; those of data loaders do.
        problems.append(
            f"/dev/shm has {free >> 20} MiB free; ringcore does not need it, but data loaders do: in a container raise "
            "it with --shm-size=1g"
        )
    return limits


def _amount(limit: int, unit: str = "") -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} {unit}".strip()


def _frameworks() -> dict[str, str]:
    found = {name: [*_versions([name, *_OTHER_NAMES.get(name, ())]).values()] for name in _FRAMEWORKS}
    return {name: versions[0] for name, versions in found.items() if versions}


def _versions(distributions: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _adapters(frameworks: dict[str, str], problems: list[str]) -> dict[str, str]:
    names = {
        str(distribution.metadata["Name"]).lower().replace("_", "-")
        for distribution in importlib.metadata.distributions()
        if distribution.metadata["Name"]
    }
    found = _versions(sorted(name for name in names if name.startswith(_ADAPTER_PREFIX)))
    for name, version in found.items():
        if version != __version__:
            problems.append(
                f"{name} is {version}, but ringcore is {__version__}: pip install ringcore=={__version__} "
                f"{name}=={__version__}"
            )
    for framework, adapter in _FRAMEWORKS.items():
        comes_along = framework == "tensorflow" and "ringcore-keras" in found  # which works with others as well
        if adapter in found and framework not in frameworks and not comes_along:
            problems.append(f"{adapter} is installed, but {framework} is not: pip install {framework}")
    return found


def _mpi(problems: list[str]) -> str:
    """Which MPI a job started here would use, and why."""
    from ringcore.environment import mpi as _mpi
    from ringcore.environment.settings import Settings, variable

    if not _mpi.has_shims():
        return "this build of ringcore cannot use any: it was compiled without the headers of MPI; the wheel can"
    candidates = _mpi.candidates(os.environ, Settings.from_environ(os.environ).mpi_library)
    for candidate in candidates:
        outcome = try_library(candidate.library)
        if outcome["found"]:
            return f"{outcome['version'] or outcome['name']} ({outcome['path']}): {candidate.reason}"
    if os.environ.get(variable("mpi_library")):
        problems.append(f"RINGCORE_MPI_LIBRARY is {candidates[0].library}, which cannot be opened: {outcome['reason']}")
    return f"none of {', '.join(candidate.library for candidate in candidates)} can be opened"


def _shared_gpu(libraries: dict[str, list[dict[str, Any]]]) -> str:
    """Which way ranks that share a GPU would take here; they agree on it when they first use it."""

    def version(kind: str) -> tuple[int, ...] | None:
        found = next((outcome for outcome in libraries[kind] if outcome["found"]), None)
        return None if found is None else tuple(map(int, re.findall(r"\d+", found["version"])))

    cuda, nccl = version("CUDA driver"), version("NCCL")
    if cuda is None:
        return "there is no driver of CUDA here"
    if nccl is not None and nccl >= _NCCL_SHARES_GPUS and nccl_shares_gpus(os.environ):
        return "NCCL, as NCCL_MULTI_RANK_GPU_ENABLE=1 says"
    by_host = "the host, to which tensors are copied: "
    if version("NVRTC") is None:
        return by_host + "the kernels for other ways need NVRTC"
    if cuda < _CUDA_WAITS_FOR_WORDS:
        return by_host + "other ways need a driver for CUDA 11.7 or later"
    return "the GPU's memory (CUDA IPC), or the host where processes may not open each other's"


def _try_transport(name: str) -> dict[str, Any]:
    """Start two processes and let them reduce over one transport."""
    command = [sys.executable, "-m", "ringcore.launcher.main", "-np", "2", "--transport", name]
    command += ["--no-python", sys.executable, "-c", _SELF_TEST]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=_own_environ(),
    ) as launcher:  # fmt: skip
        try:
            out, said = launcher.communicate(timeout=_SELF_TEST_LIMIT_S)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # it ends its ranks; without it they end by themselves
            _, said = _last_words(launcher)
            return {"works": False, "reason": f"no result after {_SELF_TEST_LIMIT_S:g} s. {said}".strip()}
    if launcher.returncode != 0:
        return {"works": False, "reason": said.strip() or f"exit code {launcher.returncode}"}
    taken = out.rpartition("transport ")[2].strip()
    if taken != name:
        return {"works": False, "reason": f"the two processes used {taken!r} instead"}
    return {"works": True, "reason": "2 processes summed 3 and 262144 float64, all right"}


def _last_words(launcher: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return launcher.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        launcher.kill()
        return launcher.communicate()


def _own_environ() -> dict[str, str]:
    """Without the settings and the place of a job that this process may belong to."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RINGCORE_")}
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, [home, environ.get("PYTHONPATH", "")]))}


def _transport_problem(name: str, reason: str) -> str:
    remedy = {
        "shm": "jobs on this host use TCP, which is slower; are memfd_create and Unix sockets forbidden (seccomp)?",
        "tcp": "jobs over several hosts cannot run; is the loopback interface up, or a firewall between processes?",
    }[name]
    return f"the self-test over {name} failed: {reason.splitlines()[-1]}; {remedy}"


def _lines(report: dict[str, Any], everything: bool) -> Iterator[str]:
    yield f"ringcore   {report['ringcore']}"
    yield f"Python     {report['python']}"
    yield f"platform   {report['platform']}"
    yield f"kernels    {report['kernels']}"
    yield from _section("transports, tried between two processes")
    for name, outcome in report["transports"].items():
        yield _row(name, ("works: " if outcome["works"] else "FAILS: ") + outcome["reason"])
    yield from _section("MPI that a job started here would use")
    yield textwrap.fill(report["mpi"], 118, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
    yield from _library_lines(report["libraries"], everything)
    yield _row("is encrypted", report["encryption"])
    yield _row("TLS by the kernel", report["kernel_tls"])
    if everything or any(outcome["found"] for outcome in report["libraries"]["CUDA driver"]):
        yield from _section("ranks that share a GPU would meet by way of")
        yield f"  {report['shared_gpu']}"
    yield from _section("frameworks installed")
    yield from _versions_lines(report["frameworks"])
    yield from _section("adapters installed")
    yield from _versions_lines(report["adapters"])
    yield from _section("limits")
    for name, value in report["limits"].items():
        yield _row(name, str(value))
    yield from _section("problems")
    if not report["problems"]:
        yield "  none"
    for problem in report["problems"]:
        yield textwrap.fill(problem, 100, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)


def _library_lines(libraries: dict[str, list[dict[str, Any]]], everything: bool) -> Iterator[str]:
    """Of each kind what could be opened; what a machine does not have it need not have: in one line."""
    here = {kind: [outcome for outcome in tries if outcome["found"]] for kind, tries in libraries.items()}
    yield from _section("libraries that can be used, tried to open")
    for kind, tries in libraries.items():
        for outcome in tries if everything else here[kind]:
            yield _row(kind.partition(" (")[0], f"{outcome['name']}: {_found(outcome)}")
    missing = [kind for kind, found in here.items() if not found]
    if missing and not everything:
        yield _row("not here", f"{', '.join(missing)}; `ringcore doctor --all` says why")


def _section(title: str) -> Iterator[str]:
    yield ""
    yield title


def _row(name: str, text: str) -> str:
    head, rest = f"  {name:<22} ", " " * 25
    return textwrap.fill(text, 120, initial_indent=head, subsequent_indent=rest, break_long_words=False)


def _found(outcome: dict[str, Any]) -> str:
    if not outcome["found"]:
        return f"no: {outcome['reason']}"
    return f"{outcome['version'] or 'opened; it does not tell its version'} ({outcome['path']})"


def _versions_lines(versions: dict[str, str]) -> Iterator[str]:
    if not versions:
        yield "  none"
    for name, version in versions.items():
        yield _row(name, version)
