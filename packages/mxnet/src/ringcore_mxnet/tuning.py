"""How a DistributedTrainer may deal gradients out, of which `RINGCORE_AUTOTUNE` tries which is the quickest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ringcore import adapter
from ringcore.adapter import ProcessSet, name_or_next

_GROUPS = (1, 4, 16)


@dataclasses.dataclass(frozen=True)
class Dealing:
    """A way to deal gradients out to operations.

    Attributes:
        groups: So many, neighbours together; None: each gradient is sent by itself, as soon as it is there.
    """

    groups: int | None

    def __str__(self) -> str:
        return "each gradient by itself" if self.groups is None else f"{self.groups} groups of gradients"


def tuner_of(
    sizes: Sequence[int], use: Callable[[Dealing], None], process_set: ProcessSet
) -> adapter.Tuner[Dealing] | None:
    """What tries these ways behind each step; None where there is nothing to try.

    Args:
        sizes: Of the gradients, in elements.
        use: Does the steps from here on that way.
        process_set: The ranks that train together.
    """
    ways = [Dealing(None), *(Dealing(groups) for groups in _GROUPS if groups < len(sizes))]
    if not adapter.context().settings.autotune or len(ways) == 1:
        return None
    shape = f"mxnet: {len(sizes)} gradients of {sum(sizes)} elements"
    return adapter.Tuner(name_or_next(None, "dealing", process_set), ways, use, process_set=process_set, shape=shape)
