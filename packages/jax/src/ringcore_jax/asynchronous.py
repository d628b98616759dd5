"""An optax optimizer whose ranks wait for each other no longer than a bound on how old gradients may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from ringcore import InvalidArgument, adapter
from ringcore.adapter import Asynchronous, AsynchronousSteps, ProcessSet, global_process_set, write_arrays

from ringcore_jax._host import HostArrays
from ringcore_jax.compression import Compression, Compressor
from ringcore_jax.names import names_of

if TYPE_CHECKING:
    import optax


class AsyncOptimizer:
    """Steps parameters by an optax optimizer, by sums of the gradients of those ranks that have one first.

    A sum is complete with `threshold` gradients, of any ranks, and is their average. A gradient is thrown away when
    more than `staleness` sums have come since the parameters that it was made with. Every rank applies every sum, in
    the same order, beside whatever it computes: a slow one holds nobody up, and after each update all ranks have the
    same bits. (iSwitch: Li et al. 2019.) It keeps parameters and state itself, as a thread updates them, and is called
    outside of `jit`:

        optimizer = ring.AsyncOptimizer(optax.adam(1e-3), params, staleness=1)
        params = optimizer.step(gradients_of(params, batch))
        params = optimizer.synchronize()  # on all ranks, before parameters are evaluated or written

    Schedules count updates, which are the same on all ranks, and not the steps of this one. There are three more
    copies of the parameters.

    Args:
        optimizer: Of optax.
        params: A pytree of float arrays in host memory; the same on every rank.
        staleness: How many updates old a gradient may be, from 0. From 1 on, sums are made while the next gradient is.
        threshold: How many gradients make a sum; None: as many as there are ranks.
        compression: What is sent: `Compression.fp16` or `bf16` halves float32; `int8` and `int4` between hosts.
        process_set: The ranks that train together.
        check_weights: Before the first step, compare the parameters of all ranks.

    Attributes:
        params: As the last `step` or `synchronize` has returned them.

    Raises:
        InvalidArgument: Bounds that are none, an elastic job, parameters that are no floats or lie on a device, a
            compression that has to see each gradient of each rank.
    """

    def __init__(
        self,
        optimizer: optax.GradientTransformation,
        params: Any,
        *,
        staleness: int,
        threshold: int | None = None,
        compression: type[Compressor] | str = Compression.none,
        process_set: ProcessSet = global_process_set,
        check_weights: bool = True,
    ) -> None:
        import optax

        compressor = Compression.chosen(compression, who="AsyncOptimizer")
        arguments = Asynchronous.checked(staleness, threshold, Compression.name_of(compressor), process_set)
        found, structure = jax.tree.flatten_with_path(params)
        self._structure: Any = structure
        self._names = names_of([path for path, _ in found])
        leaves = [jnp.asarray(leaf) for _, leaf in found]
        for name, leaf in zip(self._names, leaves, strict=True):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise InvalidArgument(
                    f"'{name}' has the dtype {leaf.dtype}, and an AsyncOptimizer updates floats; keep it out of the "
                    "parameters, or use DistributedOptimizer"
                )
            HostArrays().contiguous(leaf)  # refuses other devices
        self.params = self._newest = jax.tree.unflatten(self._structure, leaves)
        self._state = optimizer.init(self.params)
        self._set, self._checks_weights = process_set, check_weights

        def updated(gradients: Any, state: Any, newest: Any) -> tuple[Any, Any]:
            updates, state = optimizer.update(gradients, state, newest)
            return optax.apply_updates(newest, updates), state

        self._updated = jax.jit(updated)
        self._steps = AsynchronousSteps(
            arguments, [(str(leaf.dtype), leaf.shape) for leaf in leaves], count_numbers=lambda: 0, check=self._check,
            begin=self._begin, update=self._update, take_newest=self._take_newest,
        )  # fmt: skip

    def step(self, gradients: Any) -> Any:
        """Offer this rank's gradients to the next sum, and go on with the newest parameters, which it returns.

        Waits until at most `staleness` gradients of this rank are in no parameters.

        Args:
            gradients: Of the loss by `params`, a pytree of the same structure.

        Raises:
            InvalidArgument: It is called inside of `jit`.
            MismatchError: In the first step: ranks were given other arguments, or begin with other parameters.
            PeerLostError: A rank is lost; so in all calls from now on.
        """
        leaves: list[Any] = self._structure.flatten_up_to(gradients)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise InvalidArgument(
                "AsyncOptimizer.step was called inside jit or grad, where there is no waiting for others; compile what "
                "makes the gradients, and call step outside of it"
            )
        arrays = [HostArrays().contiguous(leaf) for leaf in leaves]  # before this rank promises anything
        self._steps.step((), [True] * len(arrays), lambda views: write_arrays(views, arrays))
        return self.params

    def synchronize(self) -> Any:
        """Wait until all ranks have called this and all gradients are in the parameters, the same ones on all ranks.

        Before parameters are evaluated or written, and behind the last step.

        Returns:
            The parameters.
        """
        self._steps.synchronize()
        return self.params

    @property
    def dropped(self) -> int:
        """How many gradients of this rank were too old to be summed up."""
        return self._steps.dropped

    @property
    def oldest(self) -> int:
        """How many updates old the oldest gradient of this rank was that was summed up."""
        return self._steps.oldest

    @property
    def updates(self) -> int:
        """How many sums the parameters of this rank have."""
        return self._steps.updates

    def state_dict(self) -> dict[str, Any]:
        """The newest `params` and the `state` of optax that they have; the same on all ranks behind `synchronize()`."""
        with self._steps.stepping():
            return {"params": self._newest, "state": self._state}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a `state_dict`. All ranks call it, behind `synchronize` or before the first step."""
        with self._steps.anew():
            self._state = state_dict["state"]
            leaves = self._structure.flatten_up_to(state_dict["params"])
            self.params = jax.tree.unflatten(self._structure, [jnp.asarray(leaf) for leaf in leaves])

    def _check(self) -> None:
        if self._checks_weights and self._set.size() > 1:
            arrays = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(self.params)]
            adapter.check_weights(
                self._names, [adapter.hash_of(array.ctypes.data, array.nbytes) for array in arrays], self._set,
                name="asynchronous.weights",
                remedy="call params = broadcast_parameters(params, root_rank=0) before the AsyncOptimizer is made",
            )  # fmt: skip

    def _begin(self) -> None:
        self._newest = self.params

    def _update(self, _: Sequence[float], gradients: list[Any]) -> None:
        """In the thread that takes part in the sums."""
        # Copies: JAX would read the memory itself, in which the next sum is made.
        summed = jax.tree.unflatten(self._structure, [jnp.array(gradient) for gradient in gradients])
        updated = self._updated(summed, self._state, self._newest)
        self._newest, self._state = jax.block_until_ready(updated)  # type: ignore[no-untyped-call]

    def _take_newest(self) -> None:
        self.params = self._newest
