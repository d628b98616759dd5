"""Starts jobs with ringrun, which stands here for Horovod's own launcher."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import ringcore

from horovod.runner.common.util.hosts import parse_hosts_and_slots
from horovod.runner.util import network

__all__ = ["gloo_run"]

# Programs match this text, and no less of it.
FAILED = "Horovod detected that one or more processes exited with non-zero status"

# Arguments that are not ringrun's options, or mean nothing here.
_NO_OPTIONS = {"num_proc", "run_func", "command", "executable", "use_gloo", "use_mpi", "disable_cache",
               "min_np", "min_num_proc", "max_np", "max_num_proc"}  # fmt: skip
_NAMES = {
    "nic": "network_interfaces",
    "nics": "network_interfaces",
    "start_timeout": "start_timeout_s",
    "prefix_output_with_timestamp": "prefix_timestamp",
}


def gloo_run(args: Any) -> list[Any] | None:
    """Start a job with ringrun, or call a function on its ranks.

    Args:
        args: See `horovod.runner._HorovodArgs`.

    Returns:
        What the function returned, in the order of ranks; None of a command.

    Raises:
        RuntimeError: A rank has failed. What a function raised is its `original`.
        TypeError: ringrun has no such option, or it takes another value.
    """
    options = _options(args)
    if args.run_func:
        return _call(args, options)
    words = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in options.items()]
    command = [sys.executable, "-m", "ringcore", "run", "-np", str(args.num_proc), *words, *args.command]
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{FAILED}: ringrun returned {done.returncode}")
    return None


def _call(args: Any, options: dict[str, Any]) -> list[Any]:
    call = args.run_func if isinstance(args.run_func, functools.partial) else functools.partial(args.run_func)
    try:
        return ringcore.run(call.func, call.args, call.keywords, args.num_proc, executable=args.executable, **options)
    except RuntimeError as error:
        error.args = (f"{FAILED}: {error}",)
        raise


def _options(args: Any) -> dict[str, Any]:
    given = {name: value for name, value in vars(args).items() if value and name not in _NO_OPTIONS}
    options = {_NAMES.get(name, name): value for name, value in given.items()}
    if "hosts" in options:
        options["hosts"] = with_one_local_host(options["hosts"])
    if "verbose" in options:
        options["verbose"] = True
    return {name: value if isinstance(value, (str, bool, int, float)) else ",".join(value)
            for name, value in options.items()}  # fmt: skip


def with_one_local_host(hosts: str) -> str:
    """A list of hosts in which this machine has all its slots in one place, as ringrun asks for.

    Args:
        hosts: Such as "localhost:2,127.0.0.1:2,far:4".
    """
    names, slots = parse_hosts_and_slots(hosts)
    others = set(network.filter_local_addresses(names))
    merged: dict[str, int] = {}
    for name in names:
        place = name if name in others else "localhost"
        merged[place] = merged.get(place, 0) + slots[name]
    return ",".join(f"{name}:{count}" for name, count in merged.items())
