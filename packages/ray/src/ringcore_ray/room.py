"""Whether there can ever be room for the ranks that are asked for."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.experimental import internal_kv
from ray.util.placement_group import PlacementGroup

# Ray's monitor begins to say what it does a few seconds after Ray has started; where it has not by then, it runs
# elsewhere (`ray start --no-monitor`), and may be an autoscaler.
_UNTOLD_S = 15.0
_LOOK_S = 0.2
# Ray counts in ten thousandths; so much is lost in adding up.
_ROUNDING = 1e-5


def refuse_what_never_fits(
    need: Mapping[str, float], count: int, *, joining_s: float, apart: bool = False, group: PlacementGroup | None = None
) -> None:
    """Return where there is room for all, once all that others hold is free, or where an autoscaler may make some.

    Args:
        need: Resources of each.
        count: How many there are to be.
        joining_s: For so long nodes that somebody starts by hand are waited for.
        apart: Each is on a node of its own.
        group: They are to be in this placement group, which does not grow.

    Raises:
        TimeoutError: It will never come. It is the error of those who wait in vain, too: callers need not tell them
            apart.
    """
    begun = time.monotonic()
    while (found := _room(need, group, apart=apart)) < count:
        grows = False if group is not None else may_grow()
        taken = time.monotonic() - begun
        if grows or (grows is None and taken > _UNTOLD_S):
            return
        if group is not None or (grows is not None and taken >= joining_s):
            raise TimeoutError(_refusal(need, count, found, group, apart=apart))
        time.sleep(_LOOK_S)


def may_grow() -> bool | None:
    """Whether an autoscaler may bring nodes; None: nobody has said so yet.

    Ray runs its monitor in every cluster. Where that only looks on, each node is a type of its own, named after it; an
    autoscaler's nodes have the types of its configuration. The first version says so in its status, the second one
    gives nodes a label.
    """
    if internal_kv._internal_kv_get(b"__autoscaler_v2_enabled", namespace=b"__autoscaler") == b"1":
        return any("ray.io/node-group" in node.get("Labels", {}) for node in ray.nodes())
    status = internal_kv._internal_kv_get(b"__autoscaling_status")
    types = json.loads(status or b"{}").get("autoscaler_report", {}).get("active_nodes")
    if not types:
        return None
    return not {f"node_{node['NodeID']}" for node in ray.nodes()}.issuperset(types)


def in_words(found: Mapping[str, float], names: Iterable[str] = ()) -> str:
    """What there is, as a message says it.

    Args:
        found: Resources; Ray's include the memory, and a mark for each node.
        names: Those to be told besides CPUs and GPUs.
    """
    told = dict.fromkeys(("CPU", "GPU", *names))
    return ", ".join(f"{found[name]:g} {name}" for name in told if name in found) or "nothing"


def _room(need: Mapping[str, float], group: PlacementGroup | None, *, apart: bool) -> float:
    """For how many there would be room if nobody else were there."""
    each = [_fitting(place, need) for place in _places(group)]
    return sum(min(fitting, 1) if apart else fitting for fitting in each)


def _places(group: PlacementGroup | None) -> list[dict[str, Any]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]] if group is None else group.bundle_specs


def _fitting(place: Mapping[str, float], need: Mapping[str, float]) -> float:
    """How many have room in a place; nothing is needed by infinitely many."""
    shares = [(place.get(name, 0) + _ROUNDING) // amount for name, amount in need.items() if amount]
    return min(shares, default=float("inf"))


def _refusal(need: Mapping[str, float], count: int, found: float, group: PlacementGroup | None, *, apart: bool) -> str:
    told = in_words({name: amount for name, amount in need.items() if amount}, need)
    asked = f"{count} times {told}{', each on a node of its own,' if apart else ''}"
    equal = Counter(in_words(place, need) for place in _places(group))
    places = " | ".join(f"{number} times {place}" if number > 1 else place for place, number in equal.items())
    if group is not None:
        return (
            f"{asked} cannot be had in the placement group that this runs in, whose bundles are {places}: there is "
            f"room for {found:g}. Ask for fewer workers or less for each, make the group larger, or take "
            "use_current_placement_group=False for another one"
        )
    return (
        f"{asked} can never be had in this cluster: its nodes have {places}, which is room for {found:g}, and no "
        "autoscaler runs that could bring more. Ask for fewer workers or less for each, or add nodes first "
        "(ray start --address=...)"
    )
