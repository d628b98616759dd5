"""Virtual ranks: parts of a step that are the same however many ranks share them out, and their sum in a fixed tree."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
# A node of the tree: its level, and which of that level it is. The leaves are level 0.
Node = tuple[int, int]


class SumTree(Generic[T]):
    """Adds up what belongs to the leaves of a binary tree: always the same two sums, in whatever order they come.

    A node without a sibling, as there are not enough leaves for one, is its parent.

    Args:
        leaves: How many there are.
        add: Makes one value of those of the left and of the right half.
    """

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        self._leaves = leaves
        self._root: Node = ((leaves - 1).bit_length(), 0)
        self._add = add
        self.sums: dict[Node, T] = {}  # of nodes whose siblings have yet to come

    def put(self, node: Node, value: T) -> None:
        """The sum of a node is there."""
        level, index = node
        while (level, index) != self._root:
            sibling = (level, index ^ 1)
            if sibling in self.sums:
                other = self.sums.pop(sibling)
                value = self._add(other, value) if index & 1 else self._add(value, other)
            elif sibling[1] << level < self._leaves:
                break
            level, index = level + 1, index >> 1
        self.sums[level, index] = value

    @property
    def total(self) -> T:
        """The sum of all leaves, when all are there."""
        return self.sums[self._root]


def nodes_of(numbers: Iterable[int], leaves: int) -> list[Node]:
    """The nodes whose sums are there when these leaves are, in order."""
    tree: SumTree[None] = SumTree(leaves, lambda _left, _right: None)
    for number in numbers:
        tree.put((0, number), None)
    return sorted(tree.sums)


def share_out(numbers: Sequence[int], ranks: int) -> list[list[int]]:
    """Give each rank neighbours, as many as the others or one less: their sums are those of few nodes."""
    count = len(numbers)
    return [list(numbers[count * rank // ranks : count * (rank + 1) // ranks]) for rank in range(ranks)]


def seed_of(seed: int, step: int, number: int) -> int:
    """Of the random numbers of a virtual rank in a step: 63 bits, the same on every machine."""
    return random.Random(f"{seed}/{step}/{number}").getrandbits(63)  # noqa: S311 - no secret
