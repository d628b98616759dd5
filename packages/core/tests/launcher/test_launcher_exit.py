"""How jobs end: exit codes, signals, failures and their summary, and that nobody is left alive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes import RINGRUN, Pids, Ringrun, eventually, is_alive

Script = Callable[..., str]


def summary_of(stderr: str) -> list[str]:
    """What ringrun itself says at the end: all from its first own line about a failure."""
    lines = stderr.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("ringrun: rank"))
    return lines[start:]


def test_success_is_silent(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "2", script("pass"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("sys.exit(7)", 7),
        ("raise ValueError('boom')", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143),
        ("os._exit(255)", 255),
    ],
)
def test_the_exit_code_is_that_of_the_failing_rank(ringrun: Ringrun, script: Script, text: str, code: int) -> None:
    done = ringrun("-np", "3", script(f"if rank == 1: {text}\ntime.sleep(60)"))
    assert done.returncode == code
    assert "rank 1 of 3" in summary_of(done.stderr)[0]


def test_the_summary_ends_in_the_traceback_and_has_at_most_fifteen_lines(ringrun: Ringrun, script: Script) -> None:
    done = ringrun(
        "-np",
        "2",
        script(
            "def f(n):\n    if n == 0: raise ValueError('boom\\nsecond line')\n    g(n)\n"
            "def g(n):\n    f(n - 1)\nif rank: f(40)"
        ),
    )
    lines = summary_of(done.stderr)
    assert len(lines) <= 15
    assert lines[-2:] == ["ValueError: boom", "second line"]
    assert any("lines left out" in line for line in lines)


def test_a_long_way_through_ringcore_leaves_the_frame_of_the_script(ringrun: Ringrun, script: Script) -> None:
    # As with torch: the script calls ringcore, which is many frames deep, and a library that it uses raises.
    package = ringrun.directory / "site-packages" / "ringcore_torch"
    package.mkdir(parents=True)
    (package / "verbs.py").write_text(
        "import json\ndef verb(n):\n    if n == 0:\n        json.loads('{')\n    other(n)\n"
        "def other(n):\n    verb(n - 1)\n"
    )
    text = """
        sys.path.insert(0, "site-packages/ringcore_torch")
        import verbs
        def step(): verbs.verb(12)  # the step of the script
        if rank: step()
        time.sleep(600)
    """
    lines = summary_of(ringrun("-np", "2", script(text)).stderr)
    Path(lines[1].rpartition(" ")[2]).unlink()
    assert len(lines) <= 15
    assert lines[2] == "Traceback (most recent call last):"
    assert any("script.py" in line and line.endswith("in step") for line in lines), lines
    assert "    def step(): verbs.verb(12)  # the step of the script" in lines
    assert any("lines left out" in line for line in lines)
    assert lines[-1].startswith("json.decoder.JSONDecodeError: Expecting property name")


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_an_error_of_all_ranks_is_told_once(ringrun: Ringrun, script: Script, ranks: int) -> None:
    # Each waits until the others fail as well, and takes its time when it is told to end.
    name = script(
        f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        write_pid(rank)
        while len([f for f in os.listdir() if f.startswith("pid.")]) < {ranks}: time.sleep(0.01)
        raise ValueError("boom")
        """
    )
    done = ringrun("-np", str(ranks), "--shutdown-timeout", "60", name)
    lines = done.stderr.splitlines()
    assert len(lines) <= 15, done.stderr
    assert done.stderr.count("ValueError: boom") == 1
    assert done.stderr.count("Traceback") == 1
    (same,) = (line for line in lines if line.endswith(": the same"))
    assert same.startswith("ringrun: rank")


def test_errors_that_differ_are_told_in_a_line_each_and_are_all_in_a_file(ringrun: Ringrun, script: Script) -> None:
    name = script(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        write_pid(rank)
        while len([f for f in os.listdir() if f.startswith("pid.")]) < 8: time.sleep(0.01)
        raise ValueError(f"boom {rank}")
        """
    )
    done = ringrun("-np", "8", "--shutdown-timeout", "60", name)
    lines = done.stderr.splitlines()
    assert len(lines) <= 15, done.stderr
    assert sum("ValueError: boom" in line for line in lines) == 4, done.stderr
    assert any(line.endswith(": something else each") for line in lines)
    (file,) = (Path(line.rpartition(" ")[2]) for line in lines if line.startswith("ringrun: all of it is in "))
    words = file.read_text()
    file.unlink()
    assert all(f"\nValueError: boom {rank}\n" in words for rank in range(8))


@pytest.mark.parametrize(("depth", "files"), [(2, 0), (3, 1)])
def test_a_file_has_it_all_only_where_the_summary_leaves_lines_out(
    ringrun: Ringrun, script: Script, depth: int, files: int
) -> None:
    # Python points at parts of the lines, which are 14 or 16 without that: its head, the script's, f and g, the error.
    folder = ringrun.directory / "tmp"
    folder.mkdir()
    ringrun.environ["TMPDIR"] = str(folder)
    text = f"def f(n): return 0 + g(n) if n else int('x')\ndef g(n): return 0 + f(n - 1)\nif rank: f({depth})\n"
    done = ringrun("-np", "2", script(text + "time.sleep(600)"))
    found = [str(path) for path in folder.glob("ringrun-*.stderr")]
    assert len(found) == files, done.stderr
    assert [path for path in found if path in done.stderr] == found
    assert ("lines left out" in done.stderr) == bool(files)
    assert len(summary_of(done.stderr)) <= 15


def test_no_file_is_made_where_nothing_was_held_back(ringrun: Ringrun, script: Script) -> None:
    # As torch's `record` does where a script has a handler of exceptions of its own.
    folder = ringrun.directory / "tmp"
    folder.mkdir()
    ringrun.environ["TMPDIR"] = str(folder)
    text = """
        import json
        frames = '  File "a.py", line 1, in f\\n    f()\\n' * 20
        stack = f"Traceback (most recent call last):\\n{frames}ValueError: boom"
        record = {"message": "ValueError: boom", "extraInfo": {"py_callstack": stack, "timestamp": "1"}}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file: json.dump({"message": record}, file)
        os._exit(1)
    """
    done = ringrun("-np", "1", script(text))
    assert done.stderr.endswith("ValueError: boom\n") and "lines left out" in done.stderr
    assert "all of it is in" not in done.stderr
    assert not list(folder.glob("ringrun-*.stderr"))


def test_a_script_that_is_no_python_is_told_once(ringrun: Ringrun) -> None:
    (ringrun.directory / "wrong.py").write_text("f(op=1, op=2)\n")
    done = ringrun("-np", "4", "wrong.py")
    assert done.returncode == 1
    assert done.stderr.count("SyntaxError: keyword argument repeated: op") == 1, done.stderr
    assert len(done.stderr.splitlines()) <= 7, done.stderr


def test_a_traceback_of_a_rank_that_goes_on_is_shown(ringrun: Ringrun, script: Script) -> None:
    name = script(
        """
        import traceback
        try: raise ValueError("caught")
        except ValueError: traceback.print_exc()
        while not os.path.exists("seen"): time.sleep(0.01)
        """
    )
    with ringrun.started("-np", "1", name) as process:
        assert process.stderr is not None
        while "ValueError: caught" not in (line := process.stderr.readline()):
            assert line, "it ended"
        (ringrun.directory / "seen").touch()
        assert process.wait(60) == 0


def test_a_traceback_that_was_shown_meanwhile_is_not_told_again(ringrun: Ringrun, script: Script) -> None:
    # As torch does under load, the rank takes long to end: until its traceback is shown as one of a rank that goes on.
    name = script(
        """
        import atexit
        def wait_until_shown():
            while not os.path.exists("seen"): time.sleep(0.01)
        atexit.register(wait_until_shown)
        if rank == 1: raise ValueError("boom")
        """
    )
    with ringrun.started("-np", "2", name) as process:
        assert process.stderr is not None
        lines = []
        while "ValueError: boom" not in "".join(lines):
            lines.append(process.stderr.readline())
            assert lines[-1], "it ended"
        (ringrun.directory / "seen").touch()
        summary = process.stderr.read().splitlines()
    assert process.returncode == 1
    assert summary[0].startswith("ringrun: rank 1 of 2 on localhost failed with exit code 1")
    assert summary[1:] == ["ringrun: its traceback stands above, behind [1]<stderr>", "ValueError: boom"]


def test_a_traceback_that_torch_has_marked_with_the_rank_is_one(ringrun: Ringrun, script: Script) -> None:
    # torch.distributed's exception hook puts this before each line.
    text = """
        import traceback
        def hook(kind, value, tb):
            for line in "".join(traceback.format_exception(kind, value, tb)).splitlines():
                print(f"[rank{rank}]: {line}", file=sys.stderr)
        sys.excepthook = hook
        def f(n):
            if n == 0: raise ValueError("boom")
            f(n - 1)
        if rank: f(40)
    """
    assert summary_of(ringrun("-np", "2", script(text)).stderr)[-1] == "ValueError: boom"


def test_a_rank_that_says_nothing_is_described_by_its_exit(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "2", script("if rank: sys.exit(3)\ntime.sleep(60)"))
    assert "failed with exit code 3" in done.stderr
    done = ringrun("-np", "2", script("if rank: os.kill(os.getpid(), 9)\ntime.sleep(60)"))
    assert "was killed by SIGKILL" in done.stderr


def test_ranks_that_ignore_sigterm_are_killed(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = script(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        write_pid(rank)
        while len([f for f in os.listdir() if f.startswith("pid.")]) < 2: time.sleep(0.01)
        if rank == 0: sys.exit(5)
        time.sleep(600)
        """
    )
    done = ringrun("-np", "2", name)
    assert done.returncode == 5
    assert not any(map(is_alive, pids.wait(2).values()))


def test_other_ranks_may_clean_up_when_they_are_told_to_end(ringrun: Ringrun, script: Script) -> None:
    name = script(
        """
        def clean_up(*_):
            print("cleaned up")
            sys.exit(0)
        signal.signal(signal.SIGTERM, clean_up)
        write_pid(rank)
        if rank == 0:
            while not os.path.exists("pid.1"): time.sleep(0.01)
            sys.exit(4)
        time.sleep(600)
        """
    )
    done = ringrun("-np", "2", "--shutdown-timeout", "60", name)
    assert done.returncode == 4
    assert done.stdout == "[1]<stdout> cleaned up\n"


# What ringcore leaves for the launcher when another rank's end has made an operation fail.
LOSE = """
def lose(lost_rank):
    with open(os.environ["RINGCORE_LOSS_FILE"], "w") as file:
        file.write(f'{{"lost_rank": {lost_rank}}}')
"""


def test_the_cause_is_preferred_to_its_consequences(ringrun: Ringrun, script: Script) -> None:
    # The survivors end first, because the failing rank has handlers that run at its exit.
    name = script(
        LOSE
        + """
import atexit
write_pid(rank)
if rank == 1:
    atexit.register(time.sleep, 600)
    raise KeyError("the cause")
while not os.path.exists("pid.1"): time.sleep(0.01)
lose(1)
raise RuntimeError("what a framework makes of it")
"""
    )
    done = ringrun("-np", "3", name)
    lines = summary_of(done.stderr)
    assert "rank 1 of 3" in lines[0]
    assert lines[-1] == "KeyError: 'the cause'"
    assert done.returncode == 1


def test_the_rank_to_blame_may_take_its_time_to_end(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    # It says nothing, and tears a framework down: its exit code is all that tells.
    name = script(
        LOSE
        + """
write_pid(rank)
if rank == 1:
    while not os.path.exists("pid.0"): time.sleep(0.01)
    other = int(open("pid.0").read())
    while os.path.exists(f"/proc/{other}"): time.sleep(0.01)  # Until the launcher has taken note of its end.
    time.sleep(0.5)
    sys.exit(7)
lose(1)
sys.exit(1)
"""
    )
    done = ringrun("-np", "2", name)
    assert done.returncode == 7
    assert summary_of(done.stderr)[0].startswith("ringrun: rank 1 of 2")


def test_only_consequences_are_reported_too(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "2", script(LOSE + "if rank:\n    lose(0)\n    raise ConnectionError('x')"))
    assert done.returncode == 1
    assert summary_of(done.stderr)[-1].endswith("ConnectionError: x")


@pytest.mark.parametrize("said", ["", "{", "[1]", '{"lost_rank": "1"}', '{"lost_rank": ' + "1" * 99, "[" * 60])
def test_what_a_rank_says_of_its_loss_may_be_anything(ringrun: Ringrun, script: Script, said: str) -> None:
    name = script(f"if rank:\n    open(os.environ['RINGCORE_LOSS_FILE'], 'w').write({said!r})\n    sys.exit(4)")
    done = ringrun("-np", "2", name)
    assert done.returncode == 4, done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_launcher_reaches_the_ranks(
    ringrun: Ringrun, script: Script, pids: Pids, number: int, code: int
) -> None:
    name = script(
        """
        def note(number, frame):
            print("got", number)
            sys.exit(0)
        for number in (1, 2, 15): signal.signal(number, note)
        write_pid(rank)
        time.sleep(600)
        """
    )
    with ringrun.started("-np", "2", name) as process:
        ranks = pids.wait(2)
        process.send_signal(number)
        stdout, _ = process.communicate(timeout=300)
    assert process.returncode == code
    assert sorted(stdout.splitlines()) == [f"[{rank}]<stdout> got {int(number)}" for rank in (0, 1)]
    assert not any(map(is_alive, ranks.values()))


def test_an_interrupt_counts_also_where_the_shell_ignores_it(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = script("write_pid(rank)\ntime.sleep(600)")
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    with ringrun.started("-np", "2", "--shutdown-timeout", "600", name, prefix=shell) as process:
        pids.wait(2)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_nohup_is_respected(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = script("write_pid(rank)\nwhile not os.path.exists('go'): time.sleep(0.01)")
    shell = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    with ringrun.started("-np", "2", name, prefix=shell) as process:
        pids.wait(2)
        process.send_signal(signal.SIGHUP)
        (ringrun.directory / "go").touch()
        assert process.wait(30) == 0


def test_a_second_signal_kills(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = script(
        "signal.signal(signal.SIGINT, lambda *_: write_pid(f'int{rank}'))\nwrite_pid(rank)\nwhile True: time.sleep(1)"
    )
    with ringrun.started("-np", "2", "--shutdown-timeout", "600", name) as process:
        pids.wait(2)
        process.send_signal(signal.SIGINT)
        ranks = pids.wait(4)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert not any(map(is_alive, ranks.values()))


def test_user_signals_are_passed_on_and_the_job_goes_on(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = script(
        """
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        write_pid(rank)
        while not seen: time.sleep(0.01)
        """
    )
    with ringrun.started("-np", "2", name) as process:
        pids.wait(2)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 0


GRANDCHILDREN = """
if len(sys.argv) > 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write_pid(f"child{rank}")
    time.sleep(600)
subprocess.Popen([sys.executable, __file__, "child"])
write_pid(rank)
"""


def test_nobody_is_left_when_the_launcher_is_killed(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    with ringrun.started("-np", "2", script(GRANDCHILDREN + "time.sleep(600)")) as process:
        found = pids.wait(4)
        process.kill()
        process.wait(30)
    eventually(lambda: not any(map(is_alive, found.values())), "all processes of the job are gone")


def test_what_ranks_started_is_ended_after_success_and_after_failure(
    ringrun: Ringrun, script: Script, pids: Pids
) -> None:
    wait = "while sum(name.startswith('pid.') for name in os.listdir()) < 4: time.sleep(0.01)\n"
    for code in (0, 3):
        done = ringrun("-np", "2", script(GRANDCHILDREN + wait + f"sys.exit({code} * rank)"))
        assert done.returncode == code
        found = pids.wait(4)
        assert not any(map(is_alive, found.values()))
        for path in ringrun.directory.glob("pid.*"):
            path.unlink()


def test_temporary_files_are_gone_whatever_happens(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    folder = ringrun.directory / "tmp"
    folder.mkdir()
    # The user's own folder stays where it is; what jobs have in it does not.
    (ringrun.directory / "run").mkdir(mode=0o700)
    jobs = ringrun.directory / "run" / f"ringcore-{os.getuid()}" / "jobs"
    ringrun.environ |= {"TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(ringrun.directory / "run")}
    ringrun("-np", "2", script("open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').close()\nsys.exit(rank)"))
    assert [*folder.iterdir(), *jobs.iterdir()] == []
    name = script("open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').close()\nwrite_pid(rank)\ntime.sleep(600)")
    with ringrun.started("-np", "2", name) as process:
        pids.wait(2)
        assert list(folder.iterdir()) != [] and list(jobs.iterdir()) != []
        process.kill()
        process.wait(30)
    eventually(lambda: [*folder.iterdir(), *jobs.iterdir()] == [], "the temporary directory is empty")


def test_torchs_error_file_is_read_and_written(ringrun: Ringrun, script: Script) -> None:
    name = script(
        """
        if rank == 1:
            import json
            stack = "Traceback (most recent call last):\\n  deep\\nValueError: recorded\\n"
            extra = {"py_callstack": stack, "timestamp": "1"}
            record = {"message": "ValueError: recorded", "extraInfo": extra}
            with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file: json.dump({"message": record}, file)
            print("later noise", file=sys.stderr)
            sys.exit(9)
        time.sleep(600)
        """
    )
    mine = ringrun.directory / "error.json"
    ringrun.environ["TORCHELASTIC_ERROR_FILE"] = str(mine)
    done = ringrun("-np", "2", name)
    assert summary_of(done.stderr)[-1] == "ValueError: recorded"
    written = json.loads(mine.read_text())["message"]
    assert (written["message"], written["errorCode"]) == ("ValueError: recorded", 9)


def test_an_error_file_is_written_for_a_rank_that_wrote_none(ringrun: Ringrun, script: Script) -> None:
    mine = ringrun.directory / "error.json"
    ringrun.environ["TORCHELASTIC_ERROR_FILE"] = str(mine)
    ringrun("-np", "2", script("if rank: raise OSError('disk')\ntime.sleep(600)"))
    written = json.loads(mine.read_text())["message"]
    assert written["message"] == "rank 1: OSError: disk"
    assert written["extraInfo"]["py_callstack"].startswith("Traceback")
    assert written["errorCode"] == 1


def test_a_reader_that_goes_away_ends_the_job(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = script("write_pid(rank)\nwhile True: print('x' * 100)")
    with ringrun.started("-np", "2", name) as process:
        assert process.stdout is not None
        ranks = pids.wait(2)
        process.stdout.close()
        assert process.wait(30) == 141
    assert not any(map(is_alive, ranks.values()))


def test_a_program_that_does_not_exist(ringrun: Ringrun, tmp_path: Path) -> None:
    done = ringrun("-np", "2", "no-such-program")
    assert (done.returncode, done.stderr) == (127, "ringrun: there is no program 'no-such-program'\n")
    (tmp_path / "text").write_text("no program")
    done = ringrun("-np", "2", "./text")
    assert done.returncode == 126 and "cannot run './text'" in done.stderr
    done = ringrun("-np", "2", "--workdir", "nowhere", "true")
    assert done.returncode == 126 and "nowhere" in done.stderr


def test_the_guard_can_die_without_harm(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = script("write_pid(rank)\nwhile not os.path.exists('go'): time.sleep(0.01)")
    with ringrun.started("-np", "2", name) as process:
        ranks = set(pids.wait(2).values())
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        guards = {int(pid) for pid in children} - ranks
        assert len(guards) == 1
        os.kill(guards.pop(), signal.SIGKILL)
        (ringrun.directory / "go").touch()
        assert process.wait(30) == 0


def test_without_a_guard_the_kernel_ends_the_ranks(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    ringrun.environ["TMPDIR"] = str(ringrun.directory)  # Nobody is left to remove what is there.
    with ringrun.started("-np", "2", script("write_pid(rank)\ntime.sleep(600)")) as process:
        ranks = pids.wait(2)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (guard,) = {int(pid) for pid in children} - set(ranks.values())
        os.kill(guard, signal.SIGKILL)
        process.kill()
        process.wait(30)
    eventually(lambda: not any(map(is_alive, ranks.values())), "the ranks are gone")


def test_the_launcher_never_imports_numpy_or_a_framework(ringrun: Ringrun, script: Script) -> None:
    argv = [sys.executable, "-X", "importtime", *RINGRUN[1:], "-np", "1", script("pass")]
    options: dict[str, Any] = {
        "capture_output": True,
        "text": True,
        "timeout": 60,
        "cwd": ringrun.directory,
        "env": ringrun.environ,
    }
    listing = subprocess.run(argv, check=True, **options).stderr
    imported = {line.rpartition("|")[2].strip() for line in listing.splitlines()}
    assert "ringcore.launcher._supervisor" in imported
    assert not imported & {"numpy", "torch", "tensorflow", "jax", "tempfile", "asyncio", "ringcore._native"}
