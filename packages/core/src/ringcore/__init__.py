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
    InvalidArgument,
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

if TYPE_CHECKING:
    from ringcore._context import (
        ProcessSet,
        add_process_set,
        cross_rank,
        cross_size,
        global_process_set,
        init,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        rank,
        remove_process_set,
        shutdown,
        size,
    )
    from ringcore._objects import allgather_object, broadcast_object
    from ringcore._operations import (
        Adasum,
        Average,
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
        grouped_allreduce,
        grouped_allreduce_,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        join,
        poll,
        reducescatter,
        reducescatter_async,
        synchronize,
    )
    from ringcore._timeline import start_timeline, stop_timeline
    from ringcore.adapter import Handle, ReduceOp
    from ringcore.doctor import doctor
    from ringcore.launcher.api import run

# Loaded at first use, so that `import ringcore` costs nothing.
_HOMES = {
    "ringcore._context": (
        "ProcessSet", "add_process_set", "cross_rank", "cross_size", "global_process_set", "init", "is_homogeneous",
        "is_initialized", "local_rank", "local_size", "rank", "remove_process_set", "shutdown", "size",
    ),
    "ringcore._objects": ("allgather_object", "broadcast_object"),
    "ringcore._operations": (
        "Adasum", "Average", "Max", "Min", "Product", "Sum", "allgather", "allgather_async", "allreduce",
        "allreduce_", "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast",
        "broadcast_", "broadcast_async", "broadcast_async_", "grouped_allreduce", "grouped_allreduce_",
        "grouped_allreduce_async", "grouped_allreduce_async_", "join", "poll", "reducescatter", "reducescatter_async",
        "synchronize",
    ),
    "ringcore._timeline": ("start_timeline", "stop_timeline"),
    "ringcore.adapter": ("Handle", "ReduceOp"),
    "ringcore.doctor": ("doctor",),
    "ringcore.launcher.api": ("run",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Adasum",
    "Average",
    "BootstrapError",
    "DeadlockError",
    "DuplicateNameError",
    "Handle",
    "InvalidArgument",
    "Max",
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
    "cross_rank",
    "cross_size",
    "doctor",
    "global_process_set",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "run",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'ringcore' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
