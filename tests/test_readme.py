"""What the README says is true: its code runs, its commands and links exist."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]


def block_of(language: str) -> str:
    (text,) = (text for name, text in BLOCKS if name == language)
    return text


def side_of(diff: str, sign: str) -> str:
    """One side of a diff: the lines of context, and those that begin with `sign`."""
    return "".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] in (" ", sign))


# What a reader cannot see: whether the ranks took different data, and whether they end with equal weights.
WITNESS = """
import hashlib
for value in (batches[0][0], model.weight):
    print(hashlib.sha256(value.detach().numpy()).hexdigest())
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_it_fits_and_shows_the_essential_first() -> None:
    lines = README.splitlines()
    assert len(lines) <= 100
    beginning = "\n".join(lines[:10])
    assert "pip install ringcore-torch" in beginning
    assert "ringrun -np 2 python train.py" in beginning
    assert "```diff" in beginning


def test_the_script_ran_before_the_change(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(side_of(block_of("diff"), "-"))
    done = run(sys.executable, str(script))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^loss 0\.\d{4}$", done.stdout, re.MULTILINE), done.stdout


def test_the_changed_script_trains_on_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(side_of(block_of("diff"), "+") + WITNESS)
    (command,) = (line for line in COMMANDS if line.startswith("ringrun"))
    done = run(*shlex.split(command.replace("train.py", str(script))))
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"loss 0\.\d{4}", done.stdout)) == 2, done.stdout
    digests = re.findall(r"\b[0-9a-f]{64}\b", done.stdout)
    assert len(digests) == 4, done.stdout
    assert len(set(digests)) == 3, f"expected two different batches and one set of weights: {done.stdout}"


@pytest.mark.parametrize("command", [command for command in COMMANDS if "nox -s" in command])
def test_its_sessions_exist(command: str) -> None:
    sessions = re.findall(r"^def (\w+)\(session: nox\.Session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    assert re.search(r"nox -s (\w+)$", command)[1] in sessions


def test_it_has_the_two_commands() -> None:
    assert "./nox -s demo" in COMMANDS
    assert "./nox -s tests" in COMMANDS


@pytest.mark.long  # session `demo` is it
def test_its_demonstration_draws_the_loss_over_time_beside_that_of_another_run(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "torch" / "digits.py")
    for ranks, beside in ((1, []), (2, [f"--beside={tmp_path / '1' / 'result.json'}"])):
        options = ["--epochs=1", f"--output={tmp_path / str(ranks)}", *beside]
        done = run("env", "OMP_NUM_THREADS=1", "ringrun", f"-np={ranks}", script, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads((tmp_path / str(ranks) / "result.json").read_text())
        assert result["ranks"] == ranks
        assert len(result["seconds"]) == len(result["losses"]) == 1437 // (32 * ranks)
        assert result["seconds"] == sorted(result["seconds"])
        assert (tmp_path / str(ranks) / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_its_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
