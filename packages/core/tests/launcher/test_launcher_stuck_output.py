"""A reader that does not read, and a disk that takes nothing, hold up the ranks' writing and nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from ringcore.launcher._frames import Kind
from ringcore.launcher._loop import Loop
from ringcore.launcher._output import Output, OutputOptions
from support.processes import RINGRUN, Pids, Ringrun, eventually, is_alive

Script = Callable[..., str]
# Every rank prints without end, and says how far it has come: who does not come on waits in its write.
FLOOD = """
write_pid(rank)
line = b"x" * 999 + b"\\n"
count = 0
while True:
    count += os.write(1, line)
    os.pwrite(progress, b"%d" % count, 0)
"""
PROGRESS = 'progress = os.open(f"progress.{rank}", os.O_CREAT | os.O_WRONLY)\n'


def await_stuck(ringrun: Ringrun, *ranks: int) -> None:
    """Wait until ranks that flood wait in their writes."""

    def written() -> list[int]:
        return [int((ringrun.directory / f"progress.{rank}").read_text() or 0) for rank in ranks]

    def stands() -> bool:
        before = written()
        # A waiting writer has the same count when another process had time for everything else.
        subprocess.run(["sleep", "0.2"], check=True, timeout=60)
        return min(before) > 0 and before == written()

    eventually(lambda: all((ringrun.directory / f"progress.{rank}").exists() for rank in ranks), "the ranks print")
    eventually(stands, "the ranks wait in their writes")


def test_a_signal_ends_a_job_whose_output_nobody_reads(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with ringrun.started("-np", "2", script(PROGRESS + FLOOD)) as process:
            ranks = pids.wait(2)
            await_stuck(ringrun, 0, 1)
            process.send_signal(number)
            assert process.wait(60) == 128 + number
        assert not any(map(is_alive, ranks.values()))
        for path in ringrun.directory.glob("p*.[01]"):
            path.unlink()


def test_a_death_is_seen_while_nobody_reads_and_no_line_is_lost(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = script(
        PROGRESS
        + """
write_pid(rank)
if rank == 1:
    while not os.path.exists("go"): time.sleep(0.01)
    sys.exit(7)
"""
        + FLOOD
    )
    with ringrun.started("-np", "2", name) as process:
        ranks = pids.wait(2)
        await_stuck(ringrun, 0)
        (ringrun.directory / "go").touch()
        eventually(lambda: not any(map(is_alive, ranks.values())), "both ranks have ended")
        # Standard error is read by somebody: they are told at once.
        assert process.stderr is not None and process.stdout is not None
        assert "rank 1 of 2" in process.stderr.readline()
        assert process.poll() is None, "what was printed waits for its reader"
        lines = process.stdout.read().splitlines()
        assert process.wait(60) == 7
    assert set(lines) == {"[0]<stdout> " + "x" * 999}
    # It was ended in a write, or before it said so.
    told = int((ringrun.directory / "progress.0").read_text())
    assert len(lines) * 1000 in (told, told + 1000)


def test_everything_arrives_once_the_reader_reads_again(ringrun: Ringrun, script: Script) -> None:
    name = script(
        PROGRESS
        + """
for number in range(30_000):
    os.write(1, b"%d " % number + b"x" * 500 + b"\\n")
    os.pwrite(progress, b"%d" % (number * 500), 0)
"""
    )
    with ringrun.started("-np", "1", name) as process:
        await_stuck(ringrun, 0)
        stdout, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert [int(line.split()[1]) for line in stdout.splitlines()] == list(range(30_000))


def test_standard_error_flows_while_standard_output_is_stuck(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = script("print('heard', file=sys.stderr)\n" + PROGRESS + FLOOD)
    with ringrun.started("-np", "2", name) as process:
        await_stuck(ringrun, 0, 1)
        assert process.stderr is not None
        assert sorted(process.stderr.readline() for _ in (0, 1)) == [f"[{n}]<stderr> heard\n" for n in (0, 1)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143


@contextmanager
def stopped_terminal() -> Iterator[int]:
    """A terminal on which somebody has pressed Ctrl-S."""
    ours, theirs = os.openpty()
    termios.tcflow(theirs, termios.TCOOFF)
    yield theirs
    os.close(ours)
    os.close(theirs)


def test_a_stopped_terminal_stops_nothing_else(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    with stopped_terminal() as terminal:
        options = {"stdout": terminal, "stderr": terminal}
        with ringrun.started("-np", "2", script(PROGRESS + FLOOD), **options) as process:
            ranks = pids.wait(2)
            await_stuck(ringrun, 0, 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
    assert not any(map(is_alive, ranks.values()))


@pytest.mark.parametrize("also_errors", [False, True])
def test_a_full_disk_ends_no_rank_and_the_exit_code_tells(ringrun: Ringrun, script: Script, also_errors: bool) -> None:
    name = script("print('lost')\ntime.sleep(0.3)\nprint('lost too')\nopen(f'done.{rank}', 'w').close()")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*RINGRUN, "-np", "2", name],
            stdin=subprocess.DEVNULL, stdout=full, stderr=full if also_errors else subprocess.PIPE,
            cwd=ringrun.directory, env=ringrun.environ, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert len(list(ringrun.directory.glob("done.*"))) == 2
    if not also_errors:
        first, last = done.stderr.splitlines()
        assert first == "ringrun: standard output ends here: No space left on device"
        why = "standard output could not be written: No space left on device"
        assert last == f"ringrun: all ranks ended well; the exit code is 1 as {why}"


def test_a_failed_ranks_exit_code_comes_before_that_of_a_full_disk(ringrun: Ringrun, script: Script) -> None:
    name = script("print('lost')\nsys.exit(7 * rank)")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*RINGRUN, "-np", "2", name], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
            cwd=ringrun.directory, env=ringrun.environ, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 7
    assert "ringrun: standard output ends here: No space left on device" in done.stderr


def test_a_log_file_that_cannot_be_written_is_told(ringrun: Ringrun, script: Script) -> None:
    folder = ringrun.directory / "logs" / "rank.0"
    folder.mkdir(parents=True)
    (folder / "stdout").symlink_to("/dev/full")
    done = ringrun("-np", "1", "--log-dir", "logs", script("print('shown')"))
    assert (done.returncode, done.stdout) == (1, "[0]<stdout> shown\n")
    assert "ringrun: rank 0's log file ends here: No space left on device" in done.stderr


@contextmanager
def standard_streams(tmp_path: Path) -> Iterator[int]:
    """This process's standard output is a pipe, its standard error a file; the pipe's other end."""
    saved = os.dup(1), os.dup(2)
    read_fd, write_fd = os.pipe()
    error_fd = os.open(tmp_path / "stderr", os.O_CREAT | os.O_WRONLY)
    os.dup2(write_fd, 1)
    os.dup2(error_fd, 2)
    os.close(write_fd)
    try:
        yield read_fd
    finally:
        for number, fd in enumerate(saved, 1):
            os.dup2(fd, number)
            os.close(fd)
        os.close(error_fd)


def test_while_a_job_ends_what_is_too_much_is_dropped_with_a_count(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with capfd.disabled(), standard_streams(tmp_path) as reader:
        loop = Loop()
        held: list[frozenset[Kind]] = []
        output = Output(loop, OutputOptions(), {})
        output.on_hold = held.append
        line = b"x" * 999 + b"\n"
        fed = 26_000
        while not held:
            output.feed(0, Kind.STDOUT, line)
            fed += 1
        assert held == [frozenset({Kind.STDOUT})]
        output.hurry()
        assert held[1:] == [frozenset()]
        for _ in range(13_000):
            output.feed(0, Kind.STDOUT, line * 2)
        received = bytearray()
        os.set_blocking(reader, False)

        def read() -> None:
            received.extend(os.read(reader, 65536))

        loop.on_readable(reader, read)
        while b"missing" not in received or not output.idle:
            loop.run_once()
        loop.forget(reader)
        os.close(reader)
    *lines, said = bytes(received).splitlines()
    assert set(lines) == {b"[0]<stdout> " + b"x" * 999}
    dropped_bytes = int(re.fullmatch(rb"ringrun: (\d+) bytes are missing here: nobody read them", said)[1])
    assert len(lines) * 1012 + dropped_bytes == fed * 1012


def test_what_was_dropped_is_told_where_all_is_written_before_anybody_looks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    received = bytearray()

    def read_all(reader: int) -> None:
        while piece := os.read(reader, 65536):
            received.extend(piece)

    with capfd.disabled(), ThreadPoolExecutor() as threads:
        with standard_streams(tmp_path) as reader:
            loop = Loop()
            output = Output(loop, OutputOptions(), {})
            output.hurry()
            line = b"x" * 999 + b"\n"
            for _ in range(20_000):
                output.feed(0, Kind.STDOUT, line)
            reading = threads.submit(read_all, reader)
            # The loop has not run: it does not know that the console has room again.
            eventually(lambda: output._consoles[Kind.STDOUT].writer.idle, "all is written")
            while not output.idle:
                loop.run_once()
        reading.result()
        os.close(reader)
    assert re.search(rb"\nringrun: \d+ bytes are missing here: nobody read them\n$", bytes(received))


def test_the_more_ranks_end_at_a_time_the_longer_a_traceback_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    timers: list[float] = []
    monkeypatch.setattr(loop, "call_later", lambda seconds, _callback: timers.append(seconds))
    for ranks in (1, 64, 1000):
        output = Output(loop, OutputOptions(ranks=ranks), {})
        output.feed(0, Kind.STDERR, b"Traceback (most recent call last):\nValueError: boom\n")
        assert output.held() == [(0, b"Traceback (most recent call last):\nValueError: boom\n")]
    assert timers == [2.25, 18.0, 20.0]
