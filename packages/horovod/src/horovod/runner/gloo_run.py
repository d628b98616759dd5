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
               "min_np", "min_num_proc", "max_np", "max_num_proc", "cooldown_range"}  # fmt: skip
_NAMES = {
    "nic": "network_interfaces",
    "nics": "network_interfaces",
    "start_timeout": "start_timeout_s",
    "prefix_output_with_timestamp": "prefix_timestamp",
    "slots": "slots_per_host",
}


def gloo_run(args: Any, *, is_elastic: bool = False) -> list[Any] | None:
    """Start a job with ringrun, or call a function on its ranks.

    Args:
        args: See `horovod.runner._HorovodArgs`.
        is_elastic: Ranks may come and go.

    Returns:
        What the function returned, in the order of ranks; None of a command.

    Raises:
        RuntimeError: A rank has failed. What a function raised is its `original`.
        TypeError: ringrun has no such option, or it takes another value.
    """
    options = {**_options(args), **(_elastic_options(args) if is_elastic else {})}
    if args.run_func:
        return _call(args, options)
    words: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        several = [option, *map(str, value)] if isinstance(value, tuple) else []
        words += several or [option if value is True else f"{option}={value}"]
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


def _elastic_options(args: Any) -> dict[str, Any]:
    # Without a least number Horovod goes on with no fewer than begin.
    options = {
        "min_np": args.min_num_proc or args.min_np or args.num_proc,
        "max_np": args.max_num_proc or args.max_np,
        "reset_limit": args.reset_limit,
        "blacklist_cooldown_range": None if args.cooldown_range is None else tuple(args.cooldown_range),
    }
    return {name: value for name, value in options.items() if value is not None}


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
