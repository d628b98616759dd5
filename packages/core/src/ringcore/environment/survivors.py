"""Whether a launcher lets ranks go on when another one has failed: most end all of them."""

from __future__ import annotations

from collections.abc import Mapping

from ringcore.environment.placement import Placement
from ringcore.environment.watching import WATCH_FILE_VARIABLE

_START_BY_RINGRUN = "start the job by ringrun --min-np N"


def why_none_survives(placement: Placement, environ: Mapping[str, str]) -> str | None:
    """Why the ranks that are left when one fails do not go on, whatever their engines do, and the remedy.

    Args:
        placement: Of a rank that has no line to the launcher of an elastic job.
        environ: Usually `os.environ`.

    Returns:
        A sentence and a remedy; None where nothing says that the launcher ends them, as for ranks placed by hand.
    """
    if placement.source == "ringrun" and environ.get(WATCH_FILE_VARIABLE):  # its other variables may be set by hand
        return f"ringrun without --min-np ends all ranks once one has failed. Remedy: {_START_BY_RINGRUN}"
    if placement.source == "torchrun" and environ.get("TORCHELASTIC_RUN_ID"):  # so may torchrun's
        return f"torchrun ends all ranks once one has failed, and starts them anew. Remedy: {_START_BY_RINGRUN}"
    if placement.source == "Open MPI" and environ.get("OMPI_MCA_mpi_ft_enable") != "1":
        return (
            "mpirun ends all ranks once one has failed, where its fault tolerance is off. Remedy: "
            f"{_START_BY_RINGRUN}, or by Open MPI's mpirun --with-ft ulfm"
        )
    if placement.source == "MPICH" and environ.get("SLURM_KILL_BAD_EXIT") != "0":
        return f"the launcher of MPICH and Intel MPI ends all ranks once one has failed. Remedy: {_START_BY_RINGRUN}"
    if placement.source == "srun" and environ.get("SLURM_KILL_BAD_EXIT") != "0":
        return (
            "srun ends all ranks once one has failed, where Slurm is so configured. Remedy: "
            f"{_START_BY_RINGRUN}, or by srun --no-kill with SLURM_KILL_BAD_EXIT=0 exported, which is "
            "--kill-on-bad-exit=0 for srun and tells the ranks of it"
        )
    return None
