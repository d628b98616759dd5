"""Elastic training with a fixed number of ranks: states are kept, restored and broadcast; nobody comes or goes yet."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ringcore import PeerLostError

_REMEDY = (
    "jobs of a changing number of ranks are not supported by this version of ringcore. Remedy: train with a fixed "
    "number of ranks, save checkpoints, and start again after a failure"
)


class State:
    """What a training function has to keep: subclasses save, restore and broadcast it.

    Args:
        bcast_object: Gives all ranks the object of rank 0.
        get_rank: This process's rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Functions to call when the number of ranks has changed."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The number of ranks has changed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the state."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Horovod raises HostsUpdatedInterrupt here where hosts have come or gone; here they never do."""

    def save(self) -> None:
        """Keep the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Fit what depends on the number of ranks."""


class ObjectState(State):
    """A state of objects that can be pickled, which are its attributes.

    Args:
        bcast_object: Gives all ranks the object of rank 0.
        get_rank: This process's rank.
        attributes: By name, what they are at first.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **attributes: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = attributes
        self.restore()

    def save(self) -> None:  # noqa: D102
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:  # noqa: D102
        vars(self).update(self._saved_state)

    def sync(self) -> None:  # noqa: D102
        if self._saved_state:
            self.save()
            self._saved_state = self._bcast_object(self._saved_state)
            ObjectState.restore(self)


class VariablesState(ObjectState):
    """A state of a framework's variables, which have `assign`, and of objects.

    Args:
        variables: Gives them; more may be there later.
        broadcast: Gives all ranks the values of rank 0 in these variables.
        bcast_object: Gives all ranks the object of rank 0.
        get_rank: This process's rank.
        attributes: By name, what the objects are at first.
    """

    def __init__(
        self, variables: Callable[[], Sequence[Any]], broadcast: Callable[[Sequence[Any]], Any],
        bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **attributes: Any,
    ) -> None:  # fmt: skip
        self._variables = variables
        self._broadcast = broadcast
        self._keep()
        super().__init__(bcast_object, get_rank, **attributes)

    def _keep(self) -> None:
        self._values = [np.array(variable) for variable in self._variables()]

    def save(self) -> None:  # noqa: D102
        self._keep()
        super().save()

    def restore(self) -> None:  # noqa: D102
        for variable, value in zip(self._variables(), self._values, strict=False):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:  # noqa: D102
        self._broadcast(self._variables())
        self._keep()
        super().sync()


def run_fn(func: Callable[..., Any], *_: Any) -> Callable[..., Any]:
    """The training function, as `run` of a framework's `elastic` decorates it.

    Args:
        func: Takes a state, and whatever else.
        _: What Horovod calls to meet the ranks that are left; the lost ones end the job here.
    """

    @functools.wraps(func)
    def call(state: State, *args: Any, **options: Any) -> Any:
        try:
            state.sync()
            return func(state, *args, **options)
        except PeerLostError as error:
            raise PeerLostError(f"{error} The others cannot go on without it: {_REMEDY}") from error

    return call
