"""What a rank's program uses: telling the test where it stands, and catching what an operation raises."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LIMIT_S = 60.0


def mark(name: str) -> None:
    """Let the test, and the other ranks, see that this rank has come so far."""
    _path(name, os.environ["RANK"]).touch()


def await_mark(name: str, rank: int | str) -> None:
    """Wait until another rank, or the test ("test"), has made its mark."""
    deadline = time.monotonic() + _LIMIT_S
    while not _path(name, rank).exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"rank {rank} did not come to {name!r} within {_LIMIT_S:g} s")
        time.sleep(0.002)


def caught(call: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
    """Call something that should raise; returns the error's type, its message and how long it took."""
    begin = time.monotonic()
    try:
        value = call(*args, **options)
    except Exception as error:
        return {"type": type(error).__name__, "message": str(error), "seconds": time.monotonic() - begin}
    return {"type": None, "message": f"returned {value!r}", "seconds": time.monotonic() - begin}


def _path(name: str, rank: int | str) -> Path:
    return Path(os.environ["RANKS_DIRECTORY"], f"mark.{name}.{rank}")


def listen_behind(ports: list[int]) -> None:
    """The others are told that this rank listens at its one of these ports. Where it does stands in port.RANK."""
    from dataclasses import replace

    from ringcore.bootstrap import mesh

    plain, me = mesh.listen, int(os.environ["RANK"])

    def listen(*args: object) -> tuple[list, list]:
        sockets, endpoints = plain(*args)
        directory = Path(os.environ["RANKS_DIRECTORY"])
        (directory / f"new.port.{me}").write_text(str(endpoints[0].port))
        (directory / f"new.port.{me}").rename(directory / f"port.{me}")
        return sockets, [replace(endpoint, port=ports[me]) for endpoint in endpoints]

    mesh.listen = listen


def sums_rightly(elements: int) -> bool:
    """Whether an allreduce of so many elements gives the right sum."""
    import numpy as np
    import ringcore

    total = ringcore.allreduce(np.ones(elements, np.float32), op=ringcore.Sum, name=f"of{elements}")
    return bool((total == ringcore.size()).all())


def reduce_until_lost(elements: int, name: str) -> dict[str, Any]:
    """Reduce without end, and return the error that ends it. Mark "ready" is there after the first time."""
    import numpy as np
    import ringcore

    tensor = np.ones(elements, np.float32)
    ringcore.allreduce_(tensor, op=ringcore.Sum, name="warm")
    mark("ready")

    def forever() -> None:
        while True:
            ringcore.allreduce_(tensor, op=ringcore.Max, name=name)

    return caught(forever)
