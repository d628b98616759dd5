"""The table of mistakes in tests/mistakes, and docs/errors.md, which is made of it by running this file.

A script's docstring has a title, `raises:` (the exception; or one a rank, "-" for a rank that raises none), `words:`
(what each rank's message has, between bars) and `remedy:`. Its folder is the kind of exception.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
FOLDER = _ROOT / "tests" / "mistakes"
PAGE = _ROOT / "docs" / "errors.md"

# Folder -> what the section of the page begins with.
_SECTIONS = {
    "not_initialized": "`NotInitializedError`: a function was called before `init()`, after `shutdown()`, or in a "
    "forked child.",
    "invalid_argument": "`InvalidArgument`: an argument is wrong, and this rank alone could tell. Nothing was done. "
    "Where the other ranks had submitted the operation they are told at once: they raise a `MismatchError` that says "
    "which rank refused what.",
    "mismatch": "`MismatchError`: the ranks submitted things that do not fit together. It is raised on every rank, "
    "with the same text, and everything goes on working: nothing was written.",
    "duplicate_name": "`DuplicateNameError`: a name identifies an operation on all ranks until it is done, and was "
    "used again before.",
    "deadlock": "`DeadlockError`: every rank waits for an operation that another rank has not submitted, so that none "
    "can ever be done. It is found at once where all wait in blocking calls, and after a second where several "
    "operations are under way, in several process sets or threads: once all threads of every rank wait.",
    "timeout": "`TimeoutError`: a rank did not submit an operation within `RINGCORE_TIMEOUT_S`. After "
    "`RINGCORE_STALL_WARNING_S` the stack of the missing rank was reported: it shows what the rank does instead.",
    "peer_lost": "`PeerLostError`: a rank has ended, left, or stopped answering. The launcher tells which rank failed "
    "first, and why: the cause is there. After `shutdown()` and `init()` the process is usable again.",
    "membership_changed": "`MembershipChangedError`: ranks of an elastic job (`RINGCORE_ELASTIC=1`) were lost, and "
    "this one goes on. What was under way failed on all that go on; `rank()` and `size()` count them now. Go back to "
    "the last state that all have, and repeat the step.",
    "evicted": "`EvictedError`: the other ranks of an elastic job go on without this one, or it reaches too few of "
    "them to go on. After `shutdown()` and `init()` the process is usable again.",
    "shutdown": "`ShutdownError`: ringcore was shut down while an operation waited. Wait for the handles of "
    "asynchronous operations before `shutdown()`; the end of the script calls it, too.",
    "bootstrap": "`BootstrapError`: the ranks could not find or connect to each other. `ringcore env` shows what the "
    "launcher has told this process, `ringcore doctor` what works on this machine.",
    "resource": "`ResourceError`: the operating system refused memory, descriptors or sockets; the message says which, "
    "and which limit or setting makes more.",
    "protocol": "`ProtocolError`: a peer sent what no correct peer sends. Mostly the ranks run different versions of "
    "ringcore: install one version on all hosts. Else memory is corrupt: please report it.",
}
_HEAD = """# Errors

<!-- Made from tests/mistakes by `python tests/support/mistakes.py`. -->

Every exception of ringcore is a `ringcore.RingcoreError`. Its message names the operation, the tensor, the ranks and
what was seen, and says what to do. Below are the mistakes that people make, by exception, with the remedy. Each is a
test: on two ranks the script raises what is said here, with the words that are listed.
"""
_TAIL = """## Of jobs that are started from Python

What `ringcore.run`, and the like of Spark, Ray and Dask, raise in the process that has started the ranks. They are no
`RingcoreError`.

`RankError`: the function failed on a rank. `rank` is the rank that failed first, `remote_traceback` its traceback as
text, and `original` the exception itself, where it could be pickled: the remedy is that of this one. The others have
been ended.

`LaunchError`: no rank was started, or one ended without a result. The message holds what the launcher said: mostly
hosts that cannot be reached, an interpreter that is not there, or a function that calls `sys.exit`.
"""


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One script."""

    path: Path
    title: str
    kinds: tuple[str, ...]
    words: tuple[str, ...]
    remedy: str
    code: str

    @property
    def name(self) -> str:
        """Folder and file, for people."""
        return f"{self.path.parent.name}/{self.path.stem}"

    def raised_on(self, ranks: int) -> list[str]:
        """The exception of each rank."""
        return list(self.kinds) if len(self.kinds) > 1 else list(self.kinds) * ranks


def read(path: Path) -> Mistake:
    """A script and what it says of itself."""
    source = path.read_text()
    title, _, fields = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    said = dict(part.split(": ", 1) for part in fields.replace("\n    ", " ").splitlines())
    code = source.rpartition('"""\n')[2].strip()
    return Mistake(
        path, title, tuple(said["raises"].split(", ")), tuple(said["words"].split(" | ")), said["remedy"], code
    )


def read_all() -> list[Mistake]:
    """The table."""
    return [read(path) for path in sorted(FOLDER.glob("*/*.py"))]


def page() -> str:
    """What docs/errors.md is to say."""
    mistakes = read_all()
    parts = [_HEAD]
    for folder, text in _SECTIONS.items():
        parts.append(f"## {folder.replace('_', ' ').capitalize()}\n\n{text}\n")
        parts += [_entry(mistake) for mistake in mistakes if mistake.path.parent.name == folder]
    return "\n".join([*parts, _TAIL])


def _entry(mistake: Mistake) -> str:
    title = mistake.title.rstrip(".")
    says = ", ".join(f"`{word}`" for word in mistake.words)
    return f"### {title}\n\n```python\n{mistake.code}\n```\n\nSays: {says}.\n\nRemedy: {mistake.remedy}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"wrote {PAGE}\n")
