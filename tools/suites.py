"""The suites that session `tests` runs, and how."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import nox

from tools.distributions import CLUSTERS, left_out
from tools.environments import at_a_time, environment_binary

_NO_TESTS = 5  # what pytest returns where it found none
_SLOWEST = ["--durations=12", "--durations-min=3"]  # shown, so that it is seen which test makes a suite long
_RUN = "-k=python_runs or commands_run"  # what else there is needs no framework
# Suites: framework, what is tested, arguments of pytest; of those that run side by side the longest first.
COMPUTING = [
    ("torch", "the PyTorch adapter", "packages/torch/tests"),
    ("torch", "conformance with PyTorch and the engine alone", "tests/conformance"),
    ("torch", "the Lightning strategies", "packages/lightning/tests"),
    ("jax", "the JAX adapter", "packages/jax/tests"),
    ("tensorflow", "the TensorFlow adapter", "packages/tensorflow/tests"),
    ("torch", "Keras on torch", "packages/keras/tests"),
    ("torch", "scripts for Horovod", "packages/horovod/tests/test_horovod.py"),
    ("torch", "the documentation", "tests/docs"),
    ("mxnet", "the MXNet adapter", "packages/mxnet/tests"),
    ("tensorflow", "scripts for Horovod", "packages/horovod/tests/test_horovod_tensorflow.py"),
    *((name, f"conformance with {name}", "tests/conformance", f"-k={name}") for name in ("tensorflow", "jax", "mxnet")),
    ("torch", "GPUs, by a double of CUDA", "tests/gpu"),
    ("torch", "images and charts", "tests/deploy"),
    (
        "tensorflow", "training with Keras on tensorflow", "packages/keras/tests/test_training.py",
        "-k=train_like_one or embeddings",
    ),
    ("torch", "examples", "tests/test_examples.py"),
    ("mxnet", "scripts for Horovod", "packages/horovod/tests/test_horovod_mxnet.py"),
    ("tensorflow", "Horovod's data service", "packages/horovod/tests/test_horovod_data_service.py"),
]  # fmt: skip
# Much like one of those, or of what seldom breaks: session `tests_long` runs them.
SELDOM = [
    *((name, f"Keras on {name}", "packages/keras/tests") for name in ("jax", "tensorflow")),
    *((name, f"conformance with Keras on {name}", "tests/conformance", "-k=keras") for name in ("jax", "tensorflow")),
    *((name, f"examples with {name}", "tests/test_examples.py") for name in ("jax", "tensorflow", "mxnet")),
    *(
        (name, f"the documentation's code with {name}", "tests/docs/test_code.py", _RUN)
        for name in ("jax", "tensorflow", "mxnet")
    ),
    ("mxnet", "the comparison with parameter servers", "tests/benchmarks"),
]
# What tells a lost rank from a slow one. These wait three quarters of their time: beside each other they lose none.
WAITING = [
    ("torch", "faults", "tests/faults"),
    ("torch", "what crosses the network", "tests/hosts", "tests/launchers"),
    ("torch", "the core package's launcher", "packages/core/tests/launcher", "-k=not test_elastic_"),
    ("torch", "elastic jobs of the launcher", "packages/core/tests/launcher", "-k=test_elastic_"),
    (
        "torch", "what else crosses the packages: packaging, plans, random programs, README", "tests",
        *(f"--ignore=tests/{name}" for name in ("faults", "hosts", "launchers")),
        *(f"--ignore={path}" for framework, _, path, *_ in COMPUTING if framework == "torch"),
    ),
    ("torch", "the core package", "packages/core/tests", "--ignore=packages/core/tests/launcher"),
]  # fmt: skip

# Once more with all TCP encrypted, before a release. There MPI is refused, and NCCL carries nothing.
ENCRYPTED = [
    *((name, f"conformance with {name}, encrypted", "tests/conformance", f"-k={name} or keras")
      for name in ("jax", "tensorflow", "mxnet")),
    ("torch", "conformance with PyTorch and the engine alone, encrypted", "tests/conformance"),
    ("torch", "the PyTorch adapter, encrypted", "packages/torch/tests"),
    (
        "torch", "faults, encrypted", "tests/faults", "tests/random_programs", "-k=not MPICH and not mpirun",
        "--ignore-glob=tests/faults/test_gpu*",
    ),
]  # fmt: skip

# Minutes: each script of theirs starts a cluster.
DOCUMENTED_CLUSTERS = [
    (name, f"the documentation's code with {name}", "tests/docs/test_code.py", run)
    for name, run in (("spark", _RUN), ("ray", "-k=commands_run"), ("dask", "-k=commands_run"))
]
SPARKS_ESTIMATORS = [
    f"packages/spark/tests/test_{name}_estimator.py" for name in ("torch", "keras", "lightning", "datasets")
]
# A start of Spark or Ray each, which takes seconds.
WITH_CLUSTERS = [
    (
        "spark", "ranks that Spark starts", "packages/spark/tests",
        *(f"--ignore=packages/spark/tests/{name}" for name in ("long", "local_cluster", "mosaicml")),
        *(f"--ignore={path}" for path in SPARKS_ESTIMATORS),
    ),
    ("spark", "Spark's estimators", *SPARKS_ESTIMATORS, "packages/horovod/tests/test_horovod_spark.py"),
    (
        "ray", "ranks that Ray starts", "packages/ray/tests", "--ignore=packages/ray/tests/long",
        "packages/horovod/tests/test_horovod_ray.py",
    ),
    ("dask", "ranks that Dask starts", "packages/dask/tests"),
]  # fmt: skip


def adapter_of(framework: str) -> str:
    """The framework itself, where there are environments of several versions of it."""
    return framework.partition("-")[0]


def pytest_command(framework: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Runs tests in a framework's environment; and the variables for it."""
    python = environment_binary(framework, "python")
    backend = "torch" if framework in CLUSTERS else adapter_of(framework)
    variables = {"PATH": f"{python.parent}:{os.environ['PATH']}", "KERAS_BACKEND": backend}
    return [str(python), "-m", "pytest", *arguments], variables


def run_pytest(session: nox.Session, framework: str, what: str, *arguments: str) -> None:
    """Run tests in a framework's environment."""
    reason = left_out(framework)
    if reason is not None:
        session.skip(reason)
    session.log(f"testing {what}")
    command, variables = pytest_command(framework, *arguments, *session.posargs)
    session.run(*command, external=True, env=variables)


def run_suites(session: nox.Session, *stages: Iterable[tuple[str, ...]], marked: str | None = None) -> None:
    """Run suites, each the arguments of `run_pytest`: those of a stage side by side; all, even if some fail.

    What a suite printed is shown when it has ended.

    Args:
        session: The session that tests.
        stages: Suites that run side by side.
        marked: "long" or "not long": the tests that have this mark, of which a suite may have none, or have it not.
    """
    chosen = [f"-m={marked}"] if marked else []
    well = {0, _NO_TESTS} if marked == "long" else {0}

    def is_well(suite: tuple[str, ...]) -> bool:
        framework, what, *arguments = suite
        command, variables = pytest_command(framework, *arguments, *_SLOWEST, *chosen, *session.posargs)
        begun = time.monotonic()
        done = subprocess.run(
            command, env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        session.log(f"tested {what} in {time.monotonic() - begun:.0f} s:\n{done.stdout}")
        return done.returncode in well

    failed = []
    for stage in stages:
        suites = []
        for suite in stage:
            reason = left_out(suite[0])
            if reason is None:
                suites.append(suite)
            else:
                session.log(f"not tested: {suite[1]}; {reason}")
        more = 0 if stage is COMPUTING else 1  # those that wait leave time for another one
        with ThreadPoolExecutor(at_a_time(gib=4) + more) as pool:
            failed += [suite[1] for suite, well in zip(suites, pool.map(is_well, suites), strict=True) if not well]
    if failed:
        session.error(f"failed: {', '.join(failed)}")
