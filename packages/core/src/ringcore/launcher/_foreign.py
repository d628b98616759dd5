"""Words of torchrun's and Horovod's command lines that change nothing here, or that ringrun refuses, and why."""

from __future__ import annotations

# Options of other launchers that change nothing here: how many values they take, and why.
_NO_CYCLE = "ringcore has no cycle and no cache to tune"
_PLANNED = "ringcore chooses the algorithm by itself"
_NO_MODEL = "each way is measured, and no model of them is made"
WITHOUT_EFFECT: dict[str, tuple[int, str]] = {
    "--gloo": (0, "ringcore brings its own transports"),
    "--disable-cache": (0, "nothing is cached"),
    "--cycle-time-ms": (1, _NO_CYCLE),
    "--cache-capacity": (1, _NO_CYCLE),
    "--hierarchical-allreduce": (0, _PLANNED),
    "--no-hierarchical-allreduce": (0, _PLANNED),
    "--hierarchical-allgather": (0, _PLANNED),
    "--no-hierarchical-allgather": (0, _PLANNED),
    "--torus-allreduce": (0, _PLANNED),
    "--no-torus-allreduce": (0, _PLANNED),
    "--autotune-bayes-opt-max-samples": (1, _NO_MODEL),
    "--autotune-gaussian-process-noise": (1, _NO_MODEL),
    "--timeline-mark-cycles": (0, _NO_CYCLE),
    "--no-timeline-mark-cycles": (0, _NO_CYCLE),
    "--stall-check": (0, "it is on unless --stall-warning-s is 0"),
    "--mpi-threads-disable": (0, "no MPI is used"),
    "--no-mpi-threads-disable": (0, "no MPI is used"),
    "--num-nccl-streams": (1, "no NCCL stream is used"),
    "--thread-affinity": (1, "threads are not pinned"),
    "--log-with-timestamp": (0, "see --prefix-timestamp"),
    "--log-without-timestamp": (0, "see --prefix-timestamp"),
    "--log-hide-timestamp": (0, "see --prefix-timestamp"),
    "--no-log-hide-timestamp": (0, "see --prefix-timestamp"),
    "--standalone": (0, "a job is alone unless --nnodes is given"),
    "--rdzv-backend": (1, "the ranks meet at ringrun's own rendezvous"),
    "--rdzv-conf": (1, "the ranks meet at ringrun's own rendezvous"),
    "--monitor-interval": (1, "ranks are not polled"),
    "--start-method": (1, "ranks are always spawned"),
    "--signals-to-handle": (1, "SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on"),
}
_MPI_ONLY = "to start with an MPI, use its mpirun: ringcore finds its place there"
REFUSED: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("--mpi", "--jsrun", "--tcp"), (0, _MPI_ONLY)),
    **dict.fromkeys(("--mpi-args", "--binding-args"), (1, _MPI_ONLY)),
    "--numa-binding": (1, "binding is not supported by this version; numactl in the command does it"),
    "--virtual-local-rank": (0, "not supported by this version"),
    "--run-path": (0, "not supported by this version; ringrun -m runs a module"),
    "--check-build": (0, "`ringcore doctor` tells what is installed and usable"),
    "-cb": (0, "`ringcore doctor` tells what is installed and usable"),
}
