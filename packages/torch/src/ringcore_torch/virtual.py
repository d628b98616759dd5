"""Training whose result does not depend on the number of ranks: a step is the work of virtual ranks.

These are shared out over the ranks that there are. Their gradients are added up in a tree that depends on their number
alone, see `ringcore.adapter.virtual`. Ranks exchange the sums of whole subtrees.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from ringcore import InvalidArgument, MismatchError, RingcoreError, adapter, global_process_set
from ringcore.adapter import Node, SumTree, name_or_next, nodes_of, seed_of, share_out
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ringcore_torch._operations import allgather
from ringcore_torch.parameters import VIRTUAL_RANKS, take_over
from ringcore_torch.state import check_weights_of

# Ranks exchange pieces of so many elements: a rank has room for one piece of each rank's sums, beside its own.
_PIECE_ELEMENTS = 1 << 20
# The number of a step goes in two parts, as float32 has 24 bits; in front of it the rank that it is of.
_STEP_PART = 1 << 20
_STAMP = 3
_NormWithStatistics = torch.nn.modules.batchnorm._NormBase

# What is added up: the gradients that have one dtype and device, end to end.
Flat = list[torch.Tensor]


class VirtualRanks:
    """Makes each step of so many micro-batches, whatever the number of ranks: all of them come to the same bits.

        virtual = ring.VirtualRanks(8, model)
        for step in range(steps):
            for number in virtual.deal(step):
                loss_of(model, micro_batch(step, number)).backward()
            optimizer.step()

    The optimizer is a plain one. After the loop `grad` of each parameter is the average over all micro-batches.

    Args:
        count: Micro-batches of a step; at least as many as ranks, so that none is idle.
        model: The same on all ranks; its parameters are on the CPU, or on this rank's CUDA device.
        seed: Of the random numbers.

    Raises:
        InvalidArgument: `count` is less than 1, or a layer keeps running statistics, which would be those of the
            micro-batches that this rank has had.
    """

    def __init__(self, count: int, model: torch.nn.Module, *, seed: int = 0) -> None:
        if count < 1:
            raise InvalidArgument(f"a step has at least one virtual rank, not {count}")
        for name, module in model.named_modules():
            if isinstance(module, _NormWithStatistics) and module.track_running_stats:
                raise InvalidArgument(
                    f"'{name}' ({type(module).__name__}) keeps running statistics, which would be those of the "
                    "micro-batches of one rank. Remedy: make it with track_running_stats=False, or use GroupNorm or "
                    "LayerNorm"
                )
        self.count = count
        self.seed = seed
        self._named: list[tuple[str, torch.Tensor]] = [
            (name, each) for name, each in model.named_parameters() if each.requires_grad
        ]
        self._parameters = [parameter for _, parameter in self._named]
        self._name = name_or_next(None, "virtual_ranks", global_process_set)
        self._noted: torch.Tensor | None = None  # of the micro-batch that is under way
        self._loss: torch.Tensor | None = None
        self._replaced = False
        self._unchecked = True  # the weights of all ranks, by each new job
        self._has_compared = False
        self._step: int | None = None  # that is under way, or whose loop was left before its end
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []  # while a step is under way
        weakref.finalize(self, _remove, self._hooks)
        take_over(self._parameters, self, VIRTUAL_RANKS)
        adapter.after_init(self._on_init)

    def deal(self, step: int) -> Iterator[int]:
        """This rank's micro-batches of a step, as numbers below `count`; then the gradients are averaged.

        In the body of the loop PyTorch draws the random numbers of the micro-batch, see `seed_of`. When a rank is lost
        meanwhile, outside of `elastic.run`, those that are left get its micro-batches too: the body calls `backward`,
        and does nothing else that counts. Each rank has to come to the end of the loop.

        Args:
            step: Its number; the same on all ranks.

        Raises:
            InvalidArgument: The loop over an earlier step was left before its end, or a body has left no gradient. An
                optimizer of the same parameters raises the former as well.
            MismatchError: The ranks are in different steps, or have other arguments or weights. On every rank.
        """
        if self._step is not None and step > self._step:  # not where a job has gone back to an earlier one
            self._refuse_to_go_on(f"and deal({step}) begins")
        if self._replaced:
            raise InvalidArgument("a later DistributedOptimizer or VirtualRanks averages the gradients of this model")
        if self._unchecked and adapter.followed().size > 1:
            arguments = {"count": self.count, "seed": self.seed}
            adapter.check_arguments(VIRTUAL_RANKS, arguments, global_process_set, name=f"{self._name}.arguments")
            check_weights_of(
                self._named, global_process_set, f"{self._name}.weights", again=self._has_compared,
                broadcast_by="", may_differ=False,
            )  # fmt: skip
            self._has_compared = True
        self._unchecked = False
        self._begin_step(step)
        try:
            yield from self._share_of(step)
        except RingcoreError:  # which says why there are no averages
            self._end_step()
            raise
        self._end_step()

    def _share_of(self, step: int) -> Iterator[int]:
        own: SumTree[Flat] = SumTree(self.count, _add)
        done: dict[int, list[int]] = {}  # by place
        total = None
        while total is None:
            current = adapter.followed()
            members = list(current.members)
            done = {place: done.get(place, []) for place in members}
            begun = {number for numbers in done.values() for number in numbers}
            rest = [number for number in range(self.count) if number not in begun]
            for place, share in zip(members, share_out(rest, len(members)), strict=True):
                done[place] = done[place] + share
                for number in share if place == members[current.rank] else ():
                    self._begin(step, number)
                    yield number
                    self._check_body(step, number)
                    own.put((0, number), self._collect())
            total = self._sum_up(step, own, done)
        torch.manual_seed(seed_of(self.seed, step, self.count))
        self._give(total)

    def note_loss(self, loss: torch.Tensor) -> None:
        """The loss of the micro-batch that is under way, of one element: `loss` is the average over all of them."""
        self._noted = loss.detach()

    @property
    def loss(self) -> torch.Tensor:
        """The average of the losses of the last step, as float32 without a dimension.

        Raises:
            InvalidArgument: There was no step, or one without a loss of each micro-batch.
        """
        if self._loss is None:
            raise InvalidArgument("there is no loss: call note_loss(loss) for each micro-batch of a step")
        return self._loss

    def seed_of(self, step: int, number: int) -> int:
        """The seed of a micro-batch, of 63 bits, for other random numbers than PyTorch's: the same on all ranks."""
        return seed_of(self.seed, step, number)

    def detach(self, _who: str) -> None:
        """Average nothing any more: another one does it now, see `take_over`."""
        self._replaced = True

    def _on_init(self) -> None:
        """Whoever comes has its own weights: they are compared in the next step."""
        self._unchecked = True

    def _begin_step(self, step: int) -> None:
        """Until the loop comes to its end, no optimizer may step these parameters: their gradients are this rank's."""
        self._step = step
        if not self._hooks:
            self._hooks.append(register_optimizer_step_pre_hook(_refusing(weakref.ref(self))))

    def _end_step(self) -> None:
        self._step = None
        _remove(self._hooks)

    def refuse_to_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step, before a loop has come to its end.

        Raises:
            InvalidArgument: It has parameters that are trained here.
        """
        own = set(map(id, self._parameters))
        if not self._replaced and any(id(each) in own for group in optimizer.param_groups for each in group["params"]):
            self._refuse_to_go_on("or its body calls optimizer.step()")

    def _refuse_to_go_on(self, what: str) -> None:
        step = self._step
        self._end_step()
        self._refuse(
            f"the loop over deal({step}) was left before its end, {what}: the gradients are those of this rank's last "
            "micro-batch, and no averages, so that each rank would train a model of its own. Remedy: let the loop come "
            "to its end, without break, return or an exception, and call optimizer.step() behind it"
        )

    def _check_body(self, step: int, number: int) -> None:
        if self._parameters and all(parameter.grad is None for parameter in self._parameters):
            self._refuse(
                f"micro-batch {number} of deal({step}) has left no gradient, and would count as zeros. Remedy: call "
                "loss.backward() in the body of the loop, and zero_grad() nowhere in it; where a micro-batch is to "
                "count as zeros, call (0.0 * loss).backward()"
            )

    def _refuse(self, why: str) -> None:
        """Raise here, and on the ranks that wait for the sums of this one."""
        adapter.refuse(f"to go on: {why}", f"{self._name}.0.0", global_process_set)
        raise InvalidArgument(f"VirtualRanks: {why}")

    def _begin(self, step: int, number: int) -> None:
        torch.manual_seed(seed_of(self.seed, step, number))
        self._noted = None
        for parameter in self._parameters:
            parameter.grad = None

    def _groups(self) -> dict[tuple[torch.device, torch.dtype], list[torch.Tensor]]:
        """The parameters by what their gradients are added up as: 16-bit ones as float32."""
        groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for parameter in self._parameters:
            dtype = torch.float32 if parameter.element_size() < 4 else parameter.dtype
            groups.setdefault((parameter.device, dtype), []).append(parameter)
        return groups

    def _collect(self) -> Flat:
        """What the micro-batch has come to; at the end who has a gradient, and the loss."""
        flat = []
        for (device, dtype), parameters in self._groups().items():
            flat.append(torch.zeros(sum(parameter.numel() for parameter in parameters), device=device, dtype=dtype))
            sizes = [parameter.numel() for parameter in parameters]
            for parameter, part in zip(parameters, torch.split(flat[-1], sizes), strict=True):
                if parameter.grad is not None:
                    part.copy_(parameter.grad.detach().to_dense().reshape(-1))
        has = [float(parameter.grad is not None) for parameter in self._parameters]
        lost = [0.0, 0.0] if self._noted is None else [float(self._noted), 1.0]
        return [*flat, torch.tensor([*has, *lost], dtype=torch.float32, device="cpu")]

    def _sum_up(self, step: int, own: SumTree[Flat], done: dict[int, list[int]]) -> Flat | None:
        """The sum of all virtual ranks; None: a rank was lost with some of them."""
        nodes = [node for numbers in done.values() for node in nodes_of(numbers, self.count)]
        if len(done) == 1:
            return own.total
        total = []
        # Each row says of which step it is, at the end of all groups.
        stamp = torch.tensor([adapter.followed().rank, *divmod(step, _STEP_PART)], dtype=torch.float32, device="cpu")
        ours = [[*flat, torch.cat([stamp, last])] for *flat, last in (own.sums[node] for node in sorted(own.sums))]
        *groups, last = self._empty()
        for group, like in enumerate([*groups, torch.cat([stamp, last])]):
            total.append(like)
            pieces = [torch.split(node[group], _PIECE_ELEMENTS) for node in ours]
            for index, piece in enumerate(torch.split(like, _PIECE_ELEMENTS)):
                rows = torch.stack([each[index] for each in pieces]) if pieces else piece.new_empty((0, len(piece)))
                every = allgather(rows, name=f"{self._name}.{group}.{index}")
                if list(adapter.followed().members) != list(done):
                    return None
                if group == len(groups) and index == 0:
                    _check_steps(every[:, :_STAMP])
                piece.copy_(_in_tree(self.count, nodes, every))
        total[-1] = total[-1][_STAMP:]
        return total

    def _empty(self) -> Flat:
        groups = self._groups().items()
        flat = [
            torch.empty(sum(p.numel() for p in each), device=device, dtype=dtype) for (device, dtype), each in groups
        ]
        return [*flat, torch.empty(len(self._parameters) + 2, dtype=torch.float32, device="cpu")]

    def _give(self, total: Flat) -> None:
        *has, loss, losses = total.pop().tolist()
        self._loss = torch.tensor(loss / self.count, dtype=torch.float32) if losses == self.count else None
        used = dict(zip(map(id, self._parameters), has, strict=True))
        for parameters, flat in zip(self._groups().values(), total, strict=True):
            flat.div_(self.count)
            sizes = [parameter.numel() for parameter in parameters]
            for parameter, part in zip(parameters, torch.split(flat, sizes), strict=True):
                grad = part.view(parameter.shape).to(parameter.dtype)
                parameter.grad = grad if used[id(parameter)] else None


def _refusing(virtual: weakref.ref[VirtualRanks]) -> Callable[..., None]:
    """A hook that holds none of those whose optimizers it looks at."""

    def refuse(optimizer: torch.optim.Optimizer, _args: Any, _options: Any) -> None:
        owner = virtual()
        if owner is not None:
            owner.refuse_to_step(optimizer)

    return refuse


def _remove(hooks: list[torch.utils.hooks.RemovableHandle]) -> None:
    while hooks:
        hooks.pop().remove()


def _check_steps(stamps: torch.Tensor) -> None:
    """Whether all rows are of one step.

    Raises:
        MismatchError: They are not.
    """
    steps = {int(rank): int(high) * _STEP_PART + int(low) for rank, high, low in stamps.tolist()}
    if len(set(steps.values())) > 1:
        told = ", ".join(f"{step} on rank {rank}" for rank, step in steps.items())
        raise MismatchError(
            f"VirtualRanks: the ranks call deal(step) with different steps: {told}. Their sums are of different steps, "
            "and so are the random numbers. Remedy: count steps in the same way on all ranks, and leave no loop over "
            "deal() before its end"
        )


def _add(left: Flat, right: Flat) -> Flat:
    return [a.add_(b) for a, b in zip(left, right, strict=True)]


def _in_tree(count: int, nodes: Sequence[Node], rows: torch.Tensor) -> torch.Tensor:
    tree: SumTree[torch.Tensor] = SumTree(count, torch.Tensor.add_)
    for node, row in zip(nodes, rows, strict=True):
        tree.put(node, row)
    return tree.total
