"""The running jobs of this user on this host, and what their ranks answer."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringcore._errors import BootstrapError
from ringcore.environment import watching
from ringcore.launcher import _watching
from ringcore.launcher._loop import Loop
from ringcore.launcher._summary import list_ranks

# The launcher itself gives up earlier.
_LIMIT_S = 10.0
# From a job's making of its folder until it listens there.
_STARTING_S = 60.0
# Of the argument of all commands that ask a job.
JOB_HELP = "its name, or how it begins"
_READ_BYTES = 1 << 16


class JobError(Exception):
    """There is no such job to ask; the message says what to do."""


@dataclass
class Answer:
    """What was asked of all ranks of a job.

    Attributes:
        about: Its name, size, command and hosts, as far as they are known here.
        ranks: By rank; `number` is what ringrun calls it, which in an elastic job may be another one.
        notes: What cannot be told, and why.
    """

    about: dict[str, Any]
    ranks: dict[int, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def ask(job: str | None, question: str) -> Answer:
    """Ask the ranks of a job.

    Args:
        job: Its name, or how that begins; None: the only one.
        question: One of `watching.QUESTIONS`.

    Raises:
        JobError: There is none, there are several, or it has ended meanwhile.
    """
    folder = _find(job)
    if (folder / watching.LAUNCHER).exists():
        return _ask_launcher(folder, question)
    return _ask_ranks(folder, question)


def _find(job: str | None) -> Path:
    try:
        folders = _running(watching.jobs_folder())
    except BootstrapError as error:
        raise JobError(str(error)) from None
    names = sorted(folders)
    chosen = (
        names
        if job is None
        else [name for name in names if name == job] or [name for name in names if name.startswith(job)]
    )
    if len(chosen) == 1:
        return folders[chosen[0]]
    listed = "".join(f"\n  {name}" for name in names)
    if not names:
        wanted = f"job {job!r}" if job else "job of this user"
        raise JobError(
            f"no {wanted} runs on this host, as far as {watching.jobs_folder()} tells: it has ended, or runs "
            "elsewhere. Remedy: ask on the host where ringrun was started, as the same user and with the same "
            "XDG_RUNTIME_DIR"
        )
    if chosen:
        raise JobError(f"several jobs run here. Remedy: name one, or how it begins:{listed}")
    near = difflib.get_close_matches(job or "", names, 1, 0.5)
    raise JobError(
        f"no job {job!r} runs on this host{f'; did you mean {near[0]!r}?' if near else ''}: it has ended, or never "
        f"was. These run:{listed}"
    )


def _running(base: Path) -> dict[str, Path]:
    """The folders of the jobs that somebody answers for. What killed jobs have left is removed."""
    found = {}
    for folder in base.iterdir():
        sockets = [*folder.iterdir()] if folder.is_dir() else []
        living = [path for path in sockets if _is_alive(path)]
        if living:
            found[folder.name] = folder
            continue
        with contextlib.suppress(OSError):
            # A job that starts at this moment has made its folder, and will listen in it.
            if sockets or time.time() - folder.stat().st_mtime > _STARTING_S:
                folder.rmdir()
    return found


def _is_alive(path: Path) -> bool:
    try:
        watching.dial(path, 1.0).close()
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return False
    except (FileNotFoundError, PermissionError):
        return False
    except OSError:  # it is busy
        return True
    return True


def order(job: str, line: str) -> str:
    """Order the launcher of an elastic job to change it, and return what it says.

    Args:
        job: Its name, or how that begins.
        line: One of `watching.ORDERS`, and what is wanted.

    Raises:
        JobError: There is no such job, or it refuses.
    """
    folder = _find(job)
    if not (folder / watching.LAUNCHER).exists():
        raise JobError(f"job {folder.name} was not started by ringrun here, which alone can change a job")
    answer = _hear_launcher(folder, line)
    if "refused" in answer:
        raise JobError(f"job {folder.name}: {answer['refused']}")
    return str(answer["said"])


def _hear_launcher(folder: Path, line: str) -> dict[str, Any]:
    data = b""
    try:
        with watching.dial(folder / watching.LAUNCHER, _LIMIT_S) as connection:
            connection.sendall(line.encode() + b"\n")
            while piece := connection.recv(_READ_BYTES):
                data += piece
    except TimeoutError:
        raise JobError(
            f"the launcher of job {folder.name} has not answered for {_LIMIT_S:g} s: it is stopped, or its host is "
            "busy. Remedy: look whether its process still runs"
        ) from None
    except OSError:
        data = b""
    if not data:
        raise JobError(
            f"job {folder.name} has just ended. Remedy: its exit code is ringrun's, which has told what failed"
        )
    found: dict[str, Any] = json.loads(data)
    return found


def _ask_launcher(folder: Path, question: str) -> Answer:
    found = _hear_launcher(folder, question)
    answer = Answer(found["about"], _by_rank(found["ranks"]))
    answer.about["size"] = max(
        [what["size"] for what in answer.ranks.values() if "size" in what] or [answer.about["size"]]
    )
    missing = [rank for rank in range(answer.about["size"]) if rank not in answer.ranks]
    if missing:
        answer.notes.append(f"{list_ranks(missing)}: have not called init() yet, have left, or their host is silent")
    return answer


def _ask_ranks(folder: Path, question: str) -> Answer:
    """Of a job that another launcher has started: those of this host answer for themselves."""
    matches = [(re.fullmatch(re.escape(watching.RANK) + r"(\d+)", path.name), path) for path in folder.iterdir()]
    paths = {int(match[1]): path for match, path in matches if match}
    loop = Loop()
    done: list[_watching.Answers] = []
    _watching.RankInquiry(loop, paths, question, done.append)
    while not done:
        loop.run_once()
    answer = Answer({"job": folder.name}, _by_rank(done[0]))
    if not answer.ranks:
        raise JobError(f"job {folder.name} has just ended. Remedy: its launcher has told what failed")
    sizes = [what["size"] for what in answer.ranks.values() if "size" in what]
    answer.about["size"] = max(sizes, default=len(answer.ranks))
    missing = [rank for rank in range(answer.about["size"]) if rank not in answer.ranks]
    if missing:
        answer.notes.append(
            f"{list_ranks(missing)}: on other hosts, or not there any more. Without ringrun only the ranks of this "
            "host can be asked: run the same command there"
        )
    return answer


def _by_rank(answers: _watching.Answers) -> dict[int, dict[str, Any]]:
    """As the ranks say who they are: in an elastic job that changes."""
    tables = {
        int(number): what if isinstance(what, dict) else {"silent": repr(what)} for number, what in answers.items()
    }
    return {int(what.get("rank", number)): {**what, "number": number} for number, what in tables.items()}
