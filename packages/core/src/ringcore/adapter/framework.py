"""What a framework fills so that it has the verbs: how its tensors become memory, and memory its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ringcore._native import Buffer, Handle

Tensor = TypeVar("Tensor")


class Framework(Protocol[Tensor]):
    """Tensors of one framework, whose memory can be looked at and written at once."""

    def as_buffer(self, tensor: Tensor, *, writable: bool = False) -> Buffer:
        """Describe a contiguous tensor's memory; the buffer keeps it alive.

        Raises:
            InvalidArgument: The engine cannot work on it; the message tells why, and the remedy.
        """

    def as_moved(self, tensor: Tensor, *, writable: bool = False) -> Buffer:
        """`as_buffer` for an operation that does not look at values: of dtypes too that the engine does not know."""

    def as_output(self, tensor: Tensor) -> Buffer:
        """Describe the tensor's own memory, which a result is written into.

        Raises:
            InvalidArgument: It is not contiguous, or may not be written; the message tells why, and the remedy.
        """

    def contiguous(self, tensor: Tensor) -> Tensor:
        """The tensor's values in a row of memory: itself, or a copy where they are not."""

    def copy_back(self, source: Tensor, target: Tensor) -> None:
        """Give a tensor what has come to `contiguous(target)`. Does nothing where they share their memory."""

    def empty_like(self, tensor: Tensor) -> Tensor:
        """A new uninitialised tensor of the same shape and dtype, where the other one lies.

        Raises:
            TypeError: It is no tensor that the engine could look at; `as_buffer` tells why.
        """

    def result_of(self, handle: Handle, shape: tuple[int, ...], source: Buffer, index: int) -> Tensor:
        """A tensor over what the engine has allocated for an operation on `source`; it keeps that memory alive."""

    def row_counts(self, rows: list[int], splits: Any) -> Any:
        """Numbers of rows, in the form in which users of the framework expect them who have given such splits."""


# Makes what an operation returns of the results of its tensors.
Finish = Callable[[Sequence[Any]], Any]
