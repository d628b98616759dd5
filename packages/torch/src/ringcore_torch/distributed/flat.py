"""Tensors as rows of elements: what collectives of the backend send, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ringcore import InvalidArgument
from ringcore.adapter import Buffer, Handle

from ringcore_torch._bridge import as_buffer, as_contiguous, as_moved, copy_back, result_of

Tensor = torch.Tensor


class Flat:
    """The elements of a tensor in a row, as the engine moves them; bytes, where it does not know the dtype.

    Attributes:
        buffer: The elements.
        width: Elements of the buffer in one of the tensor.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._contiguous = as_contiguous(tensor)
        self._row = as_moved(self._contiguous).view(-1)
        self.width = tensor.dtype.itemsize // self._row.dtype.itemsize
        self.buffer = as_buffer(self._row)

    def write_back(self) -> None:
        """Where the tensor is not contiguous, what came was written to a copy of it."""
        if self._contiguous.data_ptr() != self._tensor.data_ptr():
            copy_back(self._contiguous, self._tensor)

    def counts(self, handle: Handle, index: int) -> list[int]:
        """How many of its elements came from each rank in an allgather or alltoall; `index` in a group."""
        return [rows // self.width for rows in handle.rows(index)]

    def parts(self, handle: Handle, counts: Sequence[int], index: int) -> list[Tensor]:
        """What came from each rank, of which `counts` are there."""
        row = result_of(handle, (sum(counts) * self.width,), self._row, index)
        return list(torch.split(row.view(self._tensor.dtype), list(counts)))


def targets_of(outputs: Sequence[Tensor]) -> tuple[Buffer, ...]:
    """Where the engine writes results itself: to the outputs, if it can to all of them; else nowhere.

    It can where they are contiguous and lie in the host's memory: on a GPU it makes the results.
    """
    if not all(output.is_cpu and output.is_contiguous() and not output.is_neg() for output in outputs):
        return ()
    return tuple(as_buffer(as_moved(output.detach()).view(-1)) for output in outputs)


def shares_memory(output: Tensor, sources: Sequence[Tensor]) -> bool:
    """Whether an output may lie where something lies that is still to be sent."""
    own = output.untyped_storage().data_ptr()
    return any(source.untyped_storage().data_ptr() == own for source in sources)


def check_output(what: str, output: Tensor, source: Tensor) -> None:
    """Refuse an output that what comes cannot be written to.

    Raises:
        InvalidArgument: It has another dtype, or is on another device.
    """
    if output.dtype != source.dtype:
        raise InvalidArgument(f"{what} of {source.dtype} needs an output of that dtype, not {output.dtype}")
    if output.device != source.device:
        raise InvalidArgument(
            f"{what} of a tensor on {source.device} needs an output on that device, not on {output.device}"
        )
