"""Starts jobs with the `mpirun` of the MPI that is installed: ringcore finds its place there."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod.runner import run_task
from horovod.runner.common.util import safe_shell_exec
from horovod.runner.common.util.hosts import parse_hosts_and_slots

__all__ = ["mpi_available", "mpi_run"]

# What `mpirun --version` says -> the words for a file of hosts, for all jobs, and for where ranks go. Open MPI passes
# those variables on that it is told the names of; the others, of one family, pass all.
_OPEN = {"hostfile": "--hostfile", "always": "--tag-output", "binding": "--bind-to none --map-by slot"}
_HYDRA = {"hostfile": "-f", "always": "-l", "binding": ""}
_KINDS = {"Open MPI": _OPEN, "OpenRTE": _OPEN, "MPICH": _HYDRA, "HYDRA": _HYDRA, "Intel(R) MPI": _HYDRA}
# What else they may be told: the variable that tells the ranks, or None where nothing is to be told.
_UNDERSTOOD = {
    **dict.fromkeys(("num_proc", "min_np", "min_num_proc", "max_np", "max_num_proc", "use_mpi", "use_gloo",
                     "disable_cache", "verbose", "command", "run_func", "executable", "hosts", "hostfile", "mpi_args",
                     "binding_args")),
    "nics": "RINGCORE_NETWORK_INTERFACES",
    "start_timeout": "RINGCORE_START_TIMEOUT_S",
}  # fmt: skip
# They describe this machine or this shell.
_NOT_EXPORTED = {"HOSTNAME", "OLDPWD", "PWD", "SHLVL", "_"}


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """Whether there is an `mpirun` that this module can talk to.

    Args:
        env: With the PATH to look in; None: this process's.
    """
    return _kind(env) is not None


def mpi_run(args: Any) -> list[Any] | None:
    """Start a job with mpirun. A command takes this process's place; a function is called here, and waited for.

    Args:
        args: See `horovod.runner._HorovodArgs`.

    Returns:
        What the function returned, in the order of ranks.

    Raises:
        RuntimeError: There is no mpirun, or it has failed.
        ValueError: An argument means nothing to mpirun.
    """
    env = {**os.environ, **_variables(args)}
    kind = _kind(env)
    if kind is None:
        raise RuntimeError(
            "no mpirun of Open MPI, MPICH or Intel MPI is in PATH; without --mpi, ringrun starts the job"
        )
    words = _words(args, kind, env)
    if not args.run_func:
        command = shlex.join([*words, *args.command])
        if args.verbose:
            print(command, flush=True)
        # Through a shell, as Horovod does: job scripts and tests look at what is executed.
        os.execve("/bin/sh", ["/bin/sh", "-c", command], env)
        return None
    with tempfile.TemporaryDirectory(prefix="horovod-") as folder:
        return _call(args.run_func, words, args.executable or sys.executable, Path(folder), env)


def _variables(args: Any) -> dict[str, str]:
    given = {name: value for name, value in vars(args).items() if value}
    unknown = given.keys() - _UNDERSTOOD
    if unknown:
        raise ValueError(
            f"run(use_mpi=True, {min(unknown)}=...): mpirun is not told this; say it in mpi_args or by a variable, or "
            "leave use_mpi out: ringrun understands it"
        )
    texts = {name: value if isinstance(value, (str, float, int)) else ",".join(value) for name, value in given.items()
             if _UNDERSTOOD[name]}  # fmt: skip
    return {str(_UNDERSTOOD[name]): str(text) for name, text in texts.items()}


def _call(
    function: Callable[[], Any], words: Sequence[str], executable: str, folder: Path, env: Mapping[str, str]
) -> list[Any]:
    run_task.leave_call(folder, function)
    command = shlex.join([*words, executable, "-m", run_task.__name__, str(folder)])
    code = safe_shell_exec.execute(command, env)
    if code != 0:
        raise RuntimeError(f"mpirun failed with exit code {code}; what the ranks said stands above")
    return run_task.take_results(folder)


def _words(args: Any, kind: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    words = ["mpirun", *kind["always"].split(), *shlex.split(args.binding_args or kind["binding"])]
    words += ["-np", str(args.num_proc)]
    if args.hostfile:
        words += [kind["hostfile"], args.hostfile]
    else:
        words += _hosts(args.hosts or f"localhost:{args.num_proc}", kind)
    if kind is _OPEN:
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
        for name in sorted(env):
            if name.isidentifier() and name not in _NOT_EXPORTED:
                words += ["-x", name]
    return words + shlex.split(args.mpi_args or "")


def _hosts(hosts: str, kind: Mapping[str, str]) -> list[str]:
    if kind is _OPEN:
        return ["-H", hosts]
    names, slots = parse_hosts_and_slots(hosts)
    if len(set(slots.values())) > 1:
        raise ValueError(f"hosts={hosts!r}: this mpirun takes the same number of ranks on each, or a hostfile")
    return ["-hosts", ",".join(names), "-ppn", str(slots[names[0]])]


def _kind(env: Mapping[str, str] | None) -> Mapping[str, str] | None:
    try:
        done = subprocess.run(["mpirun", "--version"], env=env, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next((kind for name, kind in _KINDS.items() if name in done.stdout + done.stderr), None)
