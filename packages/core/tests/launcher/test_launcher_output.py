"""What the user sees of the ranks' output: lines, prefixes, colours, log files."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import RINGRUN, Pids, Ringrun, eventually, is_alive

Script = Callable[..., str]
BOTH = "print('out', rank)\nprint('err', rank, file=sys.stderr)"


def run_on_terminal(ringrun: Ringrun, *words: str, **environ: str) -> bytes:
    """Runs ringrun with a terminal as its standard output and error."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*RINGRUN, *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=ringrun.directory,
        env={**ringrun.environ, "TERM": "xterm", **environ},
    ) as process:
        os.close(theirs)
        pieces = []
        while True:
            try:
                pieces.append(os.read(ours, 65536))
            except OSError:  # EIO: the other side is closed.
                break
        assert process.wait(30) == 0
    os.close(ours)
    return b"".join(pieces)


def test_each_line_has_its_rank_and_goes_to_its_stream(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "3", script(BOTH))
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout> out {rank}" for rank in range(3)]
    assert sorted(done.stderr.splitlines()) == [f"[{rank}]<stderr> err {rank}" for rank in range(3)]


def test_lines_of_ranks_are_never_mixed(ringrun: Ringrun, script: Script) -> None:
    name = script(
        """
        for i in range(2000):
            os.write(1, b"%d" % rank * 40)
            os.write(1, b"%d" % rank * 41 + b"\\n")
        """
    )
    lines = ringrun("-np", "3", name).stdout.splitlines()
    assert sorted(lines) == sorted(f"[{rank}]<stdout> " + str(rank) * 81 for rank in range(3) for _ in range(2000))


def test_a_last_line_without_an_end_is_shown_at_exit(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "2", script("sys.stdout.write(f'unfinished {rank}')"))
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout> unfinished 0", "[1]<stdout> unfinished 1"]
    assert done.stdout.endswith("\n")


def test_any_bytes_pass(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "1", script("os.write(1, bytes(range(256)) * 3 + b'\\n')"), text=False)
    expected = (bytes(range(256)) * 3 + b"\n").replace(b"\n", b"\n[0]<stdout> ")
    assert done.stdout == b"[0]<stdout> " + expected.removesuffix(b"[0]<stdout> ")


def test_a_line_longer_than_any_buffer_arrives_whole(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "1", script("print('a' * 900_000)"))
    assert done.stdout == "[0]<stdout> " + "a" * 900_000 + "\n"


def test_everything_arrives_that_a_rank_wrote_before_it_ended(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    # The launcher is stopped until the rank has filled a large pipe and is gone.
    name = script(
        """
        import fcntl
        fcntl.fcntl(1, 1031, 1 << 20)  # F_SETPIPE_SZ
        os.kill(os.getppid(), signal.SIGSTOP)
        os.write(1, (b"x" * 99 + b"\\n") * 9_000 + b"last\\n")
        write_pid(rank)
        os._exit(0)
        """
    )
    with ringrun.started("-np", "1", name) as process:
        (rank,) = pids.wait(1).values()
        eventually(lambda: not is_alive(rank), "the rank has ended")
        process.send_signal(signal.SIGCONT)
        stdout, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert stdout.endswith("[0]<stdout> last\n") and stdout.count("\n") == 9_001


def test_colours_on_a_terminal_only(ringrun: Ringrun, script: Script) -> None:
    name = script(BOTH)
    assert "\x1b" not in ringrun("-np", "2", name).stdout
    shown = run_on_terminal(ringrun, "-np", "2", name)
    coloured = re.findall(rb"\x1b\[(\d+)m\[(\d)\]<std(?:out|err)>\x1b\[0m", shown)
    assert len(coloured) == 4
    assert len({colour for colour, _ in coloured}) == 2


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_if_the_user_wants_none(ringrun: Ringrun, script: Script, environ: dict[str, str]) -> None:
    shown = run_on_terminal(ringrun, "-np", "2", script(BOTH), **environ)
    assert b"\x1b" not in shown and b"[1]<stderr> err 1" in shown


def test_progress_bars_overwrite_themselves_on_a_terminal(ringrun: Ringrun, script: Script) -> None:
    name = script("os.write(2, b'10%\\r'); os.write(2, b'20%\\r100%\\n')")
    shown = run_on_terminal(ringrun, "-np", "1", name, NO_COLOR="1")
    prefix = b"[0]<stderr> "
    assert shown == prefix + b"10%\r\r\x1b[K" + prefix + b"20%\r\r\x1b[K" + prefix + b"100%\r\n"
    assert ringrun("-np", "1", name, text=False).stderr == prefix + b"10%\r20%\r100%\n"


def test_time_stamps(ringrun: Ringrun, script: Script) -> None:
    for word in ("--prefix-timestamp", "-prefix-timestamp", "--prefix-output-with-timestamp"):
        done = ringrun("-np", "1", word, script("print('x')"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[0\]<stdout> x\n", done.stdout)


@pytest.mark.parametrize("word", ["--log-dir", "--output-filename", "--log_dir"])
def test_log_files_hold_the_raw_output_of_each_rank(ringrun: Ringrun, script: Script, word: str) -> None:
    done = ringrun("-np", "2", word, "logs/deep", script(BOTH + "\nsys.stdout.write('end')"))
    assert "[0]<stdout> out 0\n" in done.stdout
    for rank in range(2):
        folder = ringrun.directory / "logs" / "deep" / f"rank.{rank}"
        assert (folder / "stdout").read_text() == f"out {rank}\nend"
        assert (folder / "stderr").read_text() == f"err {rank}\n"


@pytest.mark.parametrize(
    ("words", "out", "err"),
    [
        (["--tee", "3"], {0, 1}, {0, 1}),
        (["--tee", "1"], {0, 1}, set()),
        (["--tee", "0"], set(), set()),
        (["-t", "0:2,1:1"], {1}, {0}),
        (["--redirects", "1"], set(), {0, 1}),
        (["-r", "0:3"], {1}, {1}),
    ],
)
def test_tee_and_redirects(ringrun: Ringrun, script: Script, words: list[str], out: set[int], err: set[int]) -> None:
    done = ringrun("-np", "2", "--log-dir", "logs", *words, script(BOTH))
    assert {int(line[1]) for line in done.stdout.splitlines()} == out
    assert {int(line[1]) for line in done.stderr.splitlines()} == err
    assert all((ringrun.directory / "logs" / f"rank.{rank}" / "stderr").read_text() for rank in range(2))


def test_tee_without_log_files_is_refused(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "2", "--tee", "3", script("pass"))
    assert done.returncode == 2 and "--log-dir" in done.stderr


def test_local_ranks_filter(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "3", "--local-ranks-filter", "0,2", script(BOTH))
    assert {line[:3] for line in done.stdout.splitlines()} == {"[0]", "[2]"}


def test_a_log_directory_that_cannot_be_written_is_found_before_the_start(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "2", "--log-dir", "/proc/none", script("write_pid(rank)"))
    assert done.returncode == 2 and "/proc/none" in done.stderr
    assert not list(ringrun.directory.glob("pid.*"))


def test_the_summary_names_the_log_file(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "2", "--log-dir", "logs", script("if rank: raise ValueError('x')\ntime.sleep(600)"))
    assert "logs/rank.1/stderr" in done.stderr
    assert "ValueError: x" in Path(ringrun.directory, "logs", "rank.1", "stderr").read_text()


def test_output_comes_while_the_ranks_run(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    with ringrun.started("-np", "1", script("print('now')\nwrite_pid(rank)\ntime.sleep(600)")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[0]<stdout> now\n"
        pids.wait(1)


def test_rank_0_reads_standard_input_and_the_others_none(ringrun: Ringrun, script: Script) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"typed\n")
    os.close(theirs)
    done = ringrun("-np", "2", script("print(repr(sys.stdin.read()))"), stdin=ours)
    os.close(ours)
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout> 'typed\\n'", "[1]<stdout> ''"]
