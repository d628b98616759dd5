"""DiLoCo by torchft among hosts far apart; `sending_less.py` starts it, with a Python that has torchft.

    python torchft_rank.py torchft RANK SIZE ROOT_ADDRESS KEY_FILE LIGHTHOUSE_PORT

Every rank is a replica group of its own, which sums over gloo. The model, the optimizers and what a step takes are
those of the case `sites` in sending_less_rank.py; torchft quantises on GPUs only. Rank 0 prints a JSON line, as there.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import sys
import time

import torch
from models import mlp
from torch.distributed import TCPStore

EVERY, FRAGMENTS, DEVICE_S = 50, 5, 0.3
ALONE_STEPS = 20
STORE_PORT = 29530
LIMIT = datetime.timedelta(minutes=10)


def main() -> None:
    """Measure both."""
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    rank, size, root, lighthouse = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[6]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = mlp()
    inner = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    inputs = torch.randn(8, 912, generator=torch.Generator().manual_seed(rank))

    def step() -> None:
        inner.zero_grad()
        model(inputs).square().mean().backward()
        time.sleep(DEVICE_S)
        inner.step()

    def timed(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - begin) / steps * 1e3

    own = socket.gethostbyname(socket.gethostname())
    store = TCPStore(own, STORE_PORT, is_master=True, wait_for_workers=False)
    os.environ.update(GLOO_SOCKET_IFNAME="eth0")
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LIMIT), load_state_dict=None, state_dict=None, min_replica_size=size,
        use_async_quorum=False, init_sync=False, timeout=LIMIT, quorum_timeout=LIMIT, connect_timeout=LIMIT,
        rank=0, world_size=1, store_addr=own, store_port=store.port, replica_id=f"rank_{rank}",
        lighthouse_addr=f"http://{root}:{lighthouse}",
    )  # fmt: skip
    timed(2)
    alone = timed(ALONE_STEPS)
    each = len(model) // FRAGMENTS
    fragments = [model[i * each : (i + 1) * each] for i in range(FRAGMENTS)]
    outer = [torch.optim.SGD(one.parameters(), lr=0.7, momentum=0.9, nesterov=True) for one in fragments]
    before_a_fragment = EVERY // FRAGMENTS
    with DiLoCo(
        manager, fragments, inner, outer, sync_every=EVERY, use_bucketization=True, bucket_cap_mb=1000,
        fragment_sync_delay=before_a_fragment - 1,
    ):  # fmt: skip
        # Up to where the first one is sent; then as often as there are fragments one is waited for.
        timed(before_a_fragment)
        meeting = timed(EVERY)
    if rank == 0:
        print(json.dumps({"milliseconds": {"torchft computing alone": [alone], "torchft": [meeting]}}), flush=True)
    manager.shutdown()
    os._exit(0)  # What is under way is waited for otherwise.


if __name__ == "__main__":
    main()
