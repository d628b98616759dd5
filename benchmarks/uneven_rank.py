"""One rank of the benchmark of uneven networks, on a host of its own; `uneven.py` starts it and says when it sums.

    python uneven_rank.py gloo|ringcore RANK SIZE ROOT_ADDRESS PORT KEY_FILE BYTES [FILE|GENERATOR]
    python uneven_rank.py probe RANK SIZE ROOT_ADDRESS PORT KEY_FILE

A file of a plan, or a generator of `uneven_plans.py`, is registered, and has the sums. Prints a JSON line with the
seconds that this took; then for each line on its standard input one with the milliseconds of a sum, who carried it out,
and a digest of the result. `probe` prints how long it took to measure the network, and what was found.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

NOT_CARRIERS = {"negotiate", "queue", "copy", "pack", "unpack", "wait"}
Sum = Callable[[np.ndarray], Any]


def data_of(rank: int, nbytes: int) -> np.ndarray:
    """Whose sum depends on the order of the additions."""
    return np.random.default_rng(rank).random(nbytes // 4, np.float32)


def start_gloo(rank: str, size: str, root: str, port: str) -> None:
    from torch import distributed

    os.environ.update(MASTER_ADDR=root, MASTER_PORT=port, GLOO_SOCKET_IFNAME="eth0")
    distributed.init_process_group("gloo", rank=int(rank), world_size=int(size))


def sum_by_gloo(array: np.ndarray) -> None:
    import torch
    from torch import distributed

    distributed.all_reduce(torch.from_numpy(array))


def start_ringcore(rank: str, size: str, root: str, port: str, key_file: str) -> None:
    import ringcore

    os.environ.update(
        RANK=rank, WORLD_SIZE=size, LOCAL_RANK="0", RINGCORE_RENDEZVOUS=f"tcp:{root}:{port}",
        RINGCORE_KEY_FILE=key_file,
    )  # fmt: skip
    ringcore.init()


def sum_by_ringcore(array: np.ndarray) -> None:
    import ringcore

    ringcore.allreduce_(array, op=ringcore.Sum, name="sum")


def register(plan: str, nbytes: int) -> None:
    """Let sums of so many bytes take a plan, and no other."""
    from ringcore import plans
    from uneven_plans import GENERATORS

    def load(_: plans.Request) -> plans.Plan:
        return plans.Plan.load(plan)

    plans.register(GENERATORS.get(plan, load), sizes=[nbytes], always=True)


def carriers(run: Callable[[], None]) -> list[str]:
    """Who carried out what ringcore sums meanwhile, as the timeline tells."""
    import ringcore

    runtime = ringcore.job.state.context().runtime
    runtime.start_timeline()
    run()
    return sorted({span[1] for span in runtime.stop_timeline() if span[3] < 0} - NOT_CARRIERS)


def tell(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def probe() -> None:
    """What `ringcore.topology` measures, beside what follows from it."""
    import ringcore
    from ringcore.job.topology import measure
    from ringcore.network.findings import shares_port

    ringcore.barrier()
    begin = time.perf_counter()
    found = measure(seconds=0.05)
    seconds = time.perf_counter() - begin
    findings = found.findings
    assert findings is not None
    tell({
        "seconds": seconds, "switches": found.topology.switches, "ports": [*findings.send, *findings.receive],
        "pairs": [findings.alone[i][j] for i, j in findings.pairs],
        "share_a_port": [shares_port(findings, host) for host in range(len(findings.names))],
    })  # fmt: skip


def turns(library: str, size: int, own: np.ndarray) -> None:
    """Sums, one for each line, checked."""
    add: Sum = {"gloo": sum_by_gloo, "ringcore": sum_by_ringcore}[library]
    expected = sum(data_of(rank, own.nbytes).astype(np.float64) for rank in range(size))
    token = np.zeros(1, np.float32)
    for _ in sys.stdin:
        array = own.copy()
        add(token)
        begin = time.perf_counter()
        taken = carriers(lambda array=array: add(array)) if library == "ringcore" else add(array) or [library]
        milliseconds = (time.perf_counter() - begin) * 1e3
        if not np.allclose(array, expected, rtol=1e-5):
            raise SystemExit(f"a wrong sum by {taken}")
        tell({"milliseconds": milliseconds, "taken": taken, "digest": hashlib.sha256(array).hexdigest()})


def main() -> None:
    library, rank, size, root, port, key_file, *words = sys.argv[1:]
    if library == "gloo":
        start_gloo(rank, size, root, port)
    else:
        start_ringcore(rank, size, root, port, key_file)
    if library == "probe":
        return probe()
    nbytes, plan = int(words[0]), words[1:]
    begin = time.perf_counter()
    if plan:
        register(plan[0], nbytes)
    tell({"ready_s": time.perf_counter() - begin})
    turns(library, int(size), data_of(int(rank), nbytes))
    if library == "gloo":
        from torch import distributed

        distributed.destroy_process_group()  # it aborts otherwise


if __name__ == "__main__":
    main()
