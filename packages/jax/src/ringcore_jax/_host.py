"""Arrays outside of compiled programs, in memory of the host: what the engine works on at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ringcore import InvalidArgument
from ringcore.adapter import DTYPE_CODES, Buffer, Finish, Handle, Verbs, as_buffer, from_bytes

from ringcore_jax._calls import check_dtype


class HostArrays:
    """Arrays of JAX as numpy sees them; results are written into arrays of numpy. See `adapter.Framework`."""

    def as_buffer(self, tensor: Any, *, writable: bool = False) -> Buffer:
        """See `adapter.Framework`."""
        check_dtype(tensor.dtype)
        return as_buffer(tensor, writable=writable)

    def as_moved(self, tensor: Any, *, writable: bool = False) -> Buffer:
        """See `adapter.Framework`."""
        known = str(tensor.dtype) in DTYPE_CODES
        return as_buffer(tensor if known else tensor.reshape(-1).view(np.uint8), writable=writable)

    def as_output(self, tensor: Any) -> Buffer:
        """See `adapter.Framework`."""
        raise InvalidArgument("arrays of JAX do not change; leave out= out, and use what is returned")

    def contiguous(self, tensor: Any) -> np.ndarray[Any, Any]:
        """The array's memory, which may not be written; waits until it is computed.

        Raises:
            InvalidArgument: It is traced, or lies on another device.
        """
        if isinstance(tensor, jax.core.Tracer):
            raise InvalidArgument(
                "the _async forms work on arrays; inside jit and grad call the plain one: XLA goes on beside it with "
                "what does not need its result"
            )
        array = tensor if isinstance(tensor, jax.Array) else jnp.asarray(tensor)
        devices = array.devices()
        if len(devices) != 1 or next(iter(devices)).platform != "cpu":
            raise InvalidArgument(
                f"the array lies on {', '.join(sorted(map(str, devices)))}, and outside jit this version of ringcore "
                "works with one CPU device a process; call it inside jit, pass jax.device_put(x, "
                "jax.devices('cpu')[0]), or set JAX_PLATFORMS=cpu"
            )
        return np.asarray(array, order="C")

    def copy_back(self, source: Any, target: Any) -> None:
        """Nothing is reduced in place: arrays of JAX do not change."""

    def empty_like(self, tensor: Any) -> np.ndarray[Any, Any]:
        """See `adapter.Framework`."""
        return np.empty_like(tensor)

    def result_of(self, handle: Handle, shape: tuple[int, ...], source: Buffer, index: int) -> Any:
        """See `adapter.Framework`."""
        return jnp.asarray(from_bytes(handle.result(index), shape, source.dtype))

    def row_counts(self, rows: list[int], _splits: Any) -> Any:
        """See `adapter.Framework`."""
        return jnp.asarray(rows, jnp.int32)


verbs: Verbs[Any] = Verbs(HostArrays())


def as_tree(structure: Any) -> Finish:
    """Makes a tree of the results of its leaves."""

    def finish(results: Sequence[Any]) -> Any:
        return jax.tree.unflatten(structure, [jnp.asarray(result) for result in results])

    return finish
