"""Arrays whose floats are sent in 16 bits, with numpy alone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore.adapter import bfloat16, buffer
from ringcore.adapter.collectives import name_or_next
from ringcore.adapter.compression import Compressor
from ringcore.adapter.refusals import refusing
from ringcore.job.process_sets import ProcessSet


class Whole(Compressor[Any]):
    """Arrays as they are."""

    wide_dtypes = ("float32", "float64")

    @staticmethod
    def dtype_of(tensor: Any) -> str:
        """The name that numpy gives it."""
        return str(getattr(tensor, "dtype", None))


class _Narrowed(Whole):
    """What numpy sees of an array in host memory."""

    @staticmethod
    def dtype_of(tensor: Any) -> str:
        """The name that the engine gives it; none of what lies on a GPU, which is sent as it is, or is no array."""
        if _is_on_gpu(tensor):
            return ""
        name = Whole.dtype_of(tensor)
        if name in _native.DTYPES:
            return name
        try:
            return buffer.DTYPE_NAMES[buffer.as_buffer(tensor).dtype]
        except InvalidArgument:
            return ""  # Whoever submits it says so.


def _is_on_gpu(array: Any) -> bool:
    return hasattr(array, "__cuda_array_interface__")


class Float16(_Narrowed):
    """As float16."""

    wire_dtype = "float16"

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """A copy."""
        import numpy as np

        with np.errstate(over="ignore"):  # what is too large is infinite
            return np.asarray(tensor).astype(dtype, order="C")


class BFloat16(_Narrowed):
    """As bfloat16."""

    wire_dtype = "bfloat16"

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """A copy: the bits of the nearest values, of two the even one; or, of such bits, the values."""
        return bfloat16.bits_of(tensor) if dtype == "bfloat16" else bfloat16.values_of(tensor, dtype)


def reduce_narrowed(
    start: Callable[..., Any],
    compression: type[Compressor[Any]],
    tensors: tuple[Any, ...],
    name: str | None,
    *,
    kind: str,
    out: Sequence[Any] | None,
    process_set: ProcessSet,
    **options: Any,
) -> list[Any]:
    """Reduce arrays of which those that are wide are cast.

    Args:
        start: `Starts.start_allreduce`.
        compression: `Float16` or `BFloat16`.
        tensors: As the user has them.
        name: Identifies the operation on all ranks.
        kind: The operation's, for messages.
        out: Where the results go.
        process_set: The ranks that take part.
        options: Of `start`.

    Returns:
        The results, in the tensors' own dtypes: arrays of numpy, or `out`.
    """
    name = name_or_next(name, kind, process_set)
    with refusing(kind, name, process_set):
        _check_places(out, tensors)
        pairs = [compression.compress(tensor) for tensor in tensors]
        landed = []
        for index, (sent, dtype) in enumerate(pairs):
            is_free = out is None or dtype is not None
            landed.append(_empty_like(sent) if is_free else out[index])  # type: ignore[index]
    wraps = [dtype is not None and compression.wire_dtype == "bfloat16" for _, dtype in pairs]
    sources, targets = (
        tuple(bfloat16.buffer_of(each) if wrap else each for each, wrap in zip(arrays, wraps, strict=True))
        for arrays in ((sent for sent, _ in pairs), landed)
    )
    started = start(sources, name, kind=kind, out=targets, process_set=process_set, blocking=True, **options)
    started.synchronize()
    results = [compression.decompress(each, dtype) for each, (_, dtype) in zip(landed, pairs, strict=True)]
    return results if out is None else [_written(*each) for each in zip(out, results, strict=True)]


def _check_places(out: Sequence[Any] | None, tensors: Sequence[Any]) -> None:
    """What is written behind the engine's back is looked at before anything is sent."""
    if out is None:
        return
    if len(out) != len(tensors):
        raise InvalidArgument(f"out: there are {len(out)} arrays for {len(tensors)} tensors; pass one for each")
    for place, tensor in zip(out, tensors, strict=True):
        if _is_on_gpu(place) and not _is_on_gpu(tensor):
            raise InvalidArgument("out: it lies on a GPU, and the input does not. Remedy: give both the same memory")
        try:
            target = buffer.as_buffer(place, writable=True)
        except InvalidArgument as error:
            raise InvalidArgument(f"out: {error}") from None
        source = buffer.as_buffer(tensor)
        if (target.dtype, target.shape) != (source.dtype, source.shape):
            theirs, ours = (f"{buffer.DTYPE_NAMES[one.dtype]} {list(one.shape)}" for one in (target, source))
            raise InvalidArgument(
                f"the output is {theirs}, the input {ours}. Remedy: give them one dtype and one shape"
            )


def _written(place: Any, result: Any) -> Any:
    import numpy as np

    if place is not result:
        whole = np.ascontiguousarray(result)
        ctypes.memmove(buffer.as_buffer(place, writable=True).address, whole.ctypes.data, whole.nbytes)
    return place


def _empty_like(tensor: Any) -> Any:
    return buffer.empty_like(buffer.as_buffer(tensor))
