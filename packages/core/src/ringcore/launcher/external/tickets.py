"""What a process has to be told to be a rank, as bytes that a cluster can carry."""

from __future__ import annotations

import dataclasses
import json
import platform
import socket

from ringcore._errors import BootstrapError
from ringcore._version import __version__


class TicketError(BootstrapError):
    """A ticket cannot be used in this process."""


@dataclasses.dataclass(frozen=True)
class Ticket:
    """A rank's place in a job.

    Attributes:
        rank: Its number.
        size: Number of ranks.
        job: The job's name.
        address: Where the ranks meet; or the launcher, which tells where that is.
        key: The job's key: whoever has it can take part, and have code run. It must go by a channel that is trusted.
        environ: Variables for the rank.
        elastic: Of an elastic job, which takes one rank after the other for the ticket.
    """

    rank: int
    size: int
    job: str
    address: str
    key: bytes = dataclasses.field(repr=False)
    environ: dict[str, str] = dataclasses.field(default_factory=dict, repr=False)
    elastic: bool = False

    def pack(self) -> bytes:
        """As bytes; not a pickle, so that another version of ringcore can tell that it is another version."""
        fields = {**dataclasses.asdict(self), "key": self.key.hex()}
        return json.dumps({"here": here(), "ticket": fields}).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Ticket:
        """Read what `pack` made.

        Raises:
            TicketError: It is no ticket, or that of another version of ringcore.
        """
        try:
            told = json.loads(data)
            problem = difference(dict(told["here"]), here())
            if problem is not None:
                raise TicketError(problem)
            fields = told["ticket"]
            return cls(**{**fields, "key": bytes.fromhex(fields["key"])})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            if isinstance(error, TicketError):
                raise
            raise TicketError("these bytes are no ticket: take what job.ticket(rank) gives") from None


def here() -> dict[str, str]:
    """What has to be the same everywhere, and where this is."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"host": socket.gethostname(), "ringcore": __version__, "Python": python}


def difference(there: dict[str, str], own: dict[str, str]) -> str | None:
    """Says what two places have in different versions; `None` if nothing."""
    for name in ("ringcore", "Python"):
        if there.get(name) != own.get(name):
            return (
                f"{there.get('host')} has {name} {there.get(name)}, but {own.get('host')} has {name} {own.get(name)}; "
                "install the same version on all hosts"
            )
    return None
