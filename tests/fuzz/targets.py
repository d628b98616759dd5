"""What parses bytes that others have written, each as a function of bytes that raises nothing but a flaw.

`nox -s fuzz` lets atheris drive them; `test_fuzz.py` runs each over its corpus and over mutations of that. A crash that
was found becomes a file in the corpus.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from ringcore._errors import BootstrapError, InvalidArgument
from ringcore.bootstrap import auth, board, contacts
from ringcore.commands import _trace
from ringcore.commands._findings import find
from ringcore.commands._trace_page import page
from ringcore.commands.timeline import report
from ringcore.launcher import _config, _frames, _hosts, _options, _remote, _summary
from ringcore.launcher._job import HostJob, RankExit
from ringcore.launcher._layout import JobLayout
from ringcore.launcher.elastic.discovery import parse as parse_hosts
from ringcore.launcher.external import tickets
from ringcore.launcher.node import own_job
from ringcore.network import read as read_topology
from ringcore.planning import Plan
from ringcore.planning.msccl import parse_msccl

KEY = bytes(range(32))
_DIGEST = hmac.digest
_NODE = _options.parse(["--nnodes=1:2", "--rdzv-endpoint=127.0.0.1:1", "true"], {})


class FlawError(AssertionError):
    """Something is wrong with what was fuzzed, though it raised nothing."""


def require(holds: bool, what: str) -> None:
    """What has to be the case whatever the input."""
    if not holds:
        raise FlawError(what)


class Input:
    """Takes numbers and pieces from the front of the input; zeros and nothing behind its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bool__(self) -> bool:
        return bool(self._data)

    def number(self) -> int:
        return (self.piece(1) or b"\0")[0]

    def piece(self, size: int) -> bytes:
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def rest(self) -> bytes:
        return self.piece(len(self._data))


def acceptor(data: bytes) -> None:
    """Somebody dials, and may know the key, as far as `knows`: what it says comes in pieces."""
    source = Input(data)
    knows = source.number()
    acceptance = auth.Acceptance(KEY)
    hello = auth.Hello(auth.MESH, 0, 1, 2).pack() + bytes(32)
    said = hello if knows & 1 else b""
    answer = b""
    with contextlib.suppress(BootstrapError):
        while (source or said) and acceptance.hello is None:
            piece = said + source.piece(source.number())
            said = b""
            require(acceptance.wanted_bytes() > 0, "who is not let in yet may go on")
            got = acceptance.feed(piece[: acceptance.wanted_bytes()])
            if got and not answer:
                answer = got
                if knows & 2:
                    said = _DIGEST(KEY, b"dialler" + hello + answer[:32], "sha256")
                    flipped = source.number()
                    said = bytes([*said[:-1], said[-1] ^ flipped])
    if acceptance.hello is not None:
        require(bool(knows & 1 and knows & 2), "who does not know the key is not let in")


def dialler(data: bytes) -> None:
    """Somebody answers who does not know the key."""
    source = Input(data)
    introduction = auth.Introduction(KEY, auth.Hello(auth.MESH, 0, 1, 2))
    with contextlib.suppress(BootstrapError):
        while source and not introduction.secret:
            introduction.feed(source.piece(min(introduction.wanted_bytes(), source.number())))
    require(not introduction.secret, "who does not know the key has no secret with this rank")


def contact(data: bytes) -> None:
    """What a rank tells about itself."""
    with contextlib.suppress(contacts.ContactError):
        told = contacts.parse_contact(data)
        require(isinstance(told["rank"], int) and isinstance(told["version"], str), "a contact has what it must have")
        again = contacts.decode_answer(contacts.encode_answer({"contacts": [told]}))
        require(again["contacts"] == [told], "a contact is the same behind its journey")


def posts(data: bytes) -> None:
    """A guest of a board asks for anything."""
    with contextlib.suppress(BootstrapError, ValueError, RecursionError):
        request = json.loads(data)
        match request:
            case {"watch": _}:
                return  # it waits for what others post
        served = object.__new__(board.Board)
        served._posted, served._version = {}, 0
        import threading

        served._changed = threading.Condition()
        answer = board.Board._answer(served, object(), request)  # type: ignore[arg-type]
        require(isinstance(answer, dict), "a request has an answer")


class _Events:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None

    def on_exit(self, rank: int, how: RankExit) -> None:
        require(isinstance(how.code, int), "an exit code is a number")

    def on_hello(self, hello: dict[str, object]) -> None:
        require(isinstance(hello, dict), "an agent tells of its host in a table")


class _Loop:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def agent_frames(data: bytes) -> None:
    """An agent says anything to the launcher: frames that are cut anywhere, sealed or behind a greeting of a shell."""
    source = Input(data)
    mode = source.number()
    seals = _frames.Seals.of_launcher(KEY) if mode & 1 else None
    reader = _frames.FrameReader(expect_magic=bool(mode & 2), seal=None if seals is None else seals.received)
    host = _remote.FarHost(_Loop(), "node1", _Events(), 30.0)  # type: ignore[arg-type]
    host._ranks = frozenset(range(4))
    with contextlib.suppress(_frames.ProtocolError):
        if mode & 2 and mode & 4:
            reader.feed(_frames.MAGIC)
        while source:
            if mode & 8:  # whole frames
                kinds = list(_frames.Kind)
                payload_kind = kinds[source.number() % len(kinds)]
                payload = source.piece(source.number())
                frame = _frames.HEADER.pack(payload_kind, source.number(), len(payload)) + payload
            else:
                frame = source.piece(1 + source.number())
            for kind, rank, payload in reader.feed(frame):
                require(seals is None, "nothing that is not sealed is taken")
                host._on_frame(kind, rank, payload)


def agent_job(data: bytes) -> None:
    """What comes to an agent as a job."""
    with contextlib.suppress(_frames.ProtocolError):
        job = HostJob.from_json(data)
        require(all(isinstance(word, str) for word in job.argv), "a command is of words")
        own = own_job(job, _NODE, JobLayout(1, 1, ()), KEY)
        require(own.argv == ("true",) and own.cwd == os.getcwd(), "a node runs what it was started with")
        names = {*own.environ, *own.ranks[0].environ}
        require(not {"PATH", "LD_PRELOAD", "PYTHONPATH"} & names, "and with its own variables")


# In memory: a file a run is the most of its time.
_FILE = Path("/dev/shm", f"ringcore-fuzz-{os.getpid()}")


def _as_file(data: bytes, ending: str) -> str:
    path = _FILE.with_name(_FILE.name + ending)
    path.write_bytes(data)
    return str(path)


def config(data: bytes) -> None:
    """A file of options."""
    source = Input(data)
    ending = (".json", ".toml", ".yaml")[source.number() % 3]
    known = {"--np": True, "--verbose": False, "--env": True}
    path = _as_file(source.rest(), ending)
    try:
        with contextlib.suppress(_config.ConfigError):
            words = _config.read(path, known)
            require(all(word.split("=")[0] in known for word in words), "only options that exist")
    finally:
        os.unlink(path)


# What no host may have in its name: what a shell understands, or ssh takes for an option.
_DANGEROUS = re.compile(r"[\s;&|`$(){}<>\\'\"!*?#~=,/\x00-\x1f]|^-|@-")


def hosts(data: bytes) -> None:
    """A list of hosts, and a file of them."""
    source = Input(data)
    as_file = source.number() & 1
    path = _as_file(source.rest(), ".hosts")
    try:
        with contextlib.suppress(_hosts.HostError):
            text = Path(path).read_bytes().decode(errors="replace")
            found = _hosts.parse_hostfile(path) if as_file else _hosts.parse_hosts(text)
            for host in found:
                require(not _DANGEROUS.search(host.name), f"a host is called {host.name!r}")
                require(host.slots > 0, "a host has slots")
    finally:
        os.unlink(path)


def discovery(data: bytes) -> None:
    """What a script prints that tells the hosts."""
    with contextlib.suppress(_hosts.HostError):
        for host in parse_hosts(data, 2):
            require(not _DANGEROUS.search(host.name), f"a host is called {host.name!r}")
            require(host.slots > 0, "a host has slots")


def error_file(data: bytes) -> None:
    """What a rank leaves in its error file, as torch's `record` or anybody else writes it."""
    text = data.decode(errors="replace")
    lines = _summary._recorded_traceback(text)
    require(all(isinstance(line, str) for line in lines), "a traceback is of lines")
    failure = _summary.Failure(1, RankExit(1, text), "", by_launcher=False)
    require("message" in json.loads(_summary.error_file_text(failure)), "the job's error file has a message")


def ticket(data: bytes) -> None:
    """What a scheduler carries to a task."""
    with contextlib.suppress(tickets.TicketError):
        read = tickets.Ticket.unpack(data)
        require(isinstance(read.key, bytes) and isinstance(read.rank, int), "a ticket has a key and a rank")


def msccl(data: bytes) -> None:
    """A schedule in XML that somebody has published."""
    with contextlib.suppress(InvalidArgument):
        plan = Plan(parse_msccl(data))
        require(Plan.parse(plan.to_json()) == plan, "a plan is the same behind its journey")
        plan.check()


def topology(data: bytes) -> None:
    """A file about what lies between hosts."""
    with contextlib.suppress(InvalidArgument):
        found = read_topology(data.decode(errors="replace"))
        again = read_topology(found.to_json())
        require(again.hosts == tuple(read_topology(again.to_json()).hosts), "what is written is read as the same")
        require(bool(again.hosts) and len(again.links) == len(found.links), "what is read can be written")


def timeline(data: bytes) -> None:
    """What is said to be a timeline."""
    path = Path(_as_file(data, ".timeline"))
    try:
        with contextlib.suppress(_trace.TraceError):
            findings = find(_trace.read([path]))
            require(all(isinstance(line, str) for line in report(findings)), "a report is of lines")
            picture = page(findings, "timeline")
            require(not re.search('="-?(nan|inf)|<script', picture), "a picture has numbers and no script")
    finally:
        path.unlink()


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        acceptor,
        dialler,
        contact,
        posts,
        agent_frames,
        agent_job,
        config,
        hosts,
        discovery,
        error_file,
        ticket,
        msccl,
        topology,
        timeline,
    )
}
