"""The exceptions of ringcore: the same tree, with the same names, as in the native engine."""

from __future__ import annotations

import builtins
import re


class RingcoreError(RuntimeError):
    """Base of everything that ringcore raises. A traceback ends in the command that tells of its kind."""

    section = "errors"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        # What a traceback shows behind the message, from Python 3.11 on.
        self.__notes__ = [f"See `ringcore explain {self.section}` (docs/errors.md#{self.section})."]

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:
            words = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Error"))
            cls.section = "-".join(words).lower()
            cls.__module__ = "ringcore"  # where people find it


class NotInitializedError(RingcoreError, ValueError):
    """A function was called before `init()` or after `shutdown()`."""


class InvalidArgument(RingcoreError, ValueError):
    """An argument is wrong; found before anything was sent, so only this rank is affected."""


class MismatchError(RingcoreError, ValueError):
    """Ranks submitted things that do not fit together. Raised on every rank; the engine stays usable."""


class DuplicateNameError(RingcoreError, ValueError):
    """A name was submitted again before its first use was done."""


class DeadlockError(RingcoreError):
    """Every rank waits in an operation that another rank has not submitted.

    Raised on every rank; but where some wait in a barrier and others for something else, on those others only.
    """


class TimeoutError(RingcoreError, builtins.TimeoutError):  # noqa: A001 - the field's name for it
    """A rank did not submit an operation, or did not answer, within the limit."""


class PeerLostError(RingcoreError, ConnectionError):
    """A rank died, left, stopped answering or could not be reached."""


class ProtocolError(RingcoreError):
    """A peer sent something that no correct peer sends: different versions, or corrupt memory."""


class ResourceError(RingcoreError, OSError):
    """The operating system refused memory, descriptors or sockets."""


class ShutdownError(RingcoreError):
    """ringcore was shut down while an operation waited."""


class MembershipChangedError(RingcoreError):
    """Ranks of an elastic job were lost, and the others go on.

    What was under way failed on all of them. When this is raised, `rank()` and `size()` are those of the ranks that go
    on.
    """


class EvictedError(RingcoreError, ConnectionError):
    """The other ranks of an elastic job go on without this one, or it reaches too few of them to go on."""


class BootstrapError(RingcoreError, ConnectionError):
    """The ranks could not find or connect to each other."""


RingcoreError.__module__ = "ringcore"
