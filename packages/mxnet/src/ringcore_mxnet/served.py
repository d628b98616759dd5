"""Key-value stores whose optimizer is on the job's servers, in the place of MXNet's "dist_sync" and "dist_async"."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import mxnet as mx
import numpy as np
import ringcore
from ringcore import InvalidArgument
from ringcore.adapter import Placed, Served, check_servers

from ringcore_mxnet.kvstore import Ring, listed, pairs_of

# How far a rank of "dist_ring_servers_async" may be ahead of the slowest, in steps.
STALENESS = 8


def _numbers_of_sgd(optimizer: Any, _: Any) -> dict[str, float | bool]:
    return {
        "momentum": float(optimizer.momentum), "dampening": 0.0, "nesterov": False, "maximize": False,
        "rate_in_momentum": True,
    }  # fmt: skip


def _numbers_of_adam(optimizer: Any, key: Any) -> dict[str, float | bool]:
    # MXNet adds epsilon to a root that is not corrected for its bias.
    corrected = math.sqrt(1 - optimizer.beta2 ** optimizer._index_update_count[key])
    return {
        "beta1": float(optimizer.beta1), "beta2": float(optimizer.beta2), "eps": optimizer.epsilon / corrected,
        "amsgrad": False, "decoupled": False, "maximize": False,
    }  # fmt: skip


# By class, whose subclasses may step otherwise: the servers' rule, and the numbers that it takes besides the rates.
_RULES: dict[type, tuple[str, Callable[[Any, Any], dict[str, float | bool]]]] = {
    mx.optimizer.SGD: ("sgd", _numbers_of_sgd),
    mx.optimizer.Adam: ("adam", _numbers_of_adam),
}


class _Key:
    """A value of the store, which the servers step.

    Attributes:
        row: The weights, as this rank has them.

    Args:
        rule: Of the servers.
        numbers: What it takes.
        held: The value at the beginning: rank 0's counts.
        staleness: See `Served`.
    """

    def __init__(self, rule: str, numbers: dict[str, float | bool], held: Any, staleness: int | None) -> None:
        self._shape, self._staleness = held.shape, staleness
        self.row = held.asnumpy().reshape(-1)
        size = self.row.size
        self._served = Served(rule, [numbers], self.row.dtype.name, [size], [Placed(0, 0, size, 0)], staleness)
        self._served.send_weights([self.row])

    def step(self, gradient: Any, numbers: dict[str, float | bool], factor: float) -> None:
        """Step by the sum of the ranks' gradients, each times a factor; with a staleness, by this rank's."""
        own = gradient.asnumpy().reshape(-1)
        if self._staleness is None:
            own = own * np.asarray(factor * ringcore.size(), own.dtype)  # servers average
            self._served.step([self.row], [own], [numbers], [True])
        else:
            self._served.step_alone([self.row], [own * np.asarray(factor, own.dtype)], [numbers], [True])

    def meet(self) -> None:
        """Take the weights that all ranks take."""
        if self._staleness is not None:
            self._served.meet([self.row])

    def value(self) -> Any:
        """The weights, in their shape."""
        return mx.nd.array(self.row.reshape(self._shape), dtype=self.row.dtype)


class ServedRing(Ring):
    """A store whose optimizer is on the job's servers (`ringrun --servers N`), which have even shares of each value.

    Args:
        staleness: None: servers step by the sum of all ranks' gradients, as "dist_sync" does. A number: by each as it
            comes, as "dist_async" does, and no rank is more than so many steps ahead of the slowest.

    Raises:
        InvalidArgument: The job has no servers.
    """

    def __init__(self, staleness: int | None = None) -> None:
        super().__init__()
        check_servers()
        self._staleness = staleness
        self._optimizer: Any = None
        self._keys: dict[Any, _Key] = {}

    @property
    def type(self) -> str:
        """See `Ring.type`: without "_sync" `Module` divides by this worker's batch."""
        return "dist_ring_servers_sync" if self._staleness is None else "dist_ring_servers_async"

    def set_optimizer(self, optimizer: Any) -> None:
        """Let servers update the weights with this optimizer.

        Raises:
            InvalidArgument: Servers do not know it, or clip by value.
        """
        if type(optimizer) not in _RULES:
            known = ", ".join(sorted(each.__name__ for each in _RULES))
            raise InvalidArgument(
                f"servers do not know {type(optimizer).__name__}; use {known}, or kvstore='dist_ring'"
            )
        if optimizer.clip_gradient:
            raise InvalidArgument("servers do not clip gradients; leave out clip_gradient, or use kvstore='dist_ring'")
        self._optimizer = optimizer

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Let servers step what is stored, and store it."""
        if self._optimizer is None:
            raise InvalidArgument("this store has its optimizer on servers; call set_optimizer on every rank first")
        for one, values in pairs_of(key, value):
            own, *others = listed(values)
            if own.stype != "default":
                self._refuse_rows(one)
            if others:
                own = mx.nd.add_n(*(each.as_in_context(mx.cpu()) for each in (own, *others)))
            numbers = self._numbers(one)
            if one not in self._keys:
                rule = _RULES[type(self._optimizer)][0]
                self._keys[one] = _Key(rule, numbers, self._require(one), self._staleness)
            self._keys[one].step(own, numbers, float(self._optimizer.rescale_grad))
            self._stored[one] = self._keys[one].value()

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push` and `pull` into `out`."""
        if out is None:
            raise InvalidArgument("this store has its optimizer on servers; pass out=, where the weights go")
        super().pushpull(key, value, out, priority)

    def synchronize(self) -> None:
        """With a staleness: wait until all ranks have called this, and store the same weights on all of them."""
        for one, held in self._keys.items():
            held.meet()
            self._stored[one] = held.value()

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Not there.

        Raises:
            InvalidArgument: Always.
        """
        self._refuse_states()

    def load_optimizer_states(self, fname: str) -> None:
        """Not there.

        Raises:
            InvalidArgument: Always.
        """
        self._refuse_states()

    def _numbers(self, key: Any) -> dict[str, float | bool]:
        optimizer = self._optimizer
        optimizer._update_count(key)
        rates = {"lr": float(optimizer._get_lr(key)), "weight_decay": float(optimizer._get_wd(key))}
        return {**rates, **_RULES[type(optimizer)][1](optimizer, key)}

    def _refuse_states(self) -> NoReturn:
        raise InvalidArgument(
            "the optimizer's state is on servers, and has no file; use kvstore='dist_ring' to keep it"
        )


@mx.kvstore.KVStoreBase.register
class dist_ring_servers(ServedRing):  # noqa: N801 - the class's name is the store's
    """`kvstore="dist_ring_servers"`: servers sum and update, as with "dist_sync"."""


@mx.kvstore.KVStoreBase.register
class dist_ring_servers_async(ServedRing):  # noqa: N801 - the class's name is the store's
    """`kvstore="dist_ring_servers_async"`: servers update by each gradient as it comes, as with "dist_async"."""

    def __init__(self) -> None:
        super().__init__(STALENESS)
