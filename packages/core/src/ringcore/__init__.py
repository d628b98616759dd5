"""ringcore: data-parallel training by collectives between processes.

`init()` finds this process's place in the job; the collectives take numpy arrays and anything that speaks the buffer
protocol or DLPack. Adapters for frameworks are separate distributions: ringcore_torch, ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcore._errors import (
    BootstrapError,
    DeadlockError,
    DuplicateNameError,
    EvictedError,
    InvalidArgument,
    MembershipChangedError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    ProtocolError,
    ResourceError,
    RingcoreError,
    ShutdownError,
    TimeoutError,
)
from ringcore._version import __version__
from ringcore.environment.interpreter import require_main_interpreter

require_main_interpreter()

if TYPE_CHECKING:
    from ringcore._native import Handle
    from ringcore.adapter.collectives import ReduceOp
    from ringcore.adapter.objects import allgather_object, broadcast_object
    from ringcore.arrays import (
        Adasum,
        Average,
        Compression,
        Max,
        Min,
        Product,
        Sum,
        allgather,
        allgather_async,
        allreduce,
        allreduce_,
        allreduce_async,
        allreduce_async_,
        alltoall,
        alltoall_async,
        barrier,
        broadcast,
        broadcast_,
        broadcast_async,
        broadcast_async_,
        empty,
        gather,
        gather_async,
        grouped_allgather,
        grouped_allgather_async,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        grouped_reducescatter,
        grouped_reducescatter_async,
        join,
        poll,
        reduce,
        reduce_async,
        reducescatter,
        reducescatter_async,
        scatter,
        scatter_async,
        synchronize,
    )
    from ringcore.commands.doctor import doctor
    from ringcore.header import capi, get_include
    from ringcore.job.lifecycle import init, shutdown
    from ringcore.job.members import on_membership_change
    from ringcore.job.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
    from ringcore.job.state import (
        cross_rank,
        cross_size,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        rank,
        size,
    )
    from ringcore.job.statistics import statistics
    from ringcore.job.timeline import start_timeline, stop_timeline
    from ringcore.job.topology import topology
    from ringcore.launcher.api import run

# Loaded at first use, so that `import ringcore` costs nothing.
_HOMES = {
    "ringcore.job.state": (
        "cross_rank", "cross_size", "is_homogeneous", "is_initialized", "local_rank", "local_size", "rank", "size",
    ),
    "ringcore.job.process_sets": ("ProcessSet", "add_process_set", "global_process_set", "remove_process_set"),
    "ringcore.job.lifecycle": ("init", "shutdown"),
    "ringcore.job.members": ("on_membership_change",),
    "ringcore.adapter.objects": ("allgather_object", "broadcast_object"),
    "ringcore.arrays": (
        "Adasum", "Average", "Compression", "Max", "Min", "Product", "Sum", "allgather", "allgather_async", "allreduce",
        "allreduce_", "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast",
        "broadcast_", "broadcast_async", "broadcast_async_", "empty", "gather", "gather_async", "grouped_allgather",
        "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
        "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async", "join", "poll", "reduce",
        "reduce_async", "reducescatter", "reducescatter_async", "scatter", "scatter_async", "synchronize",
    ),
    "ringcore.job.statistics": ("statistics",),
    "ringcore.job.topology": ("topology",),
    "ringcore.job.timeline": ("start_timeline", "stop_timeline"),
    "ringcore._native": ("Handle",),
    "ringcore.adapter.collectives": ("ReduceOp",),
    "ringcore.commands.doctor": ("doctor",),
    "ringcore.header": ("capi", "get_include"),
    "ringcore.launcher.api": ("run",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Adasum",
    "Average",
    "BootstrapError",
    "Compression",
    "DeadlockError",
    "DuplicateNameError",
    "EvictedError",
    "Handle",
    "InvalidArgument",
    "Max",
    "MembershipChangedError",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ProtocolError",
    "ReduceOp",
    "ResourceError",
    "RingcoreError",
    "ShutdownError",
    "Sum",
    "TimeoutError",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "capi",
    "cross_rank",
    "cross_size",
    "doctor",
    "empty",
    "gather",
    "gather_async",
    "get_include",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "on_membership_change",
    "poll",
    "rank",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "run",
    "scatter",
    "scatter_async",
    "shutdown",
    "size",
    "start_timeline",
    "statistics",
    "stop_timeline",
    "synchronize",
    "topology",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "plans":
        return importlib.import_module("ringcore.plans")
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'ringcore' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
