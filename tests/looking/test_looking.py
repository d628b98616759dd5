"""Looking into a running job: what its ranks do, wait for, and where they stand."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ringcore
from ringcore.environment import watching
from support import ranks
from support.processes import LIMIT_S, clean_environ, eventually
from support.rank import await_mark, mark

# Rank 0 waits for rank 1, which waits for the test. Then both end.
PROGRAM = """
import os, sys, time
import numpy as np
import ringcore

def is_late():
    while not os.path.exists("go"):
        time.sleep(0.01)

ringcore.init()
ringcore.allreduce(np.ones(1 << 20, np.float32), name="large")
open(f"ready.{ringcore.rank()}", "w").close()
if ringcore.rank() == 1:
    is_late()
ringcore.allreduce(np.ones(2), name="late")
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    return {**clean_environ(), "XDG_RUNTIME_DIR": str(runtime)}


def ask(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringcore", *words], env=environ, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip


def said_by(environ: dict[str, str], *words: str) -> str:
    done = ask(environ, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def running(folder: Path, environ: dict[str, str], *options: str) -> Iterator[subprocess.Popen[str]]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "ringcore", "run", "-np", "2", *options, "train.py"]
    job = subprocess.Popen(command, cwd=folder, env=environ, text=True, stdin=subprocess.DEVNULL)
    try:
        eventually(lambda: all((folder / f"ready.{rank}").exists() for rank in (0, 1)), "both ranks run", LIMIT_S)
        yield job
        (folder / "go").touch()
        assert job.wait(LIMIT_S) == 0
    finally:
        job.kill()
        job.wait()


def test_a_running_job_is_looked_at(tmp_path: Path, environ: dict[str, str]) -> None:
    with running(tmp_path / "job", environ):
        found: dict = {}

        def waits() -> bool:
            found.update(json.loads(said_by(environ, "status", "--json")))
            return bool(found["ranks"]["0"]["waits"])

        eventually(waits, "rank 0 waits", LIMIT_S)
        first, second = found["ranks"]["0"], found["ranks"]["1"]
        (wait,) = first["waits"]
        assert wait["operation"] == "allreduce 'late'" and wait["missing"] == [1] and wait["seconds"] > 0
        assert second["waits"] == [] and found["last"] == 1
        assert [each["operations"] for each in (first, second)] == [1, 1]
        (transport,) = first["bytes_sent"]
        assert first["bytes_sent"][transport] + first["bytes_received"][transport] >= 4 << 20
        assert first["memory_bytes"] > 1 << 20
        assert found["command"] == ["train.py"] and found["size"] == 2 and found["notes"] == []

        said = said_by(environ, "status", found["job"][:10])
        assert re.search(r"rank 0 on .*: 1 operation in .* waits for rank 1 in allreduce 'late', for", said), said
        assert "the last to come is rank 1" in said
        stacks = said_by(environ, "stacks")
        assert "in is_late" in stacks.partition("rank 1:")[2] and "ringcore-watch" not in stacks
        top = said_by({**environ, "COLUMNS": "80"}, "top", "--interval", "0.1", "--count", "1")
        assert re.search(r"^1 last .* 0\.0 MB/s .* MiB +- *$", top, re.MULTILINE), top

        folder = Path(environ["XDG_RUNTIME_DIR"], f"ringcore-{os.getuid()}", "jobs")
        assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder, folder / found["job"])] == [0o700] * 3
        with running(tmp_path / "another", environ):
            several = ask(environ, "status")
            assert several.returncode == 1
            assert "several jobs run here. Remedy: name one" in several.stderr
            assert several.stderr.count("\n  ringrun-") == 2
        wrong = ask(environ, "stacks", found["job"] + "x")
        assert wrong.returncode == 1 and f"did you mean '{found['job']}'?" in wrong.stderr
    assert list(folder.iterdir()) == []
    ended = ask(environ, "status", found["job"])
    assert ended.returncode == 1
    assert f"no job '{found['job']}' runs on this host" in ended.stderr and "Remedy: " in ended.stderr


def test_what_a_killed_launcher_has_left_is_no_job(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = Path(environ["XDG_RUNTIME_DIR"], f"ringcore-{os.getuid()}", "jobs")
    with pytest.raises(AssertionError), running(tmp_path / "job", environ) as job:
        job.send_signal(signal.SIGKILL)
        job.wait()
        eventually(lambda: not list(folder.iterdir()), "the guard has removed the job's folder", LIMIT_S)
    (folder / "stale").mkdir(mode=0o700)
    watching.listen(folder / "stale" / "rank.0").close()
    starts = folder / "starts"
    starts.mkdir(mode=0o700)
    assert "no job of this user runs on this host" in ask(environ, "status").stderr
    assert list(folder.iterdir()) == [starts], "a job that has made its folder is about to listen in it"
    os.utime(starts, (0, 0))
    assert "no job of this user runs on this host" in ask(environ, "status").stderr
    assert list(folder.iterdir()) == []


def is_looked_at() -> dict:
    ringcore.init()
    if ringcore.rank() == 0:
        mark("waits")
    else:
        await_mark("asked", "test")
    ringcore.allreduce(np.ones(2), name="late")
    return ringcore.statistics()


def test_a_job_of_another_launcher_is_looked_at_on_its_host(tmp_path: Path) -> None:
    environ = {**clean_environ(), "XDG_RUNTIME_DIR": str(tmp_path)}
    with ranks.started(is_looked_at, 2, tmp_path) as job:
        job.await_mark("waits", 0)

        def found() -> bool:
            said = ask(environ, "status").stdout
            return "waits for rank 1 in allreduce 'late'" in said and "rank 1 on" in said

        eventually(found, "both ranks answer", LIMIT_S)
        job.mark("asked")
        for outcome in job.wait():
            assert outcome.exit_code == 0, outcome.stderr
            assert outcome.result["operations"] == 1 and outcome.result["waits"] == []
    assert not list((tmp_path / f"ringcore-{os.getuid()}" / "jobs").iterdir())


def test_another_users_process_gets_no_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / ("longer than the address of a socket" * 4)
    folder.mkdir()
    path = folder / "rank.0"
    with watching.listen(path) as listener:
        watching.dial(path, 1.0).close()
        monkeypatch.setattr(watching, "peer_uid", lambda _: os.getuid() + 1)
        with pytest.raises(PermissionError, match="another user"):
            watching.dial(path, 1.0)
        with listener.accept()[0] as accepted:
            assert not watching.is_own(accepted)


FORKS = """
import os
import numpy as np
import ringcore
ringcore.init()
pid = os.fork()
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
ringcore.shutdown()
ringcore.init()
ringcore.allreduce(np.ones(2))
ringcore.shutdown()
print("ended")
"""


def test_a_job_can_fork_and_begin_again_where_it_is_looked_at(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "forks.py").write_text(textwrap.dedent(FORKS))
    done = ask(environ, "run", "-np", "2", str(tmp_path / "forks.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ended") == 2
