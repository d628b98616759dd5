"""Every block of code in the documentation is run, or says why not.

A block of Python whose first line names it ("# train.py") is a file, and the page's commands run in its folder. The
others are run on two ranks in the page's order, behind what `scenery/PAGE.py` has: what the page leaves to its reader.
All of a framework share one start of ranks. Each framework's blocks run in its own environment. Where a page shows only
parts of a script, the options of the command that starts it are looked at.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomllib
from ringcore.commands import cli
from ringcore.launcher import _options
from support import pages, ranks
from support.pages import Block

SCENERY = Path(__file__).parent / "scenery"
# Pages with tests of their own, which run their blocks.
ELSEWHERE = {
    "errors": "tests/mistakes/test_mistakes.py", "timeline": "tests/test_timeline_page.py",
    "memory": "tests/test_memory_page.py",
}  # fmt: skip
# Adapter -> the environment that its blocks run in; numpy is in all of them.
ENVIRONMENTS = {
    "torch": "torch", "lightning": "torch", "horovod": "torch", "numpy": "torch", "tensorflow": "tensorflow",
    "keras": "tensorflow", "jax": "jax", "mxnet": "mxnet", "spark": "spark", "ray": "ray", "dask": "dask",
}  # fmt: skip
CLUSTERS = ("spark", "ray", "dask")  # which start the ranks themselves
MODULES = {"spark": "pyspark", "ray": "ray", "dask": "distributed", "tensorflow": "tensorflow", "jax": "jax"}
HERE = next((name for name, module in MODULES.items() if importlib.util.find_spec(module)), None) or (
    "mxnet" if importlib.util.find_spec("mxnet") else "torch"
)
PAGES = [page for page in (*pages.PAGES, *pages.READMES[1:]) if page.stem not in ELSEWHERE]
PROJECTS = [tomllib.loads(path.read_text())["project"] for path in pages.ROOT.glob("packages/*/pyproject.toml")]
LANGUAGES = {"python", "sh", "c", "diff", "toml", "json", "yaml", "text", "ini"}
# Pages whose commands start PyTorch many times.
MANY_STARTS = {
    "checkpoints", "elastic", "first-job", "from-ddp", "from-horovod", "notebooks", "performance", "process-sets",
    "simulation", "torch-distributed", "uneven-data", "virtual-ranks",
}  # fmt: skip
PARSED = ("pip", "nox")  # commands that are looked at, and not run


def name_of(page: Path) -> str:
    return page.stem if page.parent == pages.DOCS else f"readme-{page.parent.name}"


def of_adapter(page: Path) -> list[tuple[str, Block]]:
    """The blocks with the adapter that each is for: the one that it, or the nearest before it, names."""
    adapter, found = "numpy", []
    for block in pages.blocks(page):
        named = [word for word in re.findall(r"\bringcore[_-](\w+)", block.text) if word in ENVIRONMENTS]
        if named and adapter not in CLUSTERS:  # which run functions that import others
            adapter = named[0]
        elif re.search(r"^import ringcore\b", block.text, re.MULTILINE):
            adapter = "numpy"
        found.append((adapter, block))
    return found


def commands_of(page: Path) -> Iterator[tuple[str, str, dict[str, str], Block]]:
    """Each command: the environment, the line, the files that are there, and its block."""
    blocks = of_adapter(page)
    files = {block.file: (block.text, adapter) for adapter, block in reversed(blocks) if block.file}
    for adapter, block in blocks:
        if block.file:
            files[block.file] = (block.text, adapter)
        if block.language == "sh":
            for line in filter(None, (line.partition(" #")[0].strip() for line in joined(block.text).splitlines())):
                named = next((files[name][1] for name in re.findall(r"[\w-]+\.py", line) if name in files), adapter)
                yield ENVIRONMENTS[named], line, {name: text for name, (text, _) in files.items()}, block


def joined(text: str) -> str:
    return text.replace("\\\n", " ")


def snippets_of(page: Path) -> list[Block]:
    return [
        block
        for adapter, block in of_adapter(page)
        if block.language == "python" and not block.file and not block.reason and ENVIRONMENTS[adapter] == HERE
    ]


def run_snippets(jobs: list) -> dict:
    import os
    import time
    import traceback

    import ringcore

    here = Path.cwd()
    found = {}
    for page, scenery, snippets in jobs:
        began = time.monotonic()
        scope = {"__name__": "__main__"}
        os.chdir(Path(snippets[0][1]).parent)
        try:
            for line, file in [*([[0, scenery]] if scenery else []), *snippets]:
                found[f"{page}:{line}"] = "did not come to its end"
                exec(compile(Path(file).read_text(), file, "exec"), scope)
                found[f"{page}:{line}"] = ""
            scope.get("leave", int)()
        except BaseException:
            found[f"{page}:{line}"] = traceback.format_exc()
        ringcore.shutdown()
        print(page, time.monotonic() - began, "s", flush=True)
    os.chdir(here)
    return found


WITH_SNIPPETS = [page for page in PAGES if snippets_of(page)]
WITH_COMMANDS = [
    pytest.param(page, marks=pytest.mark.long) if page.stem in MANY_STARTS else page
    for page in PAGES
    if any(environment == HERE for environment, *_ in commands_of(page))
]


def scenery_of(page: Path) -> str:
    """The file that runs before a page's snippets; a distribution's page has that of its guide, or its own."""
    names = (name_of(page), name_of(page).removeprefix("readme-"))
    found = (SCENERY / f"{name.replace('-', '_')}.py" for name in names)
    return next((str(path) for path in found if path.exists()), "")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each snippet raised on each rank."""
    folder = tmp_path_factory.mktemp("snippets")
    jobs = []
    for page in WITH_SNIPPETS:
        place = folder / name_of(page)
        place.mkdir()
        snippets = []
        for block in snippets_of(page):
            path = place / f"{name_of(page).replace('-', '_')}_{block.line}.py"
            path.write_text(block.text)
            snippets.append([block.line, str(path)])
        jobs.append([name_of(page), scenery_of(page), snippets])
    variables = {"RINGCORE_TIMEOUT_S": "60", "KERAS_BACKEND": HERE, "JAX_PLATFORMS": "cpu"}
    variables["RINGCORE_START_TIMEOUT_S"] = "120"  # frameworks take their time to be imported on a busy machine
    return ranks.run(run_snippets, 1 if HERE in CLUSTERS else 2, folder, jobs, env=variables, limit_s=500)


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=name_of)
def test_its_python_runs_on_ranks(page: Path, outcome: list[Any]) -> None:
    for found in outcome:
        for block in snippets_of(page):
            said = found.get(f"{name_of(page)}:{block.line}", found.get(f"{name_of(page)}:0"))
            assert said == "", f"line {block.line} of {page.name}: {said}"


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_its_commands_run(page: Path, tmp_path: Path) -> None:
    environ = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
        "KERAS_BACKEND": HERE, "JAX_PLATFORMS": "cpu", "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "RINGCORE_START_TIMEOUT_S": "120",
    }  # fmt: skip
    written: dict[str, str] = {}
    for environment, line, files, block in commands_of(page):
        if environment != HERE:
            continue
        for name, text in files.items():
            if written.get(name) != text:  # else it is what an earlier command has made of it
                (tmp_path / name).write_text(text)
        written = files
        shown_in_parts = any(name not in files for name in re.findall(r"\bpython ([\w-]+\.py)", line))
        if block.reason or shown_in_parts or line.split()[0] in PARSED:
            check_without_running(line)
            continue
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{page.name}: {line}\n{done.stdout}\n{done.stderr}"


def check_without_running(line: str) -> None:
    """What can be said of a command without its cluster, or the package index."""
    words = shlex.split(line.removesuffix("&"))
    if words[0] == "ringrun":
        _options.parse(words[1:], {})
    elif words[0] == "ringcore":
        assert words[1] in cli.COMMANDS, line
    elif words[:2] == ["pip", "install"]:
        extras = {project["name"]: project.get("optional-dependencies", {}) for project in PROJECTS}
        for word in (word for word in words[2:] if word.startswith("ringcore")):
            name, _, extra = word.rstrip("]").partition("[")
            assert name in extras, line
            assert not extra or set(extra.split(",")) <= set(extras[name]), line
    elif words[0] == "nox":
        sessions = re.findall(r"^def (\w+)\(session: nox\.Session", (pages.ROOT / "noxfile.py").read_text(), re.M)
        named = [word for word in words[2 : words.index("--") if "--" in words else None] if word[0] != "-"]
        assert set(named) <= set(sessions), line


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_its_blocks_are_of_a_language_that_is_run(page: Path) -> None:
    for block in pages.blocks(page):
        assert block.language in LANGUAGES or block.language.startswith("{"), f"{page.name}:{block.line}"
        if block.language == "python":
            compile(block.text, f"{page.name}:{block.line}", "exec")
    assert not re.search(
        r"(?:^|\n)\n {4}\S", re.sub(r"^ *[-*|\d].*(?:\n(?: {2,}.*)?)*", "", pages.prose(page), flags=re.M)
    )


def test_few_blocks_are_not_run_and_all_of_them_say_why() -> None:
    left = [block for page in PAGES for block in pages.blocks(page) if block.reason]
    assert not [f"{b.page.name}:{b.line}: {b.reason}" for b in left if not re.match(r"needs \w", b.reason)]
    assert len(left) <= 30, [f"{block.page.name}:{block.line}" for block in left]


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_the_others_have_tests_of_their_own(page: str, test: str) -> None:
    assert page in (pages.ROOT / test).read_text()
