"""What a training job has to know of the compute job that prepares its data, and the file that tells it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ringcore_tensorflow.data_service.client import ComputeClient

_SIDES = ("training", "compute")
_POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """How the data service is laid out, and where its two jobs find each other.

    Attributes:
        dispatchers: TensorFlow's DispatchServers: one for all ranks, or one for each.
        workers_per_dispatcher: TensorFlow's WorkerServers of each; every process of the compute job has one.
        dispatcher_side: The job that the dispatchers are in, "training" or "compute".
        address: Where the two jobs meet.
        key: Whoever has it can take part.
        timeout: Seconds that either job waits for what the other one has to start.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    address: str
    key: bytes = dataclasses.field(repr=False)
    timeout: float = 60

    def __post_init__(self) -> None:
        if self.dispatchers < 1 or self.workers_per_dispatcher < 1:
            raise ValueError(
                f"a data service has at least one dispatcher and one worker for it, not {self.dispatchers} and "
                f"{self.workers_per_dispatcher}"
            )
        if self.dispatcher_side not in _SIDES:
            raise ValueError(f"dispatcher_side is one of {', '.join(_SIDES)}, not {self.dispatcher_side!r}")

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """A connection to where the jobs meet.

        Args:
            verbose: 2 and more say what is done.

        Raises:
            RingcoreError: The compute job is not there (any more).
        """
        return ComputeClient(self.address, self.key, self.timeout, verbose=verbose > 1)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; with the key."""
        return {**dataclasses.asdict(self), "key": self.key.hex()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> TfDataServiceConfig:
        """What `to_dict` made."""
        return cls(**{**fields, "key": bytes.fromhex(fields["key"])})

    def write(self, filename: str | os.PathLike[str]) -> None:
        """Write it to a file that only this user can read, as it has the key. Nobody sees half of it."""
        path = Path(filename)
        descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
        try:
            with open(descriptor, "w") as file:
                json.dump(self.to_dict(), file)
            os.replace(new, path)
        except BaseException:
            os.unlink(new)
            raise

    @classmethod
    def read(
        cls, filename: str | os.PathLike[str], wait_for_file_creation: bool = False, timeout: float = 600
    ) -> TfDataServiceConfig:
        """Read what `write` wrote.

        Args:
            filename: The file.
            wait_for_file_creation: Wait until it is there.
            timeout: Seconds to wait at most.

        Raises:
            FileNotFoundError: It is not there, or has not come in time.
            ValueError: It is another file.
        """
        path = Path(filename)
        deadline = time.monotonic() + (timeout if wait_for_file_creation else 0)
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            with contextlib.suppress(OSError):
                os.listdir(path.parent)  # makes NFS look again
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"there is no {path}: the compute job writes it (python -m "
                f"ringcore_tensorflow.data_service.compute_worker {path}), to a folder that both jobs see"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no file of a compute job: {error}") from error
