"""Training whose result does not depend on the number of ranks: a step is the work of virtual ranks.

These are shared out over the ranks that there are. Their gradients are added up in a tree that depends on their number
alone, see `ringcore.adapter.virtual`. Ranks exchange the sums of whole subtrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from ringcore import InvalidArgument, adapter, global_process_set
from ringcore.adapter import Node, SumTree, name_or_next, nodes_of, seed_of, share_out

from ringcore_torch._operations import allgather
from ringcore_torch.parameters import take_over
from ringcore_torch.state import check_weights_of

# Ranks exchange pieces of so many elements: a rank has room for one piece of each rank's sums, beside its own.
_PIECE_ELEMENTS = 1 << 20
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
        take_over(self._parameters, self)
        adapter.after_init(self._on_init)

    def deal(self, step: int) -> Iterator[int]:
        """This rank's micro-batches of a step, as numbers below `count`; then the gradients are averaged.

        In the body of the loop PyTorch draws the random numbers of the micro-batch, see `seed_of`. When a rank is lost
        meanwhile, outside of `elastic.run`, those that are left get its micro-batches too: the body calls `backward`,
        and does nothing else that counts. Each rank has to come to the end of the loop.

        Args:
            step: Its number; the same on all ranks.
        """
        if self._replaced:
            raise InvalidArgument("a later DistributedOptimizer or VirtualRanks averages the gradients of this model")
        if self._unchecked and adapter.followed().size > 1:
            check_weights_of(self._named, global_process_set, f"{self._name}.weights", again=self._has_compared)
            self._has_compared = True
        self._unchecked = False
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
                    own.put((0, number), self._collect())
            total = self._sum_up(own, done)
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

    def detach(self) -> None:
        """Average nothing any more: another one does it now."""
        self._replaced = True

    def _on_init(self) -> None:
        """Whoever comes has its own weights: they are compared in the next step."""
        self._unchecked = True

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
        return [*flat, torch.tensor([*has, *lost], dtype=torch.float32)]

    def _sum_up(self, own: SumTree[Flat], done: dict[int, list[int]]) -> Flat | None:
        """The sum of all virtual ranks; None: a rank was lost with some of them."""
        nodes = [node for numbers in done.values() for node in nodes_of(numbers, self.count)]
        if len(done) == 1:
            return own.total
        total = []
        ours = [own.sums[node] for node in sorted(own.sums)]
        for group, like in enumerate(self._empty()):
            total.append(like)
            pieces = [torch.split(node[group], _PIECE_ELEMENTS) for node in ours]
            for index, piece in enumerate(torch.split(like, _PIECE_ELEMENTS)):
                rows = torch.stack([each[index] for each in pieces]) if pieces else piece.new_empty((0, len(piece)))
                every = allgather(rows, name=f"{self._name}.{group}.{index}")
                if list(adapter.followed().members) != list(done):
                    return None
                piece.copy_(_in_tree(self.count, nodes, every))
        return total

    def _empty(self) -> Flat:
        groups = self._groups().items()
        flat = [
            torch.empty(sum(p.numel() for p in each), device=device, dtype=dtype) for (device, dtype), each in groups
        ]
        return [*flat, torch.empty(len(self._parameters) + 2, dtype=torch.float32)]

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


def _add(left: Flat, right: Flat) -> Flat:
    return [a.add_(b) for a, b in zip(left, right, strict=True)]


def _in_tree(count: int, nodes: Sequence[Node], rows: torch.Tensor) -> torch.Tensor:
    tree: SumTree[torch.Tensor] = SumTree(count, torch.Tensor.add_)
    for node, row in zip(nodes, rows, strict=True):
        tree.put(node, row)
    return tree.total
