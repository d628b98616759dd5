"""Start and place of a process, and what it was built with."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from operator import index
from typing import Any

import ringcore
from ringcore import InvalidArgument
from ringcore.adapter import find_placement, launched_by_mpi, version_here

from horovod.common.environment import tell_without_effect, translate_environment
from horovod.common.process_sets import (
    ProcessSet,
    forget_process_sets,
    global_process_set,
    ids_and_ranks,
    register_process_sets,
)
from horovod.common.timeline import start_from_environment

_log = logging.getLogger("ringcore")


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Start ringcore.

    Args:
        comm: A communicator of mpi4py, whose processes are the ranks then; or a list of ranks of MPI's world, which
            only these ranks call; None: the whole job.
        process_sets: Registered at once; "dynamic" means nothing here: process sets can always be added.

    Raises:
        InvalidArgument: One of Horovod's variables has a value that is not accepted.
        InvalidArgument: `comm` is a list of some ranks and MPI has not launched them, or not of ranks; or this rank is
            none of them; or two of the process sets have the same ranks.
    """
    translate_environment()
    communicator = _communicator(list(comm)) if isinstance(comm, Sequence) else comm
    if not ringcore.is_initialized():
        ringcore.init(communicator)
        if ringcore.rank() == 0:
            tell_without_effect(_log.warning)
        forget_process_sets()
        global_process_set.mpi_comm = communicator
    start_from_environment()
    if process_sets and not isinstance(process_sets, str):
        register_process_sets(process_sets, communicator)


def _get_process_set_ids_and_ranks() -> dict[int | None, list[int]]:
    """The ranks of each process set, by its number: scripts ask Horovod's `_basics` for them."""
    return ids_and_ranks()


def _communicator(ranks: list[Any]) -> Any:
    """The communicator of these ranks; None where they are the whole job."""
    placement = find_placement(os.environ)
    if ranks in ([], list(range(placement.size))):
        return None
    known = all(hasattr(rank, "__index__") and 0 <= index(rank) < placement.size for rank in ranks)
    if not known or len(set(ranks)) < len(ranks):
        raise InvalidArgument(
            f"init(comm={ranks}): ranks 0 to {placement.size - 1} were expected, each once; of several communicators "
            "pass the one of all ranks, and make the others with add_process_set([...]) after it"
        )
    if placement.rank not in ranks:
        raise InvalidArgument(f"init(comm={ranks}): rank {placement.rank} is none of these; they alone call it")
    try:
        if not launched_by_mpi(placement):
            raise ImportError(f"{placement.source} has started this job, and not MPI")
        from mpi4py import MPI

        if MPI.COMM_WORLD.size != placement.size:
            raise ImportError(f"mpi4py uses another MPI than this job's, and sees {MPI.COMM_WORLD.size} ranks")
    except ImportError as error:
        raise InvalidArgument(
            f"init(comm={ranks}): a job of some of the {placement.size} ranks, or of all in another order, takes MPI "
            f"and mpi4py ({error}). On all ranks write init() and part = add_process_set({ranks}) instead, and pass "
            f"process_set=part to the operations; or start {len(ranks)} ranks"
        ) from None
    return MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(ranks))


def mpi_threads_supported() -> bool:
    """False: what scripts ask MPI for, ringcore does over any transport."""
    return False


def mpi_enabled() -> bool:
    """Whether an MPI's launcher has started this job; ringcore does over any transport what scripts ask MPI for."""
    return launched_by_mpi(find_placement(os.environ))


def mpi_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether jobs can be an MPI's here: one has launched this one, or its mpirun is at hand."""
    return mpi_enabled() or shutil.which("mpirun") is not None


def gloo_enabled() -> bool:
    """True: ringcore's own transports do what scripts ask Gloo for."""
    return True


def gloo_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """True: ringcore's own transports do what scripts ask Gloo for."""
    return True


def nccl_built(verbose: bool = False) -> int:  # noqa: ARG001
    """The version of the NCCL that ringcore would use here, as NCCL counts: 2.30.1 is 23001; 0: there is none."""
    version = version_here("nccl")
    return 0 if version is None else 10000 * version[0] + 100 * version[1] + version[2]


def ddl_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """IBM's DDL is not used."""
    return False


def ccl_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Intel's oneCCL is not used."""
    return False


def cuda_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether CUDA's driver is here and starts: ringcore is built for it without needing it."""
    return version_here("cuda") is not None


def rocm_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether tensors on ROCm devices are reduced there."""
    return False
