"""A Gluon trainer and a key-value store whose ranks wait for each other within a bound on how old gradients may be."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from ringcore import InvalidArgument, adapter
from ringcore.adapter import Asynchronous, AsynchronousSteps, ProcessSet, global_process_set, write_arrays

from ringcore_mxnet.compression import Compression, Compressor
from ringcore_mxnet.kvstore import Ring, listed, pairs_of
from ringcore_mxnet.optimizer import DistributedOptimizer
from ringcore_mxnet.parameters import check_weights as compare
from ringcore_mxnet.trainer import without_numbers


class _Weights:
    """The newest weights of this rank, and the optimizer that steps them in a thread.

    Args:
        weights: The program's, by their number or key.
        names: Theirs, the same on all ranks.
        optimizer: Of MXNet. A copy steps: of this one nothing is read later but its rate, and nothing is changed.
        arguments: See `Asynchronous`.
        rescale_grad: Of the copy; None: that of the optimizer.
        checks: Before the first step, compare the weights of all ranks.
        remedy: What lets ranks begin with the same weights.
    """

    def __init__(
        self, weights: Mapping[Any, Any], names: Sequence[str], optimizer: Any, arguments: Asynchronous, *,
        rescale_grad: float | None = None, checks: bool, remedy: str,
    ) -> None:  # fmt: skip
        self._weights, self._names, self._remedy = dict(weights), list(names), remedy
        self._set, self._checks = arguments.process_set, checks
        self._optimizer = optimizer
        own = _copy_of(optimizer)
        if rescale_grad is not None:
            own.rescale_grad = rescale_grad
        self._updater = mx.optimizer.get_updater(own)
        self._newest = {key: weight.copy() for key, weight in self._weights.items()}
        self.steps = AsynchronousSteps(
            arguments, [(_dtype_of(weight), weight.shape) for weight in self._weights.values()],
            count_numbers=lambda: int(self._has_rate()), check=self._check, begin=self._begin, update=self._update,
            take_newest=self._take_newest,
        )  # fmt: skip

    def step(self, gradients: Mapping[Any, Any]) -> None:
        """See `AsynchronousSteps.step`; gradients are arrays of numpy, of some of the weights or of all."""
        given = [gradients.get(key) for key in self._weights]
        numbers = [float(self._optimizer.lr)] if self._has_rate() else []
        touched = [gradient is not None for gradient in given]
        self.steps.step(numbers, touched, lambda views: write_arrays(views, given))

    def save(self, fname: str) -> None:
        """Write what the optimizer has, and how many updates it has counted."""
        with self.steps.stepping():
            optimizer = self._updater.optimizer
            counts = [optimizer._index_update_count.get(key, optimizer.begin_num_update) for key in self._newest]
            states = np.frombuffer(self._updater.get_states(dump_optimizer=False), np.uint8)
            kept = {
                "states": mx.nd.array(states, dtype=np.uint8),
                "counts": mx.nd.array([optimizer.num_update, *counts], dtype=np.int64),
            }
        mx.nd.save(fname, kept)

    def load(self, fname: str) -> None:
        """Take over what `save` has written, and the weights as they are."""
        kept = mx.nd.load(fname)
        with self.steps.anew():
            self._updater.set_states(kept["states"].asnumpy().tobytes())
            optimizer = self._updater.optimizer
            optimizer.num_update, *counts = kept["counts"].asnumpy().tolist()
            optimizer._index_update_count.update(zip(self._newest, counts, strict=True))

    def _has_rate(self) -> bool:
        return self._optimizer.lr_scheduler is None

    def _check(self) -> None:
        if self._checks and self._set.size() > 1:
            weights = dict(zip(self._names, self._weights.values(), strict=True))
            compare(weights, self._set, name="asynchronous.weights", remedy=self._remedy)

    def _begin(self) -> None:
        for key, weight in self._weights.items():
            weight.copyto(self._newest[key])
        self._wait()

    def _update(self, numbers: Sequence[float], gradients: list[Any]) -> None:
        """In the thread that takes part in the sums."""
        for rate in numbers:
            self._updater.optimizer.lr = rate
        for (key, newest), gradient in zip(self._newest.items(), gradients, strict=True):
            if gradient is not None:
                self._updater(key, mx.nd.array(gradient, newest.context, newest.dtype), newest)
        self._wait()

    def _take_newest(self) -> None:
        for key, newest in self._newest.items():
            newest.copyto(self._weights[key])
        self._wait_for(self._weights)

    def _wait(self) -> None:
        self._wait_for(self._newest)

    @staticmethod
    def _wait_for(arrays: Mapping[Any, Any]) -> None:
        """What MXNet has been told to copy is done, and no later update is in it."""
        for array in arrays.values():
            array.wait_to_read()


def _copy_of(optimizer: Any) -> Any:
    """One of the same settings that counts for itself; parameters, which have rates of their own, stay the same."""
    made = copy.copy(optimizer)
    made.lr_scheduler = copy.deepcopy(optimizer.lr_scheduler)
    made._all_index_update_counts = {0: {}}
    made._index_update_count = made._all_index_update_counts[0]
    made.num_update = made.begin_num_update
    return made


def _dtype_of(weight: Any) -> str:
    name = getattr(weight.dtype, "__name__", str(weight.dtype))
    if name not in ("float16", "float32", "float64"):
        raise InvalidArgument(f"a weight is of {name}, and AsyncTrainer steps float16, float32 and float64")
    return name


class AsyncTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """`mx.gluon.Trainer` that steps by sums of the gradients of those ranks that have one first.

    A sum is complete with `threshold` gradients, of any ranks, and is their average. A gradient is thrown away when
    more than `staleness` sums have come since the weights that it was made with. Every rank applies every sum, in the
    same order, beside the forward and backward that it is in: a slow one holds nobody up, and after each update all
    ranks have the same bits. (iSwitch: Li et al. 2019.) Ranks may make different numbers of steps. Call `synchronize()`
    on all of them before weights are evaluated or written, and behind the last step.

    `step(batch_size)` divides this rank's gradients by the size of its batch. `set_learning_rate` is this rank's: a sum
    is stepped with that of the first rank that contributed; schedules count sums. There are three more copies of the
    parameters.

    Args:
        params: `net.collect_params()`, or a list of parameters; the same on every rank, dense, on one device.
        optimizer: A name or an optimizer of MXNet.
        optimizer_params: Of the optimizer, where it is named.
        staleness: How many updates old a gradient may be, from 0. From 1 on, sums are made while the next gradient is.
        threshold: How many gradients make a sum; None: as many as there are ranks.
        compression: What is sent: `Compression.fp16` or `bf16` halves float32; `int8` and `int4` between hosts.
        process_set: The ranks that train together.
        check_weights: Before the first step, compare the parameters of all ranks.

    Raises:
        InvalidArgument: Bounds that are none, a DistributedOptimizer, an elastic job, a compression that has to see
            each gradient of each rank.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        *,
        staleness: int,
        threshold: int | None = None,
        compression: type[Compressor] | str = Compression.none,
        process_set: ProcessSet = global_process_set,
        check_weights: bool = True,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            raise InvalidArgument("AsyncTrainer sums gradients up itself; pass it the optimizer unwrapped")
        compressor = Compression.chosen(compression, who="AsyncTrainer")
        self._ring_bounds = Asynchronous.checked(staleness, threshold, Compression.name_of(compressor), process_set)
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._ring_checks = check_weights
        self._ring_weights: _Weights | None = None

    def _update(self, ignore_stale_grad: bool = False) -> None:
        adapter.check()
        rescale, gradients = self._optimizer.rescale_grad, {}
        for i, param in enumerate(self._params):
            if param.grad_req == "null":
                continue
            gradient, *others = param.list_grad()
            if others or gradient.stype != "default" or param._stype != "default":
                raise InvalidArgument(
                    f"'{param.name}' is not a dense parameter with dense gradients on one device; use "
                    "DistributedTrainer"
                )
            (weight,) = param.list_data()
            if not weight._fresh_grad:
                if not ignore_stale_grad:
                    raise InvalidArgument(
                        f"'{param.name}' has no gradient since the last step; call backward before, or "
                        "step(..., ignore_stale_grad=True) where it is not used"
                    )
                continue
            weight._fresh_grad = False
            gradients[i] = gradient.asnumpy() * rescale
        self._held().step(gradients)

    def _held(self) -> _Weights:
        if self._ring_weights is None:
            trained = {i: param for i, param in enumerate(self._params) if param.grad_req != "null"}
            self._ring_weights = _Weights(
                {i: param.list_data()[0] for i, param in trained.items()},
                [f"{i}.{without_numbers(param.name)}" for i, param in trained.items()], self._optimizer,
                self._ring_bounds, checks=self._ring_checks,
                rescale_grad=1.0,  # each rank's own gradients are divided by the size of its own batch
                remedy="call broadcast_parameters(net.collect_params(), root_rank=0) before the first step",
            )  # fmt: skip
        return self._ring_weights

    def synchronize(self) -> None:
        """Wait until all ranks have called this and all gradients are in the weights: the same ones on all ranks.

        Before weights are evaluated or written, and behind the last step.
        """
        self._held().steps.synchronize()

    @property
    def dropped(self) -> int:
        """How many gradients of this rank were too old to be summed up."""
        return self._held().steps.dropped

    @property
    def oldest(self) -> int:
        """How many updates old the oldest gradient of this rank was that was summed up."""
        return self._held().steps.oldest

    @property
    def updates(self) -> int:
        """How many sums the weights of this rank have."""
        return self._held().steps.updates

    def save_states(self, fname: str) -> None:
        """Write what the optimizer has; the same on all ranks behind `synchronize()`."""
        self._held().save(fname)

    def load_states(self, fname: str) -> None:
        """Read what `save_states` has written; parameters are loaded with the net before.

        All ranks call it, behind `synchronize` or before the first step.
        """
        self._held().load(fname)


class AsyncRing(Ring):
    """`kvstore="dist_ring_async"`, in the place of "dist_async": updates by whoever has gradients first, and no server.

    An optimizer is set on the store, as MXNet's trainer and `Module` do for an asynchronous one. A rank's gradients are
    offered when it has pushed all keys that have a value; what it has asked for in the meantime is written then, so
    that weights of one step are of one update. See `AsyncTrainer` for the rest.

    Args:
        staleness: How many updates old a gradient may be.
        threshold: How many ranks' gradients make a sum.
    """

    def __init__(self, staleness: int = 3, threshold: int = 1) -> None:
        super().__init__()
        self._bounds = Asynchronous.checked(staleness, threshold, "none", global_process_set)
        self._optimizer: Any = None
        self._weights: _Weights | None = None
        self._pushed: dict[Any, Any] = {}
        self._asked: list[tuple[Any, Any]] = []

    @property
    def type(self) -> str:
        """What MXNet looks for "dist" and "async" in: it leaves the update to the store then."""
        return "dist_ring_async"

    def init(self, key: Any, value: Any) -> None:
        """See `Ring.init`.

        Raises:
            InvalidArgument: Gradients were pushed before, and what is summed up is settled.
        """
        if self._weights is not None:
            raise InvalidArgument("dist_ring_async takes no more keys when gradients were pushed; init all before")
        super().init(key, value)

    def set_optimizer(self, optimizer: Any) -> None:
        """Let each rank update its weights with this optimizer."""
        super().set_optimizer(optimizer)
        self._optimizer = optimizer

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """See `Ring.set_gradient_compression`."""
        super().set_gradient_compression(compression_params)
        name = Compression.name_of(self._compression)
        self._bounds = Asynchronous(self._bounds.staleness, self._bounds.threshold, name, self._bounds.process_set)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Keep this rank's gradient; with the last one of a step, offer all, and go on with the newest weights.

        Raises:
            InvalidArgument: There is no optimizer, or a key comes again before all others have come.
        """
        if self._optimizer is None:
            raise InvalidArgument(
                "dist_ring_async updates weights itself, and has no optimizer; pass update_on_kvstore=True to the "
                "trainer, or call set_optimizer"
            )
        for one, values in pairs_of(key, value):
            self._require(one)
            if one in self._pushed:
                missing = [each for each in self._keys() if each not in self._pushed]
                raise InvalidArgument(
                    f"'{one}' was pushed again before '{missing[0]}' was, and a step has a gradient of each key; push "
                    "all, and leave out of the store what is not trained"
                )
            held = listed(values)
            own = held[0] if len(held) == 1 else mx.nd.add_n(*(each.as_in_context(mx.cpu()) for each in held))
            self._pushed[one] = own.asnumpy()
        if len(self._pushed) == len(self._keys()):
            self._step()

    def pull(self, key: Any, out: Any, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Write the newest weights into `out`: within a step, when this rank has pushed the last gradient of it."""
        if self._pushed:
            self._asked += pairs_of(key, out)
        else:
            super().pull(key, out, priority, ignore_sparse)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push` and `pull` into `out`.

        Raises:
            InvalidArgument: Without `out`, which asks for sums alone.
        """
        if out is None:
            raise InvalidArgument(
                "dist_ring_async gives weights, and no sums of gradients; pass update_on_kvstore=True to the trainer, "
                "or use dist_ring"
            )
        self.push(key, value, priority)
        self.pull(key, out, priority)

    def barrier(self) -> None:
        """Return when all ranks have called it, and all gradients are in the stored weights: the same on all ranks."""
        if self._weights is None:
            super().barrier()
        else:
            self._weights.steps.synchronize()

    _barrier = barrier

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write what the optimizer has; the same on all ranks behind `barrier()`."""
        self._held().save(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Read it. All ranks call it, behind `barrier()` or before the first push."""
        self._held().load(fname)

    def _step(self) -> None:
        gradients, self._pushed = self._pushed, {}
        self._held().step(gradients)
        asked, self._asked = self._asked, []
        for one, targets in asked:
            self.pull(one, targets)

    def _held(self) -> _Weights:
        if self._weights is None:
            if self._optimizer is None:
                raise InvalidArgument("dist_ring_async has no optimizer; call set_optimizer before")
            weights = {key: self._stored[key] for key in self._keys()}
            self._weights = _Weights(
                weights, [str(key) for key in weights], self._optimizer, self._bounds, checks=False, remedy=""
            )
        return self._weights

    def _keys(self) -> list[Any]:
        """Those that have gradients: a trainer of Gluon tells its optimizer of the parameters that have none."""
        known = self._optimizer.param_dict
        return [key for key in self._stored if key not in known or known[key].grad_req != "null"]


@mx.kvstore.KVStoreBase.register
class dist_ring_async(AsyncRing):  # noqa: N801 - the class's name is the store's
    """`AsyncRing` under the name that MXNet makes it by."""
