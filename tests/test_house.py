"""What the parts of the repository say of each other agrees."""

import ast
import importlib
import re
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
import ringcore

ROOT = Path(__file__).parent.parent
PACKAGES = sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))
ADAPTERS = [package.name for package in PACKAGES if package.name != "core"]


def test_the_core_is_one_wheel_for_all_pythons_and_needs_only_the_backend() -> None:
    core = distribution("ringcore")
    assert "Tag: cp310-abi3-linux" in (core.read_text("WHEEL") or "")
    assert [name for name in core.requires or [] if "extra ==" not in name] == ["nanobind-backend>=1.0"]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_has_the_version_of_the_core_and_pins_it(adapter: str) -> None:
    # Not as installed: this runs beside one framework.
    (wheel,) = (ROOT / "dist").glob(f"ringcore_{adapter}-{ringcore.__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"ringcore_{adapter}-{ringcore.__version__}.dist-info/METADATA").decode()
    assert f"Version: {ringcore.__version__}\n" in metadata
    assert f"Requires-Dist: ringcore=={ringcore.__version__}\n" in metadata


def test_everything_has_one_version_and_pins_the_others_to_it() -> None:
    for package in PACKAGES:
        text = (package / "pyproject.toml").read_text()
        versions = re.findall(r'^version = "(.+)"$', text, re.MULTILINE)
        assert versions == ([] if package.name == "core" else [ringcore.__version__]), package.name
        pins = re.findall(r'"ringcore[\w-]*(.*?)"', text.partition("[project]")[2].partition("[project.entry")[0])
        assert {pin for pin in pins if pin.startswith("=")} <= {f"=={ringcore.__version__}"}, package.name
        assert package.name == "core" or f'"ringcore=={ringcore.__version__}"' in text, package.name


def test_the_source_distribution_of_the_core_has_the_whole_engine() -> None:
    with tarfile.open(ROOT / "dist" / f"ringcore-{ringcore.__version__}.tar.gz") as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    sources = [path for path in (ROOT / "native").rglob("*.[ch]pp") if "tests" not in path.parts[len(ROOT.parts) :]]
    engine = {str(path.relative_to(ROOT)) for path in sources}
    assert engine
    assert engine | {"native/CMakeLists.txt", "LICENSE"} <= names


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_package_carries_the_licence_and_its_types(package: Path) -> None:
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert len(list(package.glob("src/*/py.typed"))) == 1


PICKLERS = ("pickle", "cloudpickle", "dill", "joblib")


def unpickles(node: ast.AST) -> bool:
    """Whether it is a call that reads a pickle: `pickle.loads(data)`, `dill.load(file)`, `torch.load(file)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    module, name = getattr(node.func.value, "id", ""), node.func.attr
    given = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
    if (module, name) == ("torch", "load"):
        return given.get("weights_only") is not True
    if module in ("np", "numpy"):
        return name == "load" and given.get("allow_pickle") is True
    return module in PICKLERS and name in ("load", "loads", "Unpickler")


def test_one_place_unpickles() -> None:
    found = []
    for file in sorted((ROOT / "packages").glob("*/src/**/*.py")):
        tree = ast.parse(file.read_text())
        places = sum(unpickles(node) for node in ast.walk(tree))
        # By another name it would not be found.
        places += sum(isinstance(node, ast.ImportFrom) and node.module in PICKLERS for node in ast.walk(tree))
        found += [str(file.relative_to(ROOT))] * places
    assert found == ["packages/core/src/ringcore/_objects.py"]


def test_the_hooks_have_the_pins_of_the_sessions() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    groups = (ROOT / "pyproject.toml").read_text()
    pins = set(re.findall(r'additional_dependencies: \["(.+)"\]', hooks))
    assert len(pins) == 2
    for pin in pins:
        assert f'"{pin}"' in groups


def test_the_mistakes_to_plant_are_about_code_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "native" / "tests")
    mutants = importlib.import_module("mutants")
    for mutant in mutants.MUTANTS:
        assert (mutants.NATIVE / mutant.file).read_text().count(mutant.right) == 1, mutant.name


def test_every_decision_fits_a_page_and_has_its_three_parts() -> None:
    decisions = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [path.name[:4] for path in decisions] == [f"{number:04}" for number in range(1, len(decisions) + 1)]
    for path in decisions:
        text = path.read_text()
        assert text.count("\n") <= 60, path.name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], path.name
