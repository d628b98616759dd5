"""What is in deploy/: valid by the published schemas, the same in the chart, and started for real on several hosts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ringcore.launcher import _supervisor
from ringcore.launcher.elastic import nodes
from support.deployment import CHART, DEPLOY, ROOT, helm, load, render, tool, validate
from support.mpis import installed
from support.namespaces import Host, environ_with_ssh, namespaces
from support.processes import LIMIT_S, clean_environ, eventually

# Template -> the value that asks for it.
TEMPLATES = {
    "indexed-job.yaml": "indexedJob", "mpijob.yaml": "mpiJob", "cluster-training-runtime.yaml": "runtime",
    "elastic-job.yaml": "elasticJob", "elastic-jobset.yaml": "elasticJobSet",
    "elastic-training-runtime.yaml": "elasticRuntime",
}  # fmt: skip
NOTHING = dict.fromkeys(TEMPLATES.values(), False)
PROGRAM = """
import os, socket
import numpy as np
import ringcore
ringcore.init()
total = ringcore.allreduce(np.full(1000, ringcore.rank() + 1.0), op=ringcore.Sum, name="total")[0]
links = set(ringcore.job.state.context().runtime.transports()) - {"self"}
words = ["PLACE", ringcore.rank(), ringcore.size(), ringcore.local_rank(), socket.gethostname(), total, *sorted(links)]
os.write(1, (" ".join(map(str, words)) + "\\n").encode())
ringcore.shutdown()
"""


def pod_templates(node: Any) -> Iterator[dict[str, Any]]:
    """Those anywhere in a document."""
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        if isinstance(value, dict) and "containers" in value.get("spec", {}):
            yield value
        yield from pod_templates(value)


@pytest.mark.parametrize(
    "values",
    [{}, {"ranksPerWorker": 2, "workers": 3, "gpus": 2, "name": "other", "command": ["a b", 'c"d']}],
    ids=["default", "other"],
)
def test_what_the_chart_renders_is_valid(tmp_path: Path, values: dict[str, Any]) -> None:
    documents: list[tuple[str, dict[str, Any]]] = []
    kinds = {
        "v1": "core", "batch": "core", "trainer.kubeflow.org": "runtime", "jobset.x-k8s.io": "jobset",
        "kubeflow.org": "mpi",
    }  # fmt: skip
    assert load(render(tmp_path, **NOTHING, **values)) == []
    for document in load(render(tmp_path, **dict.fromkeys(NOTHING, True), **values)):
        documents.append((kinds[document["apiVersion"].partition("/")[0]], document))
        for index, pod in enumerate(pod_templates(document)):
            whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": f"pod-{index}"}}
            documents.append(("core", {**whole, "template": pod}))
    assert len(documents) == 19
    validate(documents)


def test_neither_job_of_an_elastic_job_outlives_its_deadline(tmp_path: Path) -> None:
    _, *jobs = load(render(tmp_path, indexedJob=False, elasticJob=True, deadlineSeconds=2_000_000))
    assert [job["spec"]["activeDeadlineSeconds"] for job in jobs] == [2_000_000] * 2
    validate([("core", job) for job in jobs])


def test_a_document_that_does_not_fit_is_found(tmp_path: Path) -> None:
    service, job = load(render(tmp_path))
    (mpi,) = load(render(tmp_path, indexedJob=False, mpiJob=True))
    (runtime,) = load(render(tmp_path, indexedJob=False, runtime=True))
    (jobset,) = load(render(tmp_path, indexedJob=False, elasticJobSet=True))
    elastic = load(render(tmp_path, indexedJob=False, elasticJob=True))[-1]
    job["spec"]["completion"] = 4
    elastic["spec"]["podFailurePolicy"]["rules"][0]["onPodCondition"] = []
    jobset["spec"]["replicatedJobs"][0]["replica"] = 1
    mpi["spec"]["runPolicy"]["cleanPodPolicy"] = "Runing"
    runtime["spec"]["mlPolicy"]["numNode"] = 2
    for kind, document in (
        ("core", job), ("core", elastic), ("mpi", mpi), ("runtime", runtime), ("jobset", jobset),
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            validate([(kind, document)])
    validate([("core", service)])


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_manifests_are_the_chart_with_its_default_values(tmp_path: Path, template: str) -> None:
    manifest = (DEPLOY / "kubernetes" / template).read_text()
    assert manifest.strip() == render(tmp_path, **{**NOTHING, TEMPLATES[template]: True}).strip()


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    done = helm("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [("worker=8", "worker is not allowed"), ("gpus=-1", "gpus: Must be greater"), ("command=train.py", "command: Inv")],
)
def test_helm_refuses_values_that_mean_nothing(given: str, told: str) -> None:
    done = helm("template", "release", CHART, "--set", given)
    assert done.returncode != 0
    assert told in done.stderr


def test_images() -> None:
    for path in sorted((DEPLOY / "docker").iterdir()):
        # Not asked for: pinned versions of Debian's packages, of which a mirror keeps only the newest.
        words = [tool("hadolint"), "--no-color", "--ignore=DL3008", "--ignore=DL3013", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        for source in re.findall(r"^COPY (\S+) ", path.read_text(), re.MULTILINE):
            assert (ROOT / source).exists(), source


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with namespaces(3) as made:
        key = os.urandom(32)
        for host in made:  # as Kubernetes mounts the secret
            script = "mkdir -p /run/secrets/ringcore; cd /run/secrets/ringcore; cat > key; chmod 400 key"
            subprocess.run(host.command(["sh", "-c", script]), input=key, check=True)
        yield made


@pytest.fixture
def environ(hosts: list[Host], tmp_path: Path) -> dict[str, str]:
    (tmp_path / "train.py").write_text(PROGRAM)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return environ_with_ssh(hosts[0], {**clean_environ(), "PATH": path, "OMP_NUM_THREADS": "1"})


def start_pod(
    host: Host, container: dict[str, Any], own: dict[str, str], environ: dict[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    given = {item["name"]: item["value"] for item in container.get("env", []) if "value" in item}
    variables = {**own, **given}
    words = [*container["command"], *container.get("args", [])]
    words = [re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word) for word in words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return host.popen(words, env={**environ, **variables}, cwd=folder, **pipes)


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(environ: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start a container on a host; it ends with the test, also where that has failed."""
    with contextlib.ExitStack() as stack:

        def start(host: Host, container: dict[str, Any], **own: str) -> subprocess.Popen[bytes]:
            process = start_pod(host, container, {"JOB_COMPLETION_INDEX": "0", **own}, environ, tmp_path)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def run_pods(
    hosts: Sequence[Host], container: dict[str, Any], own: Sequence[dict[str, str]], environ: dict[str, str],
    folder: Path, begun: Callable[[], object] = lambda: None,
) -> list[str]:  # fmt: skip
    """Starts a container on each host as the kubelet does, `own` being what the controller adds to its variables."""
    processes = [start_pod(host, container, added, environ, folder) for host, added in zip(hosts, own, strict=True)]
    begun()
    outputs = [process.communicate(timeout=LIMIT_S) for process in processes]
    for process, (_, error) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, error.decode()
    text = "".join(output.decode() for output, _ in outputs)
    return sorted(line[line.index("PLACE") :] for line in text.splitlines() if "PLACE" in line)


def name_pods(hosts: Sequence[Host], names: Sequence[str]) -> None:
    """What the headless service of a job does."""
    with (hosts[0].directory / "hosts").open("a") as file:
        file.writelines(f"{host.address} {name}\n" for host, name in zip(hosts, names, strict=True))


@pytest.mark.parametrize("each", [1, 2], ids=["one-rank-a-pod", "two-ranks-a-pod"])
def test_an_indexed_job(hosts: list[Host], environ: dict[str, str], tmp_path: Path, each: int) -> None:
    name = f"job-{each}"
    _, job = load(render(tmp_path, name=name, workers=3, ranksPerWorker=each))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    own = [{"JOB_COMPLETION_INDEX": str(i)} for i in range(job["spec"]["completions"])]
    # The pods' names come when they run already.
    subdomain = job["spec"]["template"]["spec"]["subdomain"]
    names = [f"{name}-{i}.{subdomain}" for i in range(3)]
    found = run_pods(hosts, container, own, environ, tmp_path, lambda: name_pods(hosts, names))
    size = 3 * each
    total = float(size * (size + 1) // 2)
    links = "tls" if each == 1 else "shm tls"
    assert found == [f"PLACE {r} {size} {r % each} host{r // each} {total} {links}" for r in range(size)]


STAYS = """
import os
import numpy as np
import ringcore
from ringcore import elastic

ringcore.init()

def all_wish(name):
    return ringcore.allreduce(np.array([os.path.exists(name)]), op=ringcore.Min)[0]

@elastic.run
def train(state):
    open(f"size.{ringcore.size()}.{os.getpid()}", "w").close()
    while not all_wish("stop"):
        gradient = 2 * (state.weight - 3)  # of the loss (weight - 3) ** 2, the same on each rank
        state.weight = state.weight - 0.001 * ringcore.allreduce(gradient, op=ringcore.Average)
        state.step += 1
        state.commit()
    loss = float((state.weight[0] - 3) ** 2)
    os.write(1, f"LOSS {state.step} {loss.hex()} {ringcore.size()}\\n".encode())

train(elastic.ObjectState(weight=np.zeros(1), step=0))
"""


def loss_after(steps: int) -> float:
    weight = 0.0
    for _ in range(steps):
        weight -= 0.001 * (2 * (weight - 3))
    return (weight - 3) ** 2


@pytest.mark.parametrize("kind", ["elasticJob", "elasticJobSet", "elasticRuntime"])
def test_pods_of_an_elastic_job_vanish_and_come_back(
    hosts: list[Host], start: Start, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "train.py").write_text(STAYS)
    name = kind.lower()
    documents = load(render(tmp_path, **{"indexedJob": False, kind: True}, name=name, workers=2))
    rendezvous, node = (pod["spec"]["containers"][0] for pod in pod_templates(documents))
    # A JobSet names its pods, and tells them its name, which is that of the TrainJob it was made for.
    job_set = {"elasticJobSet": f"{name}-set", "elasticRuntime": "digits"}.get(kind)
    decider_name = f"{name}-rendezvous" if job_set is None else f"{job_set}-rendezvous-0-0.{job_set}"
    own = {}
    for item in node["env"]:
        if "valueFrom" in item:
            assert item["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['jobset.sigs.k8s.io/jobset-name']"
            own[item["name"]] = str(job_set)

    def ranks(size: int) -> set[str]:
        return {path.name.rpartition(".")[2] for path in tmp_path.glob(f"size.{size}.*")}

    first, second = start(hosts[1], node, **own), start(hosts[2], node, **own)
    decider = start(hosts[0], rendezvous)
    name_pods(hosts[:1], [decider_name])
    eventually(lambda: len(ranks(2)) == 2, "both pods train")
    second.kill()  # With all that it has started, as a pod ends.
    eventually(lambda: ranks(1), "the other goes on")
    third = start(hosts[2], node, **own)
    eventually(lambda: len(ranks(2)) == 3, "another pod has joined it")
    third.terminate()
    _, error = third.communicate(timeout=LIMIT_S)
    assert third.returncode == 128 + signal.SIGTERM, error.decode()  # With 0 its index would be done.
    fourth = start(hosts[2], node, **own)
    eventually(lambda: len(ranks(2)) == 4, "and another one")
    (tmp_path / "stop").touch()
    outputs = [process.communicate(timeout=LIMIT_S) for process in (decider, first, fourth)]
    assert [process.returncode for process in (decider, first, fourth)] == [0, 0, 0], outputs
    assert ranks(1) <= ranks(2), "who was left is the same process"
    text = b"".join(output for output, _ in outputs).decode()
    found = re.findall(r"LOSS (\d+) (\S+) 2", text)
    assert len(found) == 2 and len(set(found)) == 1, text
    assert float.fromhex(found[0][1]) == loss_after(int(found[0][0])), "as if no pod had ever gone"


PLAIN = """
import os
import numpy as np
import ringcore

open(f"comes.{os.getpid()}", "w").close()
ringcore.init()
for _ in range(3):
    total = ringcore.allreduce(np.full(1000, ringcore.rank() + 1.0), op=ringcore.Sum, name="total")[0]
os.write(1, f"PLACE {ringcore.rank()} {ringcore.size()} {total}\\n".encode())
"""


@pytest.mark.parametrize(("kind", "each"), [("elasticJob", 1), ("elasticJob", 2), ("elasticJobSet", 1)])
def test_a_plain_loop_of_an_elastic_job_begins_with_all_pods(
    hosts: list[Host], start: Start, tmp_path: Path, kind: str, each: int
) -> None:
    """Nobody can join it later, so that the pod that is there first has to wait."""
    (tmp_path / "train.py").write_text(PLAIN)
    values = {"indexedJob": False, kind: True, "name": f"plain-{each}", "workers": 3, "ranksPerWorker": each}
    rendezvous, node = (pod["spec"]["containers"][0] for pod in pod_templates(load(render(tmp_path, **values))))
    job_set = f"plain-{each}-set"
    name_pods([hosts[0]] * 2, [f"plain-{each}-rendezvous", f"{job_set}-rendezvous-0-0.{job_set}"])
    pods = [start(hosts[0], rendezvous), start(hosts[1], node, JOBSET_NAME=job_set)]
    eventually(lambda: len(list(tmp_path.glob("comes.*"))) == each, "the ranks of the first pod run")
    pods += [start(hosts[i], node, JOBSET_NAME=job_set) for i in (2, 0)]
    outputs = [process.communicate(timeout=LIMIT_S) for process in pods]
    assert [process.returncode for process in pods] == [0] * 4, outputs
    size = 3 * each
    text = b"".join(output for output, _ in outputs).decode()
    total = float(size * (size + 1) // 2)
    assert sorted(re.findall(r"PLACE .*", text)) == [f"PLACE {r} {size} {total}" for r in range(size)]


def test_the_pod_that_decides_has_time_to_tell_the_others(tmp_path: Path) -> None:
    for kind in ("elasticJob", "elasticJobSet", "elasticRuntime"):
        rendezvous, _ = pod_templates(load(render(tmp_path, **{"indexedJob": False, kind: True})))
        needed_s = _supervisor._GRACE_S[signal.SIGTERM] + _supervisor._KILL_LIMIT_S + nodes._LEAVE_LIMIT_S
        assert rendezvous["spec"].get("terminationGracePeriodSeconds", 30) > needed_s


@pytest.mark.parametrize("is_told", [False, True], ids=["vanishes", "is-told-to-end"])
def test_an_elastic_job_whose_rendezvous_moves_to_another_pod_begins_anew(
    hosts: list[Host], start: Start, tmp_path: Path, is_told: bool
) -> None:
    (tmp_path / "train.py").write_text(STAYS)
    name = f"moves-{is_told}".lower()
    documents = load(render(tmp_path, indexedJob=False, elasticJob=True, name=name, workers=1))
    rendezvous, node = (pod["spec"]["containers"][0] for pod in pod_templates(documents))
    name_pods(hosts[:1], [f"{name}-rendezvous"])
    decider, pod = start(hosts[0], rendezvous), start(hosts[2], node)
    eventually(lambda: list(tmp_path.glob("size.1.*")), "it trains")
    decider.send_signal(signal.SIGTERM if is_told else signal.SIGKILL)
    _, error = pod.communicate(timeout=LIMIT_S)
    assert (b"the launcher of this job has gone" in error) is not is_told, error.decode()
    # The rules of the Job do not count the end of a pod that was lost with that which decides.
    rules = documents[-1]["spec"]["podFailurePolicy"]["rules"]
    uncounted = [c for rule in rules if "onExitCodes" in rule for c in rule["onExitCodes"]["values"]]
    assert pod.returncode == (128 + signal.SIGTERM if is_told else 1)
    assert uncounted == [128 + signal.SIGTERM]
    pod = start(hosts[2], node)  # Whose name service still knows the old pod.
    decider = start(hosts[1], rendezvous)
    table = hosts[0].directory / "hosts"
    table.write_text(table.read_text().replace(f"{hosts[0].address} {name}-", f"{hosts[1].address} {name}-"))
    eventually(lambda: len(list(tmp_path.glob("size.1.*"))) == 2, "it trains again")
    (tmp_path / "stop").touch()
    assert [process.wait(LIMIT_S) for process in (decider, pod)] == [0, 0]


def test_a_node_of_the_kubeflow_trainer(hosts: list[Host], environ: dict[str, str], tmp_path: Path) -> None:
    (runtime,) = load(render(tmp_path, indexedJob=False, runtime=True))
    (pod,) = pod_templates(runtime)
    (container,) = pod["spec"]["containers"]
    common = {"PET_NNODES": "3", "PET_MASTER_ADDR": "host0", "PET_MASTER_PORT": "29500"}
    for asked, each in (("auto", 1), ("2", 2)):
        own = [{**common, "PET_NODE_RANK": str(i), "PET_NPROC_PER_NODE": asked} for i in range(3)]
        found = run_pods(hosts, container, own, environ, tmp_path)
        assert [line.split()[1:5] for line in found] == [
            [str(r), str(3 * each), str(r % each), f"host{r // each}"] for r in range(3 * each)
        ]


def test_the_launcher_of_an_mpi_job(hosts: list[Host], environ: dict[str, str], tmp_path: Path) -> None:
    """The launcher's pod has no ranks; the workers' run sshd."""
    mpi = installed("Open MPI")
    command = [sys.executable, str(tmp_path / "train.py")]
    (job,) = load(render(tmp_path, indexedJob=False, mpiJob=True, command=command))
    launcher, worker = (pod["spec"]["containers"][0] for pod in pod_templates(job))
    assert worker["command"][0] == "/usr/sbin/sshd"
    # The operator mounts it, like the ssh keys.
    (tmp_path / "hostfile").write_text("host1 slots=1\nhost2 slots=1\n")
    launcher["command"] = [
        word.replace("/etc/mpi/hostfile", str(tmp_path / "hostfile")) for word in launcher["command"]
    ]
    root = {f"{name}_ALLOW_RUN_AS_ROOT{rest}": "1" for name in ("OMPI", "PRTE") for rest in ("", "_CONFIRM")}
    mpi_environ = {**environ, **root, "PATH": f"{mpi.programs}:{environ['PATH']}"}
    found = run_pods(hosts[:1], launcher, [{}], mpi_environ, tmp_path)
    assert found == ["PLACE 0 2 0 host1 3.0 tls", "PLACE 1 2 0 host2 3.0 tls"]
