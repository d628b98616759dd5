"""Gradients of which blocks that are zero on all ranks are left out (Fei et al. 2021, OmniReduce)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcore._errors import InvalidArgument
from ringcore.adapter.collectives import ReduceOp
from ringcore.adapter.exchange import Exchange, mean
from ringcore.job.process_sets import ProcessSet

if TYPE_CHECKING:
    from ringcore.adapter.exchange import Array, Arrays

# Where more of a gradient's blocks are to be sent, all of it is: packing would cost more than it spares.
_MOST_SENT = 0.75


class Blocks(Exchange):
    """Sends the blocks of gradients that are not zero on every rank: of embeddings, say. Nothing is lost.

    First ranks tell each other, by a byte for each block, which ones have anything but zeros; then these are averaged
    as one array. A gradient of which most blocks are sent is averaged as it lies.

    Args:
        size: Elements of a block.
    """

    def __init__(self, size: int) -> None:
        if type(size) is not int or size < 1:
            raise InvalidArgument(f"blocks: the size is a whole number of elements, from 1, not {size!r}")
        super().__init__()
        self.size = size

    def shrinks(self, gradient: Array) -> bool:  # noqa: D102
        return bool(gradient.size >= 2 * self.size)

    def average(self, gradients: Arrays, name: str, process_set: ProcessSet) -> None:  # noqa: D102
        import numpy as np

        rows = {each: self._rows_of(gradient) for each, gradient in gradients.items() if self.shrinks(gradient)}
        # Of bits, so that a sum of negative zeros is one, as it is of whole gradients.
        used: list[Array] = [np.asarray(row.view(np.uint8).any(axis=1), np.uint8) for row in rows.values()]
        if used:
            mean(used, f"{name}.used", process_set, ReduceOp.MAX)
        chosen = {
            each: np.flatnonzero(one)
            for each, one in zip(rows, used, strict=True)
            if np.count_nonzero(one) <= _MOST_SENT * one.size
        }
        whole = [gradient for each, gradient in gradients.items() if each not in chosen]
        packed = {each: self._packed(gradients[each], rows[each], chosen[each]) for each in chosen}
        if sent := [*whole, *(array for array in packed.values() if array.size > 0)]:
            mean(sent, f"{name}.blocks", process_set)
        for each, array in packed.items():
            count = chosen[each].size * self.size
            rows[each][chosen[each]] = array[:count].reshape(-1, self.size)
            gradients[each].reshape(-1)[rows[each].size :] = array[count:]

    def _rows_of(self, gradient: Array) -> Array:
        """A block each; what is left at the end is in none, and is always sent."""
        flat = gradient.reshape(-1)
        return flat[: flat.size // self.size * self.size].reshape(-1, self.size)

    @staticmethod
    def _packed(gradient: Array, rows: Array, chosen: Any) -> Array:
        import numpy as np

        return np.concatenate([rows[chosen].reshape(-1), gradient.reshape(-1)[rows.size :]])
