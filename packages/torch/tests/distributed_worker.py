"""What one rank of a test of torch.distributed does: `python distributed_worker.py FOLDER CASE...`.

It writes the findings of each case to FOLDER/<case>.<rank>.json.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(sys.argv[1])
WIDTH = 200
# Where tensors are made that do not say it: "cpu" or "cuda".
DEVICE = os.environ.get("TEST_DEVICE", "cpu")


def refusal(call: Callable[[], Any]) -> str:
    """What it says when it refuses."""
    try:
        call()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "it was accepted"


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 3)).double()


def batch(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(4, 8, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE)


def loss_of(model: Any, rank: int) -> torch.Tensor:
    loss: torch.Tensor = model(batch(rank)).square().mean()
    return loss


def gradients_of_one() -> list[torch.Tensor]:
    """What one rank with everybody's batches has."""
    model, size = net(), dist.get_world_size()
    (sum(loss_of(model, rank) for rank in range(size)) / size).backward()
    return [parameter.grad for parameter in model.parameters()]


def furthest(found: Any, expected: Any) -> float:
    pairs = zip(found, expected, strict=True)
    return max(float((one.detach() - other.detach()).abs().max()) for one, other in pairs)


def reductions() -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    op = dist.ReduceOp
    found: dict[str, Any] = {}

    def reduced(tensor: torch.Tensor, kind: Any) -> Any:
        dist.all_reduce(tensor, kind)
        return tensor.tolist()

    found["BOR"] = reduced(torch.tensor([1 << rank]), op.BOR) == [(1 << size) - 1]
    found["BAND"] = reduced(torch.tensor([7, 1 << rank]), op.BAND) == [7, 0]
    found["BXOR"] = reduced(torch.tensor([3]), op.BXOR) == [3 if size % 2 else 0]
    found["BOR of bools"] = reduced(torch.tensor([rank == 0, False]), op.BOR) == [True, False]
    scaled = op.__new__(op)
    scaled.__setstate__((int(op.PREMUL_SUM.value), 0.5))
    found["PREMUL_SUM"] = reduced(torch.tensor([2.0 * rank]), scaled) == [sum(range(size))]
    found["average of integers"] = reduced(torch.tensor([-1 - rank]), op.AVG) == [-(size * (size + 1) // 2 // size)]
    found["complex"] = reduced(torch.tensor([1j * rank]), op.SUM) == [1j * sum(range(size))]
    turned = torch.arange(6.0).view(2, 3).t()
    dist.all_reduce(turned)
    found["not contiguous"] = torch.equal(turned, size * torch.arange(6.0).view(2, 3).t())
    own = torch.full((3,), float(rank))
    dist.reduce(own, size - 1)
    found["reduce"] = own.tolist() == [float(sum(range(size)) if rank == size - 1 else rank)] * 3
    # Sizes that differ between the ranks.
    shares = [torch.ones(index + 1) for index in range(size)]
    mine = torch.empty(rank + 1)
    dist.reduce_scatter(mine, shares)
    found["uneven reduce_scatter"] = mine.tolist() == [float(size)] * (rank + 1)
    negated = torch.empty(2, dtype=torch.int64)
    dist.reduce_scatter_single(negated, torch._neg_view(torch.full((2 * size,), 3 + rank)), op.AVG)
    found["reduce_scatter of a negated view"] = negated.tolist() == [-((3 * size + sum(range(size))) // size)] * 2
    leaf = torch.nn.Parameter(torch.full((2,), float(rank)))
    dist.reduce(leaf, 0)
    dist.scatter(leaf, [torch.full((2,), 7.0)] * size if rank == 0 else None)
    found["into a leaf"] = leaf.tolist() == [7.0, 7.0]
    polled = [torch.zeros(2) for _ in range(size)]
    work = dist.all_gather(polled, torch.full((2,), float(rank)), async_op=True)
    while not work.is_completed():
        pass
    found["polled"] = [part.tolist() for part in polled] == [[float(index)] * 2 for index in range(size)]
    bytes_only = torch.full((3,), float(rank)).to(torch.float8_e4m3fn)
    dist.broadcast(bytes_only, size - 1)
    found["broadcast of a dtype that is only moved"] = bytes_only.float().tolist() == [float(size - 1)] * 3
    parts = [torch.empty(index, dtype=torch.complex64) for index in range(size)]
    dist.all_gather(parts, torch.full((rank,), 1j * rank, dtype=torch.complex64))
    found["uneven all_gather"] = [part.tolist() for part in parts] == [[1j * index] * index for index in range(size)]
    return found


def messages() -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    to, source = (rank + 1) % size, (rank - 1) % size
    sent = [torch.full((1000 * tag + 1,), float(rank * 10 + tag)) for tag in range(5)]
    works = [dist.isend(tensor, to, tag=tag) for tag, tensor in enumerate(sent)]
    got = [torch.empty_like(tensor) for tensor in sent]
    # Tags are received in another order than they were sent in.
    received = [dist.irecv(got[tag], source, tag=tag) for tag in reversed(range(5))]
    for work in [*received, *works]:
        work.wait()
    right = [bool((got[tag] == source * 10 + tag).all()) for tag in range(5)]
    # A future does not wait for the operations of earlier ones.
    late = dist.irecv(torch.empty(1), source, tag=7).get_future()
    early = dist.isend(torch.ones(1), to, tag=6)
    dist.recv(torch.empty(1), source, tag=6)
    early.get_future().wait()
    dist.isend(torch.ones(1), to, tag=7).wait()
    late.wait()
    again = torch.empty(4, 2).t()  # not contiguous
    if rank == 0:
        dist.send(torch.ones(2, 4), 1)
        dist.recv(again, 1)
    elif rank == 1:
        dist.recv(again, 0)
        dist.send(again * 2, 0)
    right.append(rank > 1 or bool((again == 2 - rank).all()))
    return {f"message {index}": is_right for index, is_right in enumerate(right)}


def groups() -> dict[str, Any]:
    """Groups that overlap, used in different orders; one of them is made by its members alone."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [(one, other) for one in range(size) for other in range(one + 1, size)]
    everybodys = {pair: dist.new_group(list(pair)) for pair in pairs}
    made = {pair: group for pair, group in everybodys.items() if rank in pair}
    found = {}
    if rank < 2:
        tensor = torch.full((3,), float(rank + 1))
        dist.all_reduce(tensor, group=dist.new_group([0, 1], use_local_synchronization=True))
        found["made by members"] = tensor.tolist() == [3.0] * 3
    works = []
    for pair in sorted(made, reverse=bool(rank % 2)):
        group, tensor = made[pair], torch.full((10_000,), float(rank))
        works.append((pair, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for pair, tensor, work in works:
        work.wait()
        found[str(pair)] = bool((tensor == sum(pair)).all())
    both = [dist.new_group(list(range(size))) for _ in range(2)]
    tensors = [torch.full((5,), float(rank + index)) for index in range(2)]
    order = both if rank % 2 else both[::-1]
    works = [dist.all_reduce(tensors[both.index(group)], group=group, async_op=True) for group in order]
    for work in works:
        work.wait()
    found["same ranks, another order"] = [tensor[0].item() for tensor in tensors] == [
        float(sum(range(size)) + index * size) for index in range(2)
    ]
    for group in made.values():
        dist.destroy_process_group(group)
    return found


def training() -> dict[str, Any]:
    """DistributedDataParallel with all that belongs to it."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank, size = dist.get_rank(), dist.get_world_size()
    expected = gradients_of_one()
    found: dict[str, Any] = {}

    def gradients(model: Any, steps: int = 1) -> list[torch.Tensor]:
        for _ in range(steps):
            model.zero_grad()
            loss_of(model, rank).backward()
        return [parameter.grad for parameter in model.parameters()]

    found["plain"] = furthest(gradients(DistributedDataParallel(net())), expected) < 1e-15
    found["small buckets"] = furthest(gradients(DistributedDataParallel(net(), bucket_cap_mb=0.001)), expected) < 1e-15
    found["static graph"] = furthest(gradients(DistributedDataParallel(net(), static_graph=True), 3), expected) < 1e-15
    model = DistributedDataParallel(net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    found["fp16 hook"] = furthest(gradients(model), expected) < 2**-10
    model = DistributedDataParallel(net())
    # Its callbacks wait for other reductions.
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    found["PowerSGD"] = all(torch.isfinite(grad).all().item() for grad in gradients(model, 4))
    model = DistributedDataParallel(net())
    with model.no_sync():
        loss_of(model, rank).backward()
    loss_of(model, rank).backward()
    twice = [parameter.grad for parameter in model.parameters()]
    found["no_sync"] = furthest(twice, [2 * grad for grad in expected]) < 1e-15

    class Either(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ways = torch.nn.ModuleList(torch.nn.Linear(8, 1).double() for _ in range(size + 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.ways[rank](x)
            return result

    torch.manual_seed(0)
    either = DistributedDataParallel(Either(), find_unused_parameters=True)
    loss_of(either, rank).backward()
    found["unused"] = either.module.ways[size].weight.grad is None and all(
        way.weight.grad is not None for way in either.module.ways[:size]
    )
    joined = DistributedDataParallel(net())
    with Join([joined]):
        for _ in range(2 + rank):
            loss_of(joined, rank).backward()
    found["Join"] = same_on_all_ranks(joined.parameters())
    one, sharded = net(), DistributedDataParallel(net())
    adam = torch.optim.Adam(one.parameters(), 0.01)
    zero = ZeroRedundancyOptimizer(sharded.parameters(), torch.optim.Adam, lr=0.01)
    for _ in range(3):
        adam.zero_grad()
        zero.zero_grad()
        (sum(loss_of(one, index) for index in range(size)) / size).backward()
        loss_of(sharded, rank).backward()
        adam.step()
        zero.step()
    found["ZeroRedundancyOptimizer"] = furthest(sharded.parameters(), one.parameters()) < 1e-12
    return found


def same_on_all_ranks(tensors: Any) -> bool:
    found = []
    for tensor in tensors:
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor.detach())
        found.append(all(torch.equal(parts[0], part) for part in parts))
    return all(found)


def sharding() -> dict[str, Any]:
    """FSDP2, DTensor, DeviceMesh, functional collectives, checkpoints."""
    import torch.distributed._functional_collectives as functional
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    mesh = dist.init_device_mesh(DEVICE, (size,))
    one, sharded = net(), net()
    fully_shard(sharded[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    optimizers = [torch.optim.Adam(model.parameters(), 0.01) for model in (one, sharded)]
    for _ in range(3):
        (sum(loss_of(one, index) for index in range(size)) / size).backward()
        loss_of(sharded, rank).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    whole = [parameter.full_tensor() for parameter in sharded.parameters()]
    found["fully_shard"] = furthest(whole, one.parameters()) < 1e-12
    tensor = distribute_tensor(torch.arange(float(size * 6)).view(size * 2, 3), mesh, [Shard(0)])
    found["DTensor"] = torch.equal(
        tensor.redistribute(placements=[Shard(1)]).redistribute(placements=[Replicate()]).to_local(),
        torch.arange(float(size * 6)).view(size * 2, 3),
    )
    summed = torch.compile(lambda x: functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, backend="aot_eager")
    found["compiled"] = summed(torch.ones(2)).tolist() == [2.0 * size + 1] * 2
    state = {"model": net().state_dict()}
    checkpoint.save(state, checkpoint_id=str(FOLDER / "checkpoint"))
    loaded = {"model": {name: torch.zeros_like(value) for name, value in state["model"].items()}}
    checkpoint.load(loaded, checkpoint_id=str(FOLDER / "checkpoint"))
    found["checkpoint"] = furthest(loaded["model"].values(), state["model"].values()) == 0.0
    return found


def written_by_the_engine() -> dict[str, Any]:
    """Results in one output of the host's memory are copied by nobody."""
    from ringcore_torch.distributed import flat, process_group

    def result_of(*_: Any) -> Any:
        raise AssertionError("the engine made a result of its own")

    rank, size = dist.get_rank(), dist.get_world_size()
    usual = flat.result_of
    flat.result_of = process_group.result_of = result_of
    try:
        gathered, total, exchanged = torch.empty(2 * size), torch.empty(3), torch.empty(size)
        dist.all_gather_single(gathered, torch.full((2,), float(rank)))
        own_row = torch.full((size,), -1.0, dtype=torch.complex64)  # moved as bytes; its own part lies in it
        own_row[rank] = rank
        dist.all_gather_single(own_row, own_row[rank : rank + 1])
        dist.reduce_scatter_single(total, torch.arange(3.0 * size))
        dist.all_to_all_single(exchanged, torch.arange(float(size)) + 10 * rank)
    finally:
        flat.result_of = process_group.result_of = usual
    row = torch.arange(float(size)) + 10 * rank
    dist.all_to_all_single(row, row)  # on its own memory: by way of a result
    ranks = range(size)
    return {
        "gathered": gathered.tolist() == [float(each) for each in ranks for _ in range(2)],
        "own_row": own_row.tolist() == list(ranks),
        "reduced": total.tolist() == [size * (3.0 * rank + i) for i in range(3)],
        "exchanged": exchanged.tolist() == [10.0 * each + rank for each in ranks],
        "over_itself": row.tolist() == [10.0 * each + rank for each in ranks],
    }


def mistakes() -> dict[str, Any]:
    """What misuse says; the group goes on afterwards."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()
    found = {
        "outputs": refusal(lambda: dist.all_gather([torch.empty(3)] * size, torch.ones(2))),
        "single": refusal(lambda: dist.all_gather_single(torch.empty(3), torch.ones(2))),
        "shapes": refusal(lambda: dist.all_reduce(torch.ones(2 + rank))),
        "any": refusal(lambda: dist.recv(torch.ones(1))),
        "splits": refusal(lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1] * size, [2] * size)),
        "complex": refusal(
            lambda: group.reduce_scatter_single(
                torch.ones(1, dtype=torch.complex64), torch.ones(size, dtype=torch.complex64)
            )
        ),
        "devices": refusal(lambda: dist.all_gather_single(torch.ones(size, device="meta"), torch.ones(1))),
        "backend": refusal(lambda: group._get_backend(torch.device("mps"))),
        "dtype": refusal(lambda: dist.reduce_scatter_single(torch.ones(1, dtype=torch.int32), torch.ones(size))),
        "meta": refusal(lambda: dist.all_reduce(torch.ones(2, device="meta"))),
        "floats": refusal(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BOR)),
    }
    found["told"] = [
        refusal(lambda: dist.all_gather([torch.empty(1)] * (size - (rank == 1)), torch.ones(1))),
        refusal(lambda: dist.all_gather_single(torch.empty(size + (rank == 1)), torch.ones(1))),
        refusal(lambda: dist.reduce_scatter_single(torch.empty(1 + (rank == 1)), torch.ones(size))),
        refusal(lambda: dist.all_to_all_single(torch.empty(size + (rank == 1)), torch.ones(size))),
    ]
    group.monitored_barrier(datetime.timedelta(seconds=60))
    if rank == 0:
        found["missing"] = refusal(lambda: group.monitored_barrier(datetime.timedelta(seconds=0.2)))
        work = dist.irecv(torch.ones(1), 1, tag=9)
        found["late"] = refusal(lambda: work.wait(datetime.timedelta(seconds=0.1)))
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(1), 0, tag=9)
    total = torch.ones(1)
    dist.all_reduce(total)
    return {**found, "after": total.item()}


def streams() -> dict[str, Any]:
    """On a GPU: work that is started, waited for and used in different streams."""
    rank, size = dist.get_rank(), dist.get_world_size()
    made, used, more = (torch.cuda.Stream() for _ in range(3))
    total, count = float(sum(range(1, size + 1))), 1 << 22
    found: dict[str, Any] = {}

    def own() -> torch.Tensor:
        torch.cuda._sleep(20_000_000)  # cycles of the GPU: whoever does not wait for the stream sees other values
        return torch.full((count,), rank + 1.0)

    with torch.cuda.stream(made):
        tensors = [own() for _ in range(4)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        turned = own().view(2, -1).t()  # not contiguous
        works.append(dist.all_reduce(turned, async_op=True))
        gathered = torch.zeros(size * count)
        works.append(dist.all_gather_single(gathered, own(), async_op=True))
    future = works[1].get_future()
    with torch.cuda.stream(used):
        works[0].wait()
        copies = [tensors[0].clone()]
        copies.append(future.wait()[0].clone())
        works[4].wait()
        copies.append(turned.clone())
        works[5].wait()
        parts = gathered.clone()
    with torch.cuda.stream(more):
        works[0].wait()
        copies.append(tensors[0].clone())
        works[4].wait()
        copies.append(turned.clone())
    while not works[2].is_completed():
        pass
    with torch.cuda.stream(torch.cuda.Stream()):  # which has waited for nothing
        copies.append(tensors[2].clone())
    works[3].get_future().then(lambda done: copies.append(done.value()[0].clone())).wait()
    dist.barrier(device_ids=[torch.cuda.current_device()])
    torch.cuda.synchronize()
    for index, copy in enumerate(copies):
        found[f"copy {index}"] = bool((copy == total).all())
    found["gathered"] = parts.unique().tolist() == [other + 1.0 for other in range(size)]
    found["default device"] = dist.distributed_c10d._get_default_group()._device_types == [
        torch.device("cpu"), torch.device("cuda"),
    ]  # fmt: skip
    on_host = torch.ones(3, device="cpu")
    dist.all_reduce(on_host)
    found["of the host beside it"] = on_host.tolist() == [float(size)] * 3
    return found


def again() -> dict[str, Any]:
    """The group is destroyed and made anew; then twice by an engine that runs already."""
    totals = []
    for attempt in range(4):
        total = torch.ones(1)
        dist.all_reduce(total)
        totals.append(total.item())
        rank, size = dist.get_rank(), dist.get_world_size()
        if rank == 0:  # from then on, the ranks of this group count differently
            refusal(lambda: dist.all_reduce(torch.ones(1, device="meta")))
        dist.destroy_process_group()
        if attempt == 1:
            import ringcore

            ringcore.init()
        store = dist.FileStore(str(FOLDER / f"store{attempt}"), size)
        dist.init_process_group("ring", store=store, rank=rank, world_size=size)
    return {"totals": totals}


def destroyed() -> dict[str, Any]:
    """Futures of a message that never comes, when the group is destroyed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    watched, unwatched = (dist.irecv(torch.empty(1), 1 - rank, tag=tag) for tag in range(2))
    future = watched.get_future()
    dist.barrier()
    dist.destroy_process_group()
    found = {"watched": refusal(future.wait), "watched too late": refusal(lambda: unwatched.get_future().wait())}
    dist.init_process_group("ring", store=dist.FileStore(str(FOLDER / "store"), size), rank=rank, world_size=size)
    return found


def beside_gloo() -> dict[str, Any]:
    """Groups of this backend where the default group has another one, and nobody has called ringcore.init()."""
    import ringcore

    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.FileStore(str(FOLDER / "gloo"), size), rank=rank, world_size=size)

    def total(group: Any) -> float:
        tensor = torch.full((3,), rank + 1.0)
        dist.all_reduce(tensor, group=group)
        return float(tensor[0])

    found = {"before": not ringcore.is_initialized()}
    world = dist.new_group(backend="ring")
    last = dist.new_group([size - 2, size - 1], backend="ring")
    found["world"] = total(world) == total(None) == size * (size + 1) / 2
    model = torch.nn.parallel.DistributedDataParallel(net(), process_group=world)
    loss_of(model, rank).backward()
    found["model"] = same_on_all_ranks([parameter.grad for parameter in model.parameters()])
    dist.destroy_process_group(world)
    if rank >= size - 2:
        found["engine stays"] = total(last) == 2 * size - 1
        dist.destroy_process_group(last)
    found["engine stops"] = not ringcore.is_initialized()
    some = dist.new_group([size - 2, size - 1], backend="ring")
    if rank >= size - 2:
        found["job of some"] = (ringcore.rank(), ringcore.size()) == (rank - size + 2, 2)
        found["total of some"] = total(some) == 2 * size - 1
        beyond = refusal(lambda: dist.new_group([0, rank], backend="ring", use_local_synchronization=True))
        found["beyond it"] = "a job without rank 0. Remedy: make a group of all ranks first" in beyond
    dist.destroy_process_group()
    found["after"] = not ringcore.is_initialized()
    store = dist.FileStore(str(FOLDER / "ring"), size)
    dist.init_process_group("ring", store=store, rank=rank, world_size=size)
    return found


def accelerated() -> dict[str, Any]:
    """Accelerate uses the group that is there, and trains as it does with gloo."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    rank, size = dist.get_rank(), dist.get_world_size()
    weights = {}
    for backend in ("gloo", "ring"):
        dist.destroy_process_group()
        store = dist.FileStore(str(FOLDER / f"accelerate.{backend}"), size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        accelerator = Accelerator(cpu=True)
        inputs = torch.utils.data.TensorDataset(torch.cat([batch(other) for other in range(4)]))
        model, batches = accelerator.prepare(net(), torch.utils.data.DataLoader(inputs, batch_size=2))
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
        for (x,) in batches:
            optimizer.zero_grad()
            accelerator.backward(model(x).square().mean())
            optimizer.step()
        weights[backend] = [parameter.detach() for parameter in model.parameters()], len(batches), dist.get_backend()
        AcceleratorState._reset_state(reset_partial_state=True)
    (ring, steps, used), (gloo, *_) = weights["ring"], weights["gloo"]
    return {"backend": used == "ring", "steps": steps == 8 // size, "weights": all(map(torch.equal, ring, gloo))}


def report_lookups(mark: Path) -> list[bool]:
    """Leave a mark before this rank waits for a value in a group's store.

    Returns:
        Whether each of the values was there already.
    """
    from ringcore_torch.distributed import job

    there = []

    class Store(dist.PrefixStore):
        def get(self, key: str) -> bytes:
            there.append(self.check([key]))
            mark.touch()
            value: bytes = super().get(key)
            return value

    job.PrefixStore = Store
    return there


def wait_for(mark: Path) -> None:
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline, f"{mark} has not come"
        time.sleep(0.01)


def again_in_one_store() -> dict[str, Any]:
    """Groups of the same names in the same store, which has what the earlier ones left."""
    found = {}
    rank = dist.get_rank()
    for attempt in range(3):
        mark = FOLDER / f"looked{attempt}"
        there = report_lookups(mark) if rank == 1 else []
        if rank == 0:
            wait_for(mark)  # rank 1 looks for what rank 0 will say, and must not find what it has said before
        group = dist.new_group([0, 1])
        if rank < 2:
            total = torch.ones(1)
            dist.all_reduce(total, group=group)
            found[str(attempt)] = total.item() == 2.0
            found[f"{attempt}: nothing of before"] = there == [False] * rank
        arrived = dist.distributed_c10d._get_default_group()
        arrived.monitored_barrier(datetime.timedelta(seconds=60))
        if attempt < 2:
            dist.destroy_process_group()
            dist.init_process_group("ring")
    return found


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    case.__name__: case
    for case in (
        reductions,
        messages,
        groups,
        training,
        sharding,
        written_by_the_engine,
        mistakes,
        streams,
        again,
        destroyed,
        beside_gloo,
        accelerated,
        again_in_one_store,
    )
}


def arguments() -> dict[str, Any]:
    """Of init_process_group, where no launcher says them: TEST_PLACE is "RANK SIZE"."""
    if DEVICE == "cuda":  # as Lightning calls it
        return {"device_id": torch.device("cuda", torch.cuda.current_device())}
    if "TEST_PLACE" not in os.environ:
        return {}
    rank, size = map(int, os.environ["TEST_PLACE"].split())
    return {"init_method": f"file://{FOLDER}/store", "rank": rank, "world_size": size}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.set_default_device(DEVICE)
    dist.init_process_group("ring", **arguments())
    for name in sys.argv[2:]:
        findings = CASES[name]()
        (FOLDER / f"{name}.{dist.get_rank()}.json").write_text(json.dumps(findings))
    dist.destroy_process_group()
