"""The command `horovodrun`: ringrun under another name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from ringcore.commands import cli

from horovod.common.basics import gloo_built, mpi_built, translate_environment
from horovod.runner import FAILED, run, supported
from horovod.runner.util.network import with_one_local_host

__all__ = ["gloo_built", "mpi_built", "run_commandline"]

# The words of the command line for what `_run` takes.
_WORDS = {
    "hosts": "--hosts",
    "hostfile": "--hostfile",
    "ssh_port": "--ssh-port",
    "ssh_identity_file": "--ssh-identity-file",
    "start_timeout": "--start-timeout",
    "output_filename": "--output-filename",
    "network_interfaces": "--network-interfaces",
}


def run_commandline() -> None:
    """Start a job, and exit as it does. `--check-build` tells what is usable here."""
    if {"--check-build", "-cb"} & set(sys.argv[1:2]):
        sys.exit(cli.main(["doctor"]))
    translate_environment()
    sys.exit(cli.main(["run", *sys.argv[1:]]))


def _run(args: Any) -> list[Any] | None:
    """Start a job as `horovodrun` does with these arguments, or call `args.run_func` on its ranks.

    Args:
        args: See `horovod.runner._HorovodArgs`.

    Returns:
        What the function returned, in the order of ranks; None of a command.

    Raises:
        RuntimeError: A rank has failed.
        ValueError: An argument asks for what ringcore does not do.
    """
    options = {name: value for name, value in vars(args).items() if name not in ("num_proc", "command", "run_func")}
    nics = options.pop("nics", None) or options.pop("nic", None)
    options["network_interfaces"] = nics if isinstance(nics, str) else ",".join(nics or ())
    if args.run_func:
        found: list[Any] = run(args.run_func, num_proc=args.num_proc, **options)
        return found
    options = supported(options, args.num_proc)
    if "hosts" in options:
        options["hosts"] = with_one_local_host(options["hosts"])
    words = [f"{_WORDS[name]}={value}" for name, value in options.items() if name in _WORDS]
    verbose = ["--verbose"] if options.get("verbose") else []
    translate_environment()
    done = subprocess.run(
        [sys.executable, "-m", "ringcore", "run", "-np", str(args.num_proc), *words, *verbose, *args.command],
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{FAILED}: ringrun returned {done.returncode}")
    return None
