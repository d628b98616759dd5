"""`ringcore.run`: a function on several ranks, from Python."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from ringcore.launcher.api import LaunchError, RankError, run
from support.processes import WRITE_PID, Pids, clean_environ, eventually, is_alive

HAS_CLOUDPICKLE = importlib.util.find_spec("cloudpickle") is not None


def test_results_come_in_the_order_of_ranks() -> None:
    assert run(os.getenv, ("RINGCORE_RANK",), np=3) == ["0", "1", "2"]


def test_arguments_and_variables_reach_each_rank() -> None:
    assert run(sorted, ([3, 1, 2],), {"reverse": True}, np=2) == [[3, 2, 1]] * 2
    assert run(os.getenv, ("SOME_NAME",), np=1, env={"SOME_NAME": "value"}) == ["value"]
    assert run(os.getenv, ("RINGCORE_TIMEOUT_S",), np=1, timeout_s=7) == ["7"]


def test_large_results_and_arguments() -> None:
    data = os.urandom(3_000_000)
    assert run(bytes.upper, (data,), np=2) == [data.upper()] * 2


def test_each_rank_is_another_process_and_none_was_forked() -> None:
    pids = run(os.getpid, np=2)
    assert len({*pids, os.getpid()}) == 3
    assert not any(is_alive(pid) for pid in pids)


def test_output_of_ranks_appears_in_pythons_own_streams(capsys: pytest.CaptureFixture[str]) -> None:
    run(print, ("hello",), np=2)
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0]<stdout> hello", "[1]<stdout> hello"]


def test_an_exception_comes_back_with_its_rank_and_traceback() -> None:
    with pytest.raises(RankError, match="rank 0 raised ZeroDivisionError: division by zero") as caught:
        run(operator.truediv, (1, 0), np=1)
    assert caught.value.rank == 0
    assert "worker.py" in caught.value.remote_traceback
    assert isinstance(caught.value.original, ZeroDivisionError)


TAKES_OTHERS_WITH_IT = """
    import ringcore

    def train():
        import numpy as np
        ringcore.init()
        ringcore.allreduce(np.ones(4, np.float32))
        if ringcore.rank() == 1:
            raise ValueError("the cause")
        try:
            ringcore.allreduce(np.ones(4, np.float32))
        except ringcore.PeerLostError as error:
            raise RuntimeError(f"as a framework says it: {error}") from error
"""


def test_the_rank_that_failed_by_itself_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "takes_others_with_it.py").write_text(textwrap.dedent(TAKES_OTHERS_WITH_IT))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("takes_others_with_it")
    with pytest.raises(RankError, match="rank 1 raised ValueError: the cause") as caught:
        run(module.train, np=2)
    assert caught.value.rank == 1


def test_a_rank_that_is_killed() -> None:
    with pytest.raises(RankError, match=r"rank . of 2 on localhost was killed by SIGKILL"):
        run(signal.raise_signal, (signal.SIGKILL,), np=2)


def test_what_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        run(print, (sys.stdout,), np=1)
    with pytest.raises(RankError, match=r"TypeError: what the function returned, a lock, cannot be sent back: .*lock"):
        run(threading.Lock, np=1)


def test_what_is_no_call() -> None:
    with pytest.raises(TypeError, match="are to call is a list, and no function: give the function itself"):
        run([0, 1])  # type: ignore[arg-type]
    for args in (7, "text"):
        with pytest.raises(TypeError, match=rf"args={args!r} is no list of arguments: give args=\[{args!r}\]"):
            run(print, args)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"no_such_option": 1}, "--no-such-option"),
        ({"timeout_s": "soon"}, "'soon'"),
        ({"verbose": object()}, "option verbose"),
    ],
)
def test_wrong_options(options: dict[str, object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        run(print, np=1, **options)


def test_a_function_is_not_left_out_on_a_node_of_another_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes(bytes(32))
    with pytest.raises(LaunchError):
        run(print, np=None, nnodes="1:2", rdzv_endpoint="127.0.0.1:1", key_file=str(key), start_timeout_s=0.3)
    assert "calls a function in a job of its own: leave out --nnodes MIN:MAX" in capfd.readouterr().err


def test_what_is_off_anyway_may_be_said() -> None:
    assert run(os.getenv, ("RINGCORE_DETERMINISTIC",), np=1, verbose=False, deterministic=False) == ["0"]


def run_program(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    (directory / "program.py").write_text(textwrap.dedent(text))
    options: dict[str, Any] = {
        "capture_output": True,
        "text": True,
        "timeout": 60,
        "cwd": directory,
        "env": clean_environ(),
    }
    return subprocess.run([sys.executable, "program.py"], check=False, **options)


MAIN = """
import sys
BLOCK = {block}
if BLOCK: sys.modules["cloudpickle"] = None
from ringcore.launcher.api import run
offset = 10
def function(n):
    import os
    return n + offset + int(os.environ["RANK"])
if __name__ == "__main__":
    print(run(function, (100,), np=2))
"""


def test_a_function_of_main_works_or_says_what_to_install(tmp_path: Path) -> None:
    done = run_program(tmp_path, MAIN.format(block=False))
    if HAS_CLOUDPICKLE:
        assert done.stdout == "[110, 111]\n", done.stderr
    else:
        assert "pip install cloudpickle" in done.stderr
    blocked = run_program(tmp_path, MAIN.format(block=True))
    assert blocked.returncode == 1 and "pip install cloudpickle" in blocked.stderr


def test_a_function_of_a_module_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            import os
            class Odd(Exception):
                def __init__(self, a, b): super().__init__(a)
            def f():
                if os.environ["RANK"] == "1": raise Odd("odd", 2)
            """
        )
    )
    done = run_program(
        tmp_path,
        """
        import mine
        from ringcore.launcher.api import RankError, run
        try: run(mine.f, np=2)
        except RankError as error: print(error.rank, str(error).splitlines()[0])
        """,
    )
    assert done.stdout == "1 rank 1 raised Odd: odd\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_the_caller(tmp_path: Path, number: int, pids: Pids) -> None:
    (tmp_path / "waits.py").write_text(
        WRITE_PID + "import time\ndef f():\n    write_pid(os.environ['RANK'])\n    time.sleep(600)\n"
    )
    (tmp_path / "program.py").write_text("import waits\nfrom ringcore.launcher.api import run\nrun(waits.f, np=2)\n")
    with subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, env=clean_environ(), stderr=subprocess.DEVNULL
    ) as process:
        ranks = pids.wait(2)
        process.send_signal(number)
        process.wait(30)
    eventually(lambda: not any(map(is_alive, ranks.values())), "the ranks are gone")


ELASTIC = """
    import os, signal
    import numpy as np
    import ringcore
    from ringcore import elastic

    def train(ends):
        ringcore.init()

        @elastic.run
        def steps(state):
            while state.step < 10 or ringcore.size() < ends:
                if ringcore.rank() == 0 and ringcore.size() == 3 and state.step == 5 and not os.path.exists("died"):
                    open("died", "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                state.total += float(ringcore.allreduce(np.ones(3), op=ringcore.Sum)[0])
                state.step += 1
                state.commit()
            return ringcore.rank(), ringcore.size(), state.total

        return steps(elastic.ObjectState(step=0, total=0.0))

    def fails():
        ringcore.init()
        raise LookupError("no such row")
"""


@pytest.fixture
def elastic_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "elastic_functions.py").write_text(textwrap.dedent(ELASTIC))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("elastic_functions")
    del sys.modules["elastic_functions"]


def test_an_elastic_call_returns_what_those_have_that_are_there_at_the_end(elastic_functions: Any) -> None:
    left = run(elastic_functions.train, (2,), np=3, min_np=1, blacklist_cooldown_range=(60, 60))
    assert left == [(rank, 2, 5 * 3.0 + 5 * 2) for rank in range(2)]


def test_an_elastic_call_takes_another_in(elastic_functions: Any) -> None:
    results = run(elastic_functions.train, (3,), np=3, min_np=1, blacklist_cooldown_range=(0.01, 0.01))
    assert [(rank, size) for rank, size, _ in results] == [(0, 3), (1, 3), (2, 3)]
    assert len({total for *_, total in results}) == 1


def test_an_elastic_call_that_fails_raises_what_its_first_rank_has(elastic_functions: Any) -> None:
    with pytest.raises(RankError, match="LookupError: no such row") as caught:
        run(elastic_functions.fails, np=2, min_np=2, blacklist_cooldown_range=(60, 60), elastic_timeout=0.1)
    assert isinstance(caught.value.original, LookupError)
