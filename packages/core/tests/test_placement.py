"""Placement: every launcher's variables, their order, and the traps."""

from __future__ import annotations

import pytest
from ringcore import InvalidArgument
from ringcore.environment.placement import Placement, explain, find_placement
from ringcore.environment.survivors import why_none_survives

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "localhost", "MASTER_PORT": "41411",
}  # fmt: skip
DEEPSPEED = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CROSS_RANK": "1", "CROSS_SIZE": "2",
    "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-vm-7@1", "OMPI_VERSION": "5.0.11",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
SRUN = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1", "SLURM_NNODES": "2", "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_JOB_NAME": "train",
}  # fmt: skip
HOROVOD = {
    "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1",
}  # fmt: skip
RINGRUN = {
    "RINGCORE_RANK": "1", "RINGCORE_SIZE": "2", "RINGCORE_LOCAL_RANK": "1", "RINGCORE_LOCAL_SIZE": "2",
    "RINGCORE_CROSS_RANK": "0", "RINGCORE_CROSS_SIZE": "1", "RINGCORE_JOB_ID": "j",
    "RINGCORE_RENDEZVOUS": "tcp:127.0.0.1:7",
}  # fmt: skip
KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "RINGCORE_SIZE": "3"}


def place(placement: Placement) -> tuple[object, ...]:
    return (
        placement.source, placement.rank, placement.size, placement.local_rank, placement.local_size,
        placement.cross_rank, placement.cross_size,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("alone", 0, 1, 0, 1, 0, 1)),
        (RINGRUN, ("ringrun", 1, 2, 1, 2, 0, 1)),
        (TORCHRUN, ("torchrun", 3, 4, 1, 2, 1, 2)),
        (DEEPSPEED, ("torchrun", 3, 4, 1, 2, 1, 2)),
        (OPEN_MPI, ("Open MPI", 1, 2, 1, 2, 0, 1)),
        (MPICH, ("MPICH", 1, 2, 1, 2, 0, 1)),
        (SRUN, ("srun", 2, 3, 0, 1, 1, 2)),
        (HOROVOD, ("Horovod", 1, 2, 1, 2, 0, 1)),
        (KUBERNETES, ("Kubernetes", 1, 3, 0, 1, 1, 3)),
    ],
)
def test_each_launcher(environ: dict[str, str], expected: tuple[object, ...]) -> None:
    assert place(find_placement(environ)) == expected


def test_order_when_several_launchers_are_visible() -> None:
    environ: dict[str, str] = {}
    for source, variables in reversed(
        [
            ("ringrun", RINGRUN),
            ("torchrun", TORCHRUN),
            ("Open MPI", OPEN_MPI),
            ("MPICH", MPICH),
            ("srun", SRUN),
            ("Horovod", HOROVOD),
        ]
    ):
        environ.update(variables)
        assert find_placement(environ).source == source


def test_torchrun_wins_inside_srun() -> None:
    assert find_placement({**SRUN, **TORCHRUN}).source == "torchrun"


def test_open_mpi_5_is_found_without_the_variable_that_it_no_longer_sets() -> None:
    assert "OMPI_MCA_orte_hnp_uri" not in OPEN_MPI
    assert find_placement(OPEN_MPI).job_id == "prterun-vm-7@1"


@pytest.mark.parametrize("missing", [{}, {"MASTER_ADDR": "node0"}])
def test_rank_without_local_rank_is_refused_with_an_explanation(missing: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="LOCAL_RANK") as caught:
        find_placement({"RANK": "0", "WORLD_SIZE": "2", **missing})
    assert "count hosts" in str(caught.value) and "ringrun" in str(caught.value)


def test_rank_without_local_rank_does_no_harm_where_a_launcher_tells_more() -> None:
    assert find_placement({"RANK": "0", "WORLD_SIZE": "2", **OPEN_MPI}).source == "Open MPI"


def test_a_batch_script_is_no_srun() -> None:
    batch = {k: v for k, v in SRUN.items() if "STEP" not in k}
    assert find_placement(batch).source == "alone"
    assert find_placement({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}).source == "alone"


@pytest.mark.parametrize("name", ["bash", "interactive"])
def test_an_interactive_shell_is_no_srun(name: str) -> None:
    assert find_placement({**SRUN, "SLURM_JOB_NAME": name}).source == "alone"


@pytest.mark.parametrize(
    ("text", "node", "tasks"),
    [("2(x3),1", "2", 2), ("2(x3),1", "3", 1), ("4", "0", 4), ("4", "1", None), ("?", "0", None)],
)
def test_slurms_tasks_per_node(text: str, node: str, tasks: int | None) -> None:
    environ = {**SRUN, "SLURM_STEP_TASKS_PER_NODE": text, "SLURM_NODEID": node, "SLURM_NNODES": "4"}
    assert find_placement(environ).local_size == tasks


@pytest.mark.parametrize(
    ("nodes", "first"), [("gpu[03-05,9],x1", "gpu03"), ("a,b", "a"), ("rack[1-2]n", "rack1n"), ("one", "one")]
)
def test_slurms_first_host_is_where_ranks_meet(nodes: str, first: str) -> None:
    assert find_placement({**SRUN, "SLURM_STEP_NODELIST": nodes}).master_addr == first


def test_srun_that_speaks_for_mpichs_launcher() -> None:
    speaks = {**SRUN, "PMI_RANK": "2", "PMI_SIZE": "3", "PMI_JOBID": "77.0", "SLURM_RESTART_COUNT": "1"}
    found = find_placement(speaks)
    assert place(found) == ("MPICH", 2, 3, 0, 1, 1, 2)
    assert (found.job_id, found.master_addr) == ("77.0.1", "gpu03")
    # MPICH's own launcher, inside a step of Slurm.
    assert find_placement({**SRUN, **MPICH}).rank == 1


def test_a_kubernetes_job_needs_an_explicit_size() -> None:
    assert find_placement({"JOB_COMPLETION_INDEX": "1"}).source == "alone"


def test_what_the_launcher_does_not_tell_is_none() -> None:
    placement = find_placement({"PMI_RANK": "0", "PMI_SIZE": "2"})
    assert (placement.local_rank, placement.local_size, placement.cross_rank) == (None, None, None)


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({**RINGRUN, "RINGCORE_RANK": "2"}, "rank 2 is not one of 2"),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, "local rank 2 is not one of 2"),
        ({**TORCHRUN, "RANK": "x"}, "RANK is 'x'"),
        ({**TORCHRUN, "WORLD_SIZE": "0"}, "less than one"),
        ({"RINGCORE_RANK": "0"}, "without RINGCORE_SIZE"),
        ({"RINGCORE_SIZE": "2"}, "RINGCORE_RANK"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "-1"}, "OMPI_COMM_WORLD_SIZE is '-1'"),
    ],
)
def test_contradictions_are_errors(environ: dict[str, str], what: str) -> None:
    with pytest.raises(InvalidArgument, match=what):
        find_placement(environ)


def test_explain_names_the_winner_and_why_not_the_others() -> None:
    rows = {source: (matched, reason) for source, matched, reason in explain({**SRUN, **TORCHRUN})}
    assert rows["torchrun"] == (True, "rank 3 of 4")
    assert rows["ringrun"] == (False, "RINGCORE_RANK not set")
    assert rows["srun"] == (False, "would match, but torchrun comes first")
    assert sum(matched for matched, _ in rows.values()) == 1


def test_explain_ends_with_what_is_refused() -> None:
    source, matched, reason = explain({"RANK": "0", "WORLD_SIZE": "2"})[-1]
    assert (source, matched) == ("alone", False)
    assert reason.startswith("refused: ") and "LOCAL_RANK" in reason


RINGRUN = {"RINGCORE_RANK": "0", "RINGCORE_SIZE": "2", "RINGCORE_WATCH_FILE": "/tmp/rank.0.watch"}


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (RINGRUN, "ringrun without --min-np ends all ranks"),
        ({**RINGRUN, "RINGCORE_WATCH_FILE": ""}, None),
        (TORCHRUN, "torchrun ends all ranks"),
        (DEEPSPEED, None),
        (OPEN_MPI, "mpirun --with-ft ulfm"),
        ({**OPEN_MPI, "OMPI_MCA_mpi_ft_enable": "1"}, None),
        (MPICH, "the launcher of MPICH and Intel MPI ends all ranks"),
        (SRUN, "SLURM_KILL_BAD_EXIT=0"),
        ({**SRUN, "SLURM_KILL_BAD_EXIT": "0"}, None),
        (HOROVOD, None),
    ],
)
def test_launchers_that_end_who_is_left_are_known(environ: dict[str, str], says: str | None) -> None:
    why = why_none_survives(find_placement(environ), environ)
    assert (why is None) == (says is None), why
    assert why is None or ((says or "") in why and "Remedy: start the job by ringrun --min-np N" in why)
