"""What the agent of one host has to know to start that host's ranks."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from typing import Any, Protocol

from ringcore.launcher._frames import Kind, ProtocolError, table_of

# When a rank leaves that is told to: its program, which nobody knows here, says which of these.
LEAVING = "at the next commit, or without commits after the step or at once"


@dataclasses.dataclass(frozen=True)
class RankJob:
    """One rank, or a server: its number in the job, the variables that only it gets, and a command of its own."""

    rank: int
    environ: dict[str, str]
    argv: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class HostJob:
    """The ranks of one host and what they have in common.

    Attributes:
        ranks: In the order of local ranks.
        argv: The command.
        cwd: Working directory.
        environ: Variables over those of the agent's own environment.
        blobs: Variable -> bytes. Each rank inherits a descriptor to read the bytes from, and the variable
            holds its number; so keys and pickled functions are in no argv, environment or file.
        wants_result: Give each rank a descriptor to write to, RINGCORE_RESULT_FD.
        stdin_rank: The rank that reads the launcher's standard input.
        speaks: Give each rank a descriptor to speak with the launcher through, RINGCORE_LAUNCHER_FD.
        sharers: Ranks that this host is to have, those of other agents included; None: these.
        host: What the user calls this host; None: what it calls itself.
        silence_limit_s: An agent that hears nothing from the launcher for so long ends its ranks.
        drain_when: A command that succeeds once this host is about to go: then its ranks leave an elastic job.
    """

    ranks: tuple[RankJob, ...]
    argv: tuple[str, ...]
    cwd: str
    environ: dict[str, str]
    blobs: dict[str, bytes]
    wants_result: bool = False
    stdin_rank: int | None = None
    speaks: bool = False
    sharers: int | None = None
    host: str | None = None
    silence_limit_s: float = 30.0
    drain_when: tuple[str, ...] | None = None

    def to_json(self) -> bytes:
        """Encode for the way to a remote agent."""
        fields: dict[str, Any] = dataclasses.asdict(self)
        fields["blobs"] = {name: base64.b64encode(b).decode() for name, b in self.blobs.items()}
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, text: bytes) -> HostJob:
        """Decode what `to_json` made.

        Raises:
            ProtocolError: It is no job, or that of another version of ringcore.
        """
        fields = table_of(text, ranks=list, argv=list, cwd=str, environ=dict, blobs=dict)
        try:
            fields["ranks"] = tuple(RankJob(**rank) for rank in fields["ranks"])
            fields["argv"] = tuple(map(os.fspath, fields["argv"]))
            fields["blobs"] = {name: base64.b64decode(b) for name, b in fields["blobs"].items()}
            return cls(**fields)
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"the launcher sent a job that this agent does not understand ({error})") from None


@dataclasses.dataclass(frozen=True)
class RankExit:
    """How a rank ended.

    Attributes:
        code: As subprocess tells it; negative: a signal.
        error_text: Of the error file that torch's `record` writes.
        lost_rank: The rank whose end made an operation of this one fail, as this one itself has said.
    """

    code: int
    error_text: str | None = None
    lost_rank: int | None = None

    @classmethod
    def from_json(cls, text: bytes) -> RankExit:
        """Decode what an agent tells.

        Raises:
            ProtocolError: It tells something else.
        """
        fields = table_of(text, code=int, error_text=(str, type(None)), lost_rank=(int, type(None)))
        return cls(fields["code"], fields.get("error_text"), fields.get("lost_rank"))


class Events(Protocol):
    """What an agent tells, wherever it runs."""

    def on_output(self, rank: int, kind: Kind, data: bytes) -> None:
        """A rank wrote to its standard output, standard error or result descriptor."""

    def on_exit(self, rank: int, how: RankExit) -> None:
        """A rank has ended; all that it wrote was told before."""

    def on_note(self, text: str) -> None:
        """Something that a user who asked for details wants to know."""

    def on_done(self) -> None:
        """No process of this agent is left."""
