"""Elastic training of JAX, see `ringcore.elastic`: a state of pytrees of arrays, samplers and objects."""

from __future__ import annotations

from typing import Any

import jax
from ringcore import adapter
from ringcore.elastic import ElasticSampler, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run

from ringcore_jax.state import broadcast_parameters

__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "JaxState", "ObjectState", "State", "run"]


class JaxState(ObjectState):
    """Keeps pytrees that have arrays in them, such as parameters and an optimizer's state, samplers, and objects.

    Arrays do not change: what is kept is what an attribute was at the last commit.

    Args:
        attributes: By name, what they are at first; they become attributes of the state.
    """

    def __init__(self, **attributes: Any) -> None:
        self._names = [name for name, value in attributes.items() if _has_arrays(value)]
        self._trees: dict[str, Any] = {}
        for name in self._names:
            setattr(self, name, attributes[name])
        super().__init__(**{name: value for name, value in attributes.items() if name not in self._names})
        self._keep()

    def _keep(self) -> None:
        self._trees = {name: getattr(self, name) for name in self._names}

    def save(self) -> None:  # noqa: D102
        # What programs have not computed yet may fail, or be lost with a rank: it is not kept then.
        for leaf in jax.tree.leaves([getattr(self, name) for name in self._names]):
            if isinstance(leaf, jax.Array):
                leaf.block_until_ready()
        adapter.await_devices()
        self._keep()
        super().save()

    def restore(self) -> None:  # noqa: D102
        for name, tree in self._trees.items():
            setattr(self, name, tree)
        super().restore()

    def describe(self) -> dict[str, str]:  # noqa: D102
        return super().describe() | {f"{name}{path}": like for name in self._names for path, like in self._leaves(name)}

    def outline(self) -> str:  # noqa: D102
        return f"{super().outline()}; trees: {[(name, self._leaves(name)) for name in self._names]}"

    def _leaves(self, name: str) -> list[tuple[str, str]]:
        leaves, _ = jax.tree.flatten_with_path(getattr(self, name))
        return [
            (jax.tree_util.keystr(path), f"{leaf.dtype} of shape {leaf.shape}")
            for path, leaf in leaves
            if isinstance(leaf, jax.Array)
        ]

    def sync(self) -> None:  # noqa: D102
        handover = self.handover
        if self.sync_among.included() or (handover is not None and handover.gives):
            among, root = (self.sync_among, 0) if handover is None else (handover, handover.root)
            for name in self._names:
                come = broadcast_parameters(getattr(self, name), root, process_set=among)
                if handover is None or not handover.gives:
                    setattr(self, name, come)
        super().sync()


def _has_arrays(value: Any) -> bool:
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))
