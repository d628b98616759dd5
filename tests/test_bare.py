"""./nox on a machine that lacks everything: it says so at once, and starts nothing."""

import ast
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = {
    thing: needed_by.split()
    for thing, _, needed_by in (
        line.split(maxsplit=2)
        for line in (ROOT / "tools" / "system-packages.txt").read_text().splitlines()
        if not line.startswith("#")
    )
}


def bare(folder: Path) -> dict[str, str]:
    """A repository's entry, and a PATH that has what every system has; returns the variables."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("sh", "dirname", "ls"):
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "id").write_text("#!/bin/sh\necho 1000\n")
    (programs / "id").chmod(0o755)
    (folder / "tools").mkdir()
    shutil.copy(ROOT / "nox", folder)
    shutil.copy(ROOT / "tools" / "system-packages.txt", folder / "tools")
    return {**os.environ, "PATH": str(programs)}


def test_all_that_is_missing_is_named_at_once_before_anything_starts(tmp_path: Path) -> None:
    environ = bare(tmp_path)
    done = subprocess.run(
        [str(tmp_path / "nox"), "-s", "environment(torch)", "cluster"],
        env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    missing, remedy = done.stderr.splitlines()
    assert missing == "missing: python3 ensurepip Python.h g++ java"
    assert remedy.endswith(
        "sudo apt-get install -y --no-install-recommends python3 python3-venv python3-dev g++ default-jre-headless"
    )
    assert not (tmp_path / "build").exists()


def test_what_a_session_asks_for_is_in_the_table() -> None:
    asked = {}
    for function in ast.parse((ROOT / "noxfile.py").read_text()).body:
        if isinstance(function, ast.FunctionDef):
            asked[function.name] = {
                str(argument.value)
                for call in ast.walk(function)
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "require_system"
                for argument in call.args[1:]
                if isinstance(argument, ast.Constant)
            }
    assert asked["tests"]
    del asked["environment"]  # what a framework needs stands at the sessions that need the framework
    for session, things in asked.items():
        for thing in things:
            assert {session, "all"} & {*TABLE[thing]}, f"the table does not say that {session} needs {thing}"
