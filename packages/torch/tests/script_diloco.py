"""A rank of DiLoCo, by ringcore or by torchft: script_diloco.py FOLDER FRAGMENTS DELAY ALPHA [RANK LIGHTHOUSE].

With the address of a lighthouse it is torchft's, whose Python need not have ringcore. In float64; the weights after
each step go into a file of FOLDER.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

EVERY, OUTER_STEPS, SIZE, LAYERS = 6, 20, 2, 3
LIMIT = datetime.timedelta(minutes=2)


def layers_of(fragments: int) -> list[list[int]]:
    """The layers of each fragment, which take turns in this order."""
    each = LAYERS // fragments
    return [list(range(i * each, (i + 1) * each)) for i in range(fragments)]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """The outer optimizer."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


@contextlib.contextmanager
def torchft(
    model: torch.nn.Sequential, inner: torch.optim.Optimizer, fragments: int, delay: int, alpha: float
) -> Iterator[torch.optim.Optimizer]:
    """The optimizer that steps by DiLoCo."""
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    rank, lighthouse = sys.argv[5:]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LIMIT), load_state_dict=None, state_dict=None, min_replica_size=SIZE,
        use_async_quorum=False, init_sync=False, timeout=LIMIT, quorum_timeout=LIMIT, connect_timeout=LIMIT,
        rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port, replica_id=f"rank_{rank}",
        lighthouse_addr=lighthouse, hostname="127.0.0.1",
    )  # fmt: skip
    parts = [torch.nn.Sequential(*(model[layer] for layer in layers)) for layers in layers_of(fragments)]
    outer = [sgd(part.parameters()) for part in parts]
    with DiLoCo(manager, parts, inner, outer, sync_every=EVERY, fragment_sync_delay=delay, fragment_update_alpha=alpha):
        yield inner
    manager.shutdown()


@contextlib.contextmanager
def ringcore(
    model: torch.nn.Sequential, inner: torch.optim.Optimizer, fragments: int, delay: int, alpha: float
) -> Iterator[torch.optim.Optimizer]:
    """The same."""
    import ringcore_torch as ring

    ring.init()
    # The one that takes its turn last comes first.
    named = [
        (f"{layer}.{name}", parameter)
        for layers in reversed(layers_of(fragments))
        for layer in layers
        for name, parameter in model[layer].named_parameters()
    ]
    yield ring.DiLoCo(inner, sgd(model.parameters()), named, every=EVERY, fragments=fragments, delay=delay, alpha=alpha)


def main() -> None:
    """Train."""
    folder, fragments, delay, alpha = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    by = torchft if len(sys.argv) > 5 else ringcore
    rank = int(sys.argv[5] if by is torchft else os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(LAYERS))).double()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = torch.Generator().manual_seed(rank + 1)
    kept = []
    with by(model, inner, fragments, delay, alpha) as optimizer:
        for _ in range(EVERY * OUTER_STEPS):
            optimizer.zero_grad()
            model(torch.randn(4, 8, generator=batches, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
            kept.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.save(torch.stack(kept), folder / f"{by.__name__}.{rank}")
    sys.stdout.flush()
    os._exit(0)  # torchft's threads would be waited for


if __name__ == "__main__":
    main()
