"""The command `horovodrun`: ringrun under another name, and mpirun for those who ask for it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ringcore import InvalidArgument
from ringcore.commands import cli

from horovod.common.basics import gloo_built, mpi_built
from horovod.common.environment import tell_without_effect, translate_environment
from horovod.runner import _HorovodArgs
from horovod.runner.common.util.hosts import parse_hosts_and_slots
from horovod.runner.gloo_run import gloo_run
from horovod.runner.mpi_run import mpi_run
from horovod.runner.util import network

__all__ = ["gloo_built", "mpi_built", "run_commandline"]

_ELASTIC = ("min_np", "min_num_proc", "max_np", "max_num_proc", "elastic_timeout", "reset_limit", "cooldown_range")
_AS_MANY_AS_EVER = ("min_np", "min_num_proc", "max_np", "max_num_proc")
_SSH_LIMIT_S = 10


def run_commandline() -> None:
    """Start a job, and exit as it does. `--check-build` tells what is usable here."""
    words = sys.argv[1:]
    if {"--check-build", "-cb"} & set(words[:1]):
        sys.exit(cli.main(["doctor"]))
    try:
        translate_environment()
    except InvalidArgument as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        sys.exit(2)
    tell_without_effect(lambda line: print(f"horovodrun: {line}", file=sys.stderr))
    asked = _mpi_arguments(words)
    if asked.use_mpi:
        mpi_run(asked)
    sys.exit(cli.main(["run", *words]))


def _mpi_arguments(words: Sequence[str]) -> _HorovodArgs:
    """What mpirun is told, if the words ask for it: of all others ringrun reads the words."""
    args = _HorovodArgs()
    if "--mpi" not in words:
        return args
    parser = argparse.ArgumentParser("horovodrun", allow_abbrev=False)
    parser.add_argument("--mpi", action="store_true", dest="use_mpi")
    parser.add_argument("-np", "-n", "--num-proc", type=int, dest="num_proc")
    parser.add_argument("-H", "--hosts")
    parser.add_argument("-hostfile", "--hostfile")
    parser.add_argument("--mpi-args", "--binding-args", action="append", dest="mpi_args")
    parser.add_argument("--network-interfaces", dest="nics")
    parser.add_argument("--start-timeout", type=float)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    found, _ = parser.parse_known_args(words)
    found.mpi_args = " ".join(found.mpi_args or ())
    vars(args).update(vars(found))
    return args


def _run(args: Any) -> list[Any] | None:
    """Start a job as `horovodrun` does with these arguments, or call `args.run_func` on its ranks.

    Args:
        args: See `horovod.runner._HorovodArgs`.

    Returns:
        What the function returned, in the order of ranks; None of a command.

    Raises:
        RuntimeError: A rank has failed, or a host cannot be reached.
        ValueError: An argument asks for what ringcore does not do.
    """
    is_elastic = _is_elastic(args)
    if is_elastic and args.use_mpi:
        raise ValueError("run(use_mpi=True): mpirun starts no elastic job. Remedy: leave it out")
    if not is_elastic:
        args = _with_discovered_hosts(args)
    translate_environment()
    if (args.verbose or 0) >= 2:
        _tell_hosts(args)
    return mpi_run(args) if args.use_mpi else gloo_run(args, is_elastic=is_elastic)


def _is_elastic(args: Any) -> bool:
    """Whether ranks may come and go: a job that may have no less and no more is not elastic."""
    asked = [name for name in _ELASTIC if getattr(args, name) is not None]
    return any(name not in _AS_MANY_AS_EVER or getattr(args, name) != args.num_proc for name in asked)


def _with_discovered_hosts(args: Any) -> Any:
    """The same arguments with the hosts that a script tells, once: the number of ranks is fixed."""
    if not args.host_discovery_script:
        return args
    shell = ["/bin/sh", "-c", args.host_discovery_script]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{args.host_discovery_script} returned {done.returncode}: {done.stderr.strip()}")
    found = _HorovodArgs()
    vars(found).update(vars(args))
    each = "" if args.slots is None else f":{args.slots}"
    hosts = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    named = ",".join(host if ":" in host else host + each for host in hosts)
    vars(found).update(hosts=named, host_discovery_script=None, slots=None)
    return found


def _tell_hosts(args: Any) -> None:
    names, _ = parse_hosts_and_slots(args.hosts or "localhost")
    remote = network.filter_local_addresses(names)
    print("Remote host found: " + " ".join(remote))
    if not remote:
        print("All hosts are local, finding the interfaces with address 127.0.0.1")
        print("Local interface found " + " ".join(sorted(network.get_local_intfs())))
        return
    print("Checking ssh on all remote hosts.")
    if not _check_all_hosts_ssh_successful(remote, args.ssh_port, args.ssh_identity_file):
        raise RuntimeError("could not connect to some hosts via ssh")
    print("SSH was successful into all the remote hosts.")


def _check_all_hosts_ssh_successful(
    host_addresses: Sequence[str],
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    fn_cache: Any = None,  # noqa: ARG001 - nothing is cached
) -> bool:
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_SSH_LIMIT_S}"]
    options += ["-p", str(ssh_port)] if ssh_port else []
    options += ["-i", ssh_identity_file] if ssh_identity_file else []

    def reached(host: str) -> bool:
        done = subprocess.run(["ssh", *options, "--", host, "true"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"ssh not successful for host {host}:\n{done.stderr}", end="")
        return done.returncode == 0

    with ThreadPoolExecutor(len(host_addresses)) as pool:
        return all(list(pool.map(reached, host_addresses)))
