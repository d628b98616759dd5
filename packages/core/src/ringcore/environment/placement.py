"""Finds this process's place among the ranks from what its launcher left in the environment."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping

from ringcore._errors import InvalidArgument

Environ = Mapping[str, str]


# Names of jobs begin so whose ranks have tickets: see `launcher.external`.
TICKET_JOB = "external-"


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where this process stands among the ranks of its job.

    What the launcher does not tell is `None`; the ranks find it out when they meet.
    """

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    cross_rank: int | None
    cross_size: int | None
    source: str
    job_id: str | None = None
    rendezvous: str | None = None
    master_addr: str | None = None
    master_port: int | None = None
    epoch: int | None = None  # of an elastic job
    servers: int = 0  # behind the ranks: they have no data, see docs/servers.md

    @property
    def processes(self) -> int:
        """How many meet: the ranks, and the servers behind them."""
        return self.size + self.servers

    @property
    def serves(self) -> bool:
        """Whether this process is one of the servers."""
        return self.rank >= self.size

    @property
    def placed_by(self) -> str:
        """Who has placed this rank, in words: where it has a ticket, ringrun's variables are set without a ringrun."""
        return "a ticket" if self.job_id is not None and self.job_id.startswith(TICKET_JOB) else self.source

    def __post_init__(self) -> None:
        for name, index, count in (
            ("rank", self.rank, self.processes),
            ("local rank", self.local_rank, self.local_size),
            ("cross rank", self.cross_rank, self.cross_size),
        ):
            if count is not None and count < 1:
                raise InvalidArgument(f"{self.source}: {count} ranks is less than one ({name})")
            if index is not None and (index < 0 or (count is not None and index >= count)):
                raise InvalidArgument(
                    f"{self.source}: {name} {index} is not one of {count}: check the launcher's variables"
                )


def find_placement(environ: Environ) -> Placement:
    """Find this process's rank, size and neighbours.

    Launchers are asked in a fixed order, so that the innermost wins: ringrun, torchrun, Open MPI, MPICH and
    Intel MPI, srun, Horovod's launcher, a Kubernetes Indexed Job. Without any of them this is a world of one.

    Args:
        environ: Usually `os.environ`.

    Returns:
        The placement; `source` names the launcher.

    Raises:
        InvalidArgument: Variables of a launcher are contradictory or no numbers, or RANK and WORLD_SIZE
            are set without LOCAL_RANK, which may count hosts rather than processes.
    """
    for _, detect in SOURCES:
        found = detect(environ)
        if isinstance(found, Placement):
            return found
    raise AssertionError("the last source always matches")


def rank_and_size() -> tuple[int, int]:
    """This process's rank and how many there are, before `init()`; 0 and 1 without a launcher."""
    placement = find_placement(os.environ)
    return placement.rank, placement.size


def explain(environ: Environ) -> list[tuple[str, bool, str]]:
    """Tell of each launcher whether it placed this process, and why or why not.

    Args:
        environ: Usually `os.environ`.

    Returns:
        Rows of (source, matched, reason) in the order of asking. At most one row has matched;
        none has when `find_placement` would raise, and the last row then holds the error.
    """
    rows: list[tuple[str, bool, str]] = []
    winner: str | None = None
    for name, detect in SOURCES:
        try:
            found = detect(environ)
        except InvalidArgument as error:
            if winner is None:
                return [*rows, (name, False, f"refused: {error}")]
            found = f"not usable, and {winner} comes first"
        if isinstance(found, str):
            rows.append((name, False, found))
        elif winner is None:
            winner = name
            rows.append((name, True, f"rank {found.rank} of {found.size}"))
        else:
            rows.append((name, False, f"would match, but {winner} comes first"))
    return rows


def _integer(environ: Environ, name: str) -> int:
    text = environ[name]
    if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) is None:
        raise InvalidArgument(f"{name} is {text!r}, but a whole number is needed")
    return int(text)


def _maybe(environ: Environ, *names: str) -> int | None:
    return next((_integer(environ, name) for name in names if environ.get(name)), None)


def _missing(environ: Environ, *names: str) -> str | None:
    missing = [name for name in names if not environ.get(name)]
    return f"{' and '.join(missing)} not set" if missing else None


def _ringrun(environ: Environ) -> Placement | str:
    if not environ.get("RINGCORE_RANK"):
        return "RINGCORE_RANK not set"
    if not environ.get("RINGCORE_SIZE"):
        raise InvalidArgument("RINGCORE_RANK is set without RINGCORE_SIZE: set both, or neither")
    return Placement(
        rank=_integer(environ, "RINGCORE_RANK"),
        size=_integer(environ, "RINGCORE_SIZE"),
        local_rank=_maybe(environ, "RINGCORE_LOCAL_RANK"),
        local_size=_maybe(environ, "RINGCORE_LOCAL_SIZE"),
        cross_rank=_maybe(environ, "RINGCORE_CROSS_RANK"),
        cross_size=_maybe(environ, "RINGCORE_CROSS_SIZE"),
        source="ringrun",
        job_id=environ.get("RINGCORE_JOB_ID") or None,
        rendezvous=environ.get("RINGCORE_RENDEZVOUS") or None,
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=_maybe(environ, "MASTER_PORT"),
        servers=_maybe(environ, "RINGCORE_SERVERS") or 0,
    )


def _torchrun(environ: Environ) -> Placement | str:
    reason = _missing(environ, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    if reason:
        return reason
    return Placement(
        rank=_integer(environ, "RANK"),
        size=_integer(environ, "WORLD_SIZE"),
        local_rank=_integer(environ, "LOCAL_RANK"),
        # The second ones are those of DeepSpeed's launcher.
        local_size=_maybe(environ, "LOCAL_WORLD_SIZE", "LOCAL_SIZE"),
        cross_rank=_maybe(environ, "GROUP_RANK", "CROSS_RANK"),
        cross_size=_maybe(environ, "GROUP_WORLD_SIZE", "CROSS_SIZE"),
        servers=_maybe(environ, "RINGCORE_SERVERS") or 0,  # which have such variables, and were started by hand
        source="torchrun",
        job_id=environ.get("TORCHELASTIC_RUN_ID") or None,
        rendezvous=environ.get("RINGCORE_RENDEZVOUS") or None,
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=_maybe(environ, "MASTER_PORT"),
    )


def _open_mpi(environ: Environ) -> Placement | str:
    # Not OMPI_MCA_orte_hnp_uri, which other libraries look for: Open MPI 5 no longer sets it.
    reason = _missing(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if reason:
        return reason
    return _from_mpi(
        environ,
        source="Open MPI",
        rank=_integer(environ, "OMPI_COMM_WORLD_RANK"),
        size=_integer(environ, "OMPI_COMM_WORLD_SIZE"),
        local_rank=_maybe(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=_maybe(environ, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        job_id=environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid"),
    )


def _mpich(environ: Environ) -> Placement | str:
    reason = _missing(environ, "PMI_RANK", "PMI_SIZE")
    if reason:
        return reason
    step = _srun(environ)
    if isinstance(step, Placement) and environ.get("PMI_JOBID") == _slurm_step(environ):
        return dataclasses.replace(step, source="MPICH")  # srun --mpi=pmi2 speaks for MPICH's launcher
    return _from_mpi(
        environ,
        source="MPICH",
        rank=_integer(environ, "PMI_RANK"),
        size=_integer(environ, "PMI_SIZE"),
        local_rank=_maybe(environ, "MPI_LOCALRANKID", "SLURM_LOCALID"),
        local_size=_maybe(environ, "MPI_LOCALNRANKS") or _tasks_on_node(environ, _maybe(environ, "SLURM_NODEID")),
        job_id=environ.get("PMI_JOBID"),
    )


def _from_mpi(
    environ: Environ,
    *,
    source: str,
    rank: int,
    size: int,
    local_rank: int | None,
    local_size: int | None,
    job_id: str | None,
) -> Placement:
    one_host = local_size == size
    return Placement(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        cross_rank=0 if one_host else None,
        cross_size=1 if one_host else None,
        source=source,
        job_id=job_id or None,
        rendezvous=environ.get("RINGCORE_RENDEZVOUS") or None,
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=_maybe(environ, "MASTER_PORT"),
    )


# What srun gives a step, and a batch script or an interactive shell does not have.
_STEP_VARIABLES = ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS")


def _srun(environ: Environ) -> Placement | str:
    reason = _missing(environ, "SLURM_PROCID", "SLURM_NTASKS")
    if reason:
        return reason
    if not any(environ.get(name) for name in _STEP_VARIABLES):
        return "inside a Slurm job, but not started by srun (no SLURM_STEP_* variable)"
    if environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return f"an interactive shell (SLURM_JOB_NAME is {environ['SLURM_JOB_NAME']!r}), not started by srun"
    node = _maybe(environ, "SLURM_NODEID")
    return Placement(
        rank=_integer(environ, "SLURM_PROCID"),
        size=_maybe(environ, "SLURM_STEP_NUM_TASKS") or _integer(environ, "SLURM_NTASKS"),
        local_rank=_maybe(environ, "SLURM_LOCALID"),
        local_size=_tasks_on_node(environ, node),
        cross_rank=node,
        cross_size=_maybe(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
        source="srun",
        # A requeued job has its number again.
        job_id=".".join(part for part in (_slurm_step(environ), environ.get("SLURM_RESTART_COUNT")) if part) or None,
        rendezvous=environ.get("RINGCORE_RENDEZVOUS") or None,
        master_addr=environ.get("MASTER_ADDR") or _first_host(environ.get("SLURM_STEP_NODELIST", "")),
        master_port=_maybe(environ, "MASTER_PORT"),
    )


def _slurm_step(environ: Environ) -> str:
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
    return ".".join(part for part in (environ.get("SLURM_JOB_ID"), step) if part)


def _tasks_on_node(environ: Environ, node: int | None) -> int | None:
    """Reads Slurm's run-length list of tasks for each node: `2(x3),1` is 2, 2, 2, 1."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or ""
    if node is None:
        return None
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part, re.ASCII)
        if match is None:
            return None
        repeat = int(match[2] or 1)
        if node < repeat:
            return int(match[1])
        node -= repeat
    return None


def _first_host(nodes: str) -> str | None:
    """Returns the first name of Slurm's compressed host list: `gpu[03-05,9],x1` -> `gpu03`."""
    match = re.match(r"([^,\[\s]+)(?:\[([0-9]+)[^\]]*\]([^,\[\s]*))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else None


def _horovod(environ: Environ) -> Placement | str:
    reason = _missing(environ, "HOROVOD_RANK", "HOROVOD_SIZE")
    if reason:
        return reason
    return Placement(
        rank=_integer(environ, "HOROVOD_RANK"),
        size=_integer(environ, "HOROVOD_SIZE"),
        local_rank=_maybe(environ, "HOROVOD_LOCAL_RANK"),
        local_size=_maybe(environ, "HOROVOD_LOCAL_SIZE"),
        cross_rank=_maybe(environ, "HOROVOD_CROSS_RANK"),
        cross_size=_maybe(environ, "HOROVOD_CROSS_SIZE"),
        source="Horovod",
        rendezvous=environ.get("RINGCORE_RENDEZVOUS") or None,
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=_maybe(environ, "MASTER_PORT"),
    )


def _kubernetes(environ: Environ) -> Placement | str:
    if not environ.get("JOB_COMPLETION_INDEX"):
        return "JOB_COMPLETION_INDEX not set"
    if not environ.get("RINGCORE_SIZE"):
        # Nothing in the pod tells `completions`, and a guess would be a wrong sum.
        return "JOB_COMPLETION_INDEX is set, but RINGCORE_SIZE (the Job's completions) is not"
    rank = _integer(environ, "JOB_COMPLETION_INDEX")
    size = _integer(environ, "RINGCORE_SIZE")
    return Placement(
        rank=rank,
        size=size,
        local_rank=0,
        local_size=1,
        cross_rank=rank,
        cross_size=size,
        source="Kubernetes",
        job_id=environ.get("RINGCORE_JOB_ID") or None,
        rendezvous=environ.get("RINGCORE_RENDEZVOUS") or None,
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=_maybe(environ, "MASTER_PORT"),
    )


def _alone(environ: Environ) -> Placement:
    if environ.get("RANK") and environ.get("WORLD_SIZE"):
        raise InvalidArgument(
            f"RANK={environ['RANK']} and WORLD_SIZE={environ['WORLD_SIZE']} are set without LOCAL_RANK, so they may "
            "count hosts (as some schedulers do) or Spark partitions instead of processes. Start the script with "
            "ringrun or torchrun, set LOCAL_RANK as well if each process has its own RANK, or unset RANK and "
            "WORLD_SIZE to run alone"
        )
    if environ.get("RINGCORE_SIZE", "1") not in ("", "1"):
        raise InvalidArgument(
            f"RINGCORE_SIZE is {environ['RINGCORE_SIZE']} but nothing tells this process's rank: set "
            "RINGCORE_RANK too, or start the script with ringrun"
        )
    return Placement(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1, source="alone")


SOURCES: tuple[tuple[str, Callable[[Environ], Placement | str]], ...] = (
    ("ringrun", _ringrun),
    ("torchrun", _torchrun),
    ("Open MPI", _open_mpi),
    ("MPICH", _mpich),
    ("srun", _srun),
    ("Horovod", _horovod),
    ("Kubernetes", _kubernetes),
    ("alone", _alone),
)
# The variable in which a launcher tells how many ranks a host has.
LOCAL_SIZE_VARIABLES = {
    "ringrun": "RINGCORE_LOCAL_SIZE",
    "torchrun": "LOCAL_WORLD_SIZE",
    "Open MPI": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPICH": "MPI_LOCALNRANKS",
    "srun": "SLURM_STEP_TASKS_PER_NODE",
    "Horovod": "HOROVOD_LOCAL_SIZE",
}
