"""Start and place of a process, and what it was built with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ringcore
from ringcore import InvalidArgument, ProcessSet, add_process_set

# Horovod's variables and ringcore's for the same, where the values mean the same.
_SETTINGS = {
    "HOROVOD_FUSION_THRESHOLD": "RINGCORE_FUSION_THRESHOLD_BYTES",
    "HOROVOD_TIMELINE": "RINGCORE_TIMELINE",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "RINGCORE_STALL_WARNING_S",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "RINGCORE_TIMEOUT_S",
    "HOROVOD_START_TIMEOUT": "RINGCORE_START_TIMEOUT_S",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "RINGCORE_TIMEOUT_S",
    "HOROVOD_GLOO_IFACE": "RINGCORE_NETWORK_INTERFACES",
    "HOROVOD_LOG_LEVEL": "RINGCORE_LOG_LEVEL",
}
# What they say with these values has no counterpart, or is the default.
_MEANINGLESS = {
    "HOROVOD_TIMELINE": {"DYNAMIC"},
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": {"0"},
    "HOROVOD_LOG_LEVEL": {"trace", "fatal"},
}


def translate_environment() -> None:
    """Set ringcore's variables by Horovod's, where they are not set themselves."""
    for theirs, ours in _SETTINGS.items():
        value = os.environ.get(theirs, "")
        if value and value not in _MEANINGLESS.get(theirs, ()) and value.lower() not in _MEANINGLESS.get(theirs, ()):
            os.environ.setdefault(ours, value.lower() if theirs == "HOROVOD_LOG_LEVEL" else value)
    if os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
        os.environ.setdefault("RINGCORE_STALL_WARNING_S", "0")


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Start ringcore.

    Args:
        comm: None, the ranks of the whole job, or mpi4py's COMM_WORLD; smaller ones are process sets.
        process_sets: Registered at once; "dynamic" means nothing here: process sets can always be added.

    Raises:
        InvalidArgument: `comm` has fewer ranks than the job.
    """
    translate_environment()
    ringcore.init()
    members = None if comm is None else comm.Get_size() if hasattr(comm, "Get_size") else len(comm)
    if members not in (None, 0, ringcore.size()):
        raise InvalidArgument(
            f"init() got a communicator of {members} ranks in a job of {ringcore.size()}; call init() and "
            "add_process_set([...]) on all ranks, and pass process_set= to the operations"
        )
    if process_sets is not None and not isinstance(process_sets, str):
        for process_set in process_sets:
            add_process_set(process_set)


def mpi_threads_supported() -> bool:
    """No MPI is used."""
    return False


def mpi_enabled() -> bool:
    """No MPI is used."""
    return False


def mpi_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """No MPI is used."""
    return False


def gloo_enabled() -> bool:
    """True: ringcore's own transports do what scripts ask Gloo for."""
    return True


def gloo_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """True: ringcore's own transports do what scripts ask Gloo for."""
    return True


def nccl_built(verbose: bool = False) -> int:  # noqa: ARG001
    """NCCL's version; 0: not used."""
    return 0


def ddl_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """IBM's DDL is not used."""
    return False


def ccl_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Intel's oneCCL is not used."""
    return False


def cuda_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether tensors on CUDA devices are reduced there."""
    return False


def rocm_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether tensors on ROCm devices are reduced there."""
    return False
