"""The command `ringcore`: its version, mistyped commands, the demonstration."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import ringcore
from ringcore.commands import cli, demo
from support.processes import clean_environ


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ringcore {ringcore.__version__}\n"


@pytest.mark.parametrize(("word", "meant"), [("docter", "doctor"), ("migrat", "migrate"), ("evn", "env")])
def test_a_mistyped_command_is_recognized(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word]) == 2
    assert f"there is no command '{word}'; did you mean '{meant}'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [(["env"], ""), (["env"], "1"), (["explain"], ""), (["--help"], "1"), (["timeline", "--help"], "")],
)
def test_a_reader_that_has_read_enough_is_no_error(words: list[str], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # As `head` does when it has its lines.
    with open(writing, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "ringcore", *words], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120,
            check=False, env=clean_environ() | {"PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")


def test_a_broken_pipe_of_another_kind_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_elsewhere(_argv: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("ringcore.commands.explain.main", write_elsewhere)
    with pytest.raises(BrokenPipeError):
        cli.main(["explain"])


@pytest.mark.parametrize("name", ["mismatch", "Mismatch", "MismatchError", "ringcore.MismatchError"])
def test_an_error_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", name]) == 0
    said = capsys.readouterr().out
    assert "everything goes on working" in said
    assert "A tensor has another dtype on one rank. Convert the tensor to one dtype on all ranks." in " ".join(
        said.split()
    )


def test_the_mistake_behind_an_error_is_found_by_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "mismatch", "another", "dtype"]) == 0
    said = capsys.readouterr().out
    assert "np.float64 if ring.rank() == 1 else np.float32" in said
    assert "process set" not in said


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["mismach"], "there is no error 'mismach'; did you mean 'mismatch'?"),
        (["Unicorn"], "there is no error 'Unicorn': there is NotInitializedError, InvalidArgument"),
        (["mismatch", "unicorn"], "no mistake there has the words 'unicorn'"),
    ],
)
def test_what_cannot_be_explained_is_said(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *words]) == 2
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize("error", sorted(name for name in dir(ringcore) if name.endswith(("Error", "Argument"))))
def test_every_error_is_explained(error: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (error, getattr(ringcore, error).section):  # by its name, and as its traceback says
        assert cli.main(["explain", words]) == 0
        said = capsys.readouterr().out
        assert error in said and "<!--" not in said


def test_what_a_job_from_python_raises_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "RankError"]) == 0
    assert "the function failed on a rank" in " ".join(capsys.readouterr().out.split())


def test_the_demonstration_asks_for_numpy_where_it_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert demo.main([]) == 1
    assert "pip install numpy" in capsys.readouterr().err


def test_the_demonstration_shows_a_sum_and_the_timeline_of_two_ranks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ringcore", "demo"], capture_output=True, text=True, timeout=120, check=False,
        env=clean_environ(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the sum on both is [3. 6. 9.]" in done.stdout
    bars = [line for line in done.stdout.splitlines() if line.startswith(("rank 0 |", "rank 1 |"))]
    assert [bar.count("|") for bar in bars] == [2, 2]
    assert all("#" in bar for bar in bars)


def test_the_picture_has_a_mark_where_a_rank_communicates() -> None:
    events = [
        {"cat": "operation", "pid": 0, "ts": 0.0, "dur": 100.0},
        {"cat": "step", "pid": 0, "ts": 300.0, "dur": 100.0},
        {"cat": "operation", "pid": 1, "ts": 590.0, "dur": 10.0},
    ]
    _, first, second = demo.picture(events)
    assert first == "rank 0 |" + "#" * 10 + "." * 50 + "|"
    assert second.endswith((".##|", "..#|"))
