"""ringcore on Dask: a function on the workers of a cluster, each with a rank."""

from __future__ import annotations

from ringcore.adapter import import_framework as _import_framework

_import_framework("distributed", "ringcore-dask", {"distributed": "distributed"})

import ipaddress
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from distributed import Client, Future
from ringcore.launcher.external import LaunchError, PlacedJob, RankError, host_rank, own_address

__all__ = ["LaunchError", "RankError", "run"]

T = TypeVar("T")


def run(
    client: Client,
    fn: Callable[..., T],
    n: int | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    workers: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    start_timeout_s: float = 60.0,
    verbose: bool = False,
) -> list[T]:
    """Call a function on workers of a cluster at the same time, and wait for all of them.

    Each worker has one rank, as a child process: what it does to itself does not harm the worker. What ranks print
    appears here as it comes.

    Args:
        client: Of the cluster.
        fn: The function; it calls `ring.init()`. Pickled by cloudpickle.
        n: Number of ranks; `None`: one for each worker.
        args: Its arguments, the same on each rank.
        kwargs: Its keyword arguments.
        workers: Addresses of the workers to take; `None`: any.
        env: Variables for the ranks, `RINGCORE_*` settings among them.
        start_timeout_s: All workers must have begun after so long: what they do already is not put off.
        verbose: Say what is done.

    Returns:
        What it returned, in the order of ranks.

    Raises:
        RankError: It raised on a rank, or a rank was killed; its `original` is the exception.
        LaunchError: The ranks could not be started.
        ValueError: There are not as many workers, or the client is asynchronous.
        TypeError: The function cannot be pickled, or an argument is of another type.
        RuntimeError: The client is closed, or this is a rank itself.
    """
    if os.environ.get("RINGCORE_RANK"):
        raise RuntimeError(
            "ringcore_dask.run is called inside a rank, for whose end it would wait; call it where the job was started"
        )
    if not hasattr(client, "scheduler_info") or not hasattr(client, "submit"):
        raise TypeError(f"client= is a {type(client).__name__}, and no Client of Dask: distributed.Client(cluster) is")
    if client.status == "closed":
        raise RuntimeError("this client of Dask is closed: make another one of its cluster")
    if client.asynchronous:
        raise ValueError("this client is asynchronous, and all ranks are waited for: make one with asynchronous=False")
    if n is not None and not hasattr(n, "__index__"):
        raise TypeError(f"n={n!r} is no whole number")
    known = sorted(client.scheduler_info(n_workers=-1)["workers"])
    unknown = sorted(set(workers or ()) - set(known))
    if unknown:
        raise ValueError(
            f"there is no worker {', '.join(unknown)} in this cluster; it has {', '.join(known) or 'none'}"
        )
    found = list(workers or known)
    size = len(found) if n is None else n
    if not 1 <= size <= len(found):
        raise ValueError(
            f"{size} ranks need as many workers, and there are {len(found)}: each worker has one rank. Start more "
            "(LocalCluster(n_workers=...), cluster.scale(...)), or ask for fewer"
        )
    failures: list[BaseException] = []
    with PlacedJob(
        size, fn, args, kwargs, host=_host(found[:size]), env=env, start_timeout_s=start_timeout_s, verbose=verbose
    ) as job:

        def on_end(future: Future) -> None:
            if future.status == "error":
                failures.append(future.exception())
                job.abandon()

        futures = [
            client.submit(
                host_rank, job.ticket(index), job.call, workers=[address], allow_other_workers=False, pure=False
            )
            for index, address in enumerate(found[:size])
        ]
        for future in futures:
            future.add_done_callback(on_end)
        try:
            return job.results()
        except LaunchError as error:
            if failures:
                raise LaunchError(f"a worker could not start its rank: {failures[0]}") from failures[0]
            raise error
        finally:
            client.cancel([future for future in futures if not future.done()])


def _host(workers: Sequence[str]) -> str:
    """Where the workers reach this host: on loopback if all of them are here."""
    hosts = [urlsplit(address).hostname or "" for address in workers]
    return "127.0.0.1" if all(_is_loopback(host) for host in hosts) else own_address()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # inproc:// has no address, and a name may be anybody's
        return host in ("", "localhost")
