"""
The compiled engine of ringcore. Use the package `ringcore`; this module is its private part.
"""

from collections.abc import Sequence
from typing import Annotated

from numpy.typing import NDArray


DTYPES: dict = ...

REDUCE_OPS: dict = ...

COLLECTIVES: dict = ...

def kernel_instruction_set() -> str:
    """The instruction set that the reduction kernels use on this processor."""

def describe_writable(array: Annotated[NDArray, dict(device='cpu')]) -> tuple:
    """
    (address, shape, dtype code or -1, contiguous) of a writable array in host memory. TypeError for anything else.
    """

def describe(array: Annotated[NDArray, dict(device='cpu', writable=False)]) -> tuple:
    """The same for an array that may be read-only."""

class HostMemory:
    """The memory that this rank shares with the other ranks of its host."""

    @staticmethod
    def create(rank: int, size: int, arena_bytes: int, reserved_bytes: int) -> HostMemory: ...

    @property
    def fd(self) -> int: ...

    def allocate(self, bytes: int) -> RegisteredMemory:
        """
        Registered memory: the other ranks of the host reduce from and into it without a copy.
        """

class RegisteredMemory:
    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def view(self) -> Annotated[memoryview, dict(dtype='uint8', shape=(None,))]:
        """A writable memoryview that keeps the memory alive."""

class Operation:
    """A submitted operation."""

    @property
    def done(self) -> bool: ...

    @property
    def result(self) -> Annotated[memoryview, dict(dtype='uint8', shape=(None,))]:
        """The bytes of what an allgather, alltoall or reducescatter produced."""

    @property
    def result_rows(self) -> list[int]: ...

    @property
    def last_joined(self) -> int: ...

class Runtime:
    """The engine of this rank, connected to its peers."""

    def __init__(self, rank: int, size: int, epoch: int, memory: HostMemory | None, peers: Sequence[tuple[int, str, Sequence[int], int]], host_of: Sequence[int], *, fusion_threshold_bytes: int, eager_limit_bytes: int, deterministic: bool, timeout_s: float, stall_warning_s: float, heartbeat_s: float, spin_s: float) -> None: ...

    def submit(self, collective: int, name: str, dtype: int, op: int, shape: Sequence[int], input: int, output: int, root: int, prescale: float, postscale: float, process_set: int, priority: int, splits: Sequence[int], group: str, group_size: int) -> Operation: ...

    def run(self, collective: int, name: str, dtype: int, op: int, shape: Sequence[int], input: int, output: int, root: int, prescale: float, postscale: float, process_set: int, splits: Sequence[int], alone: bool) -> Operation:
        """
        Submits and waits. `alone`: this process has no other thread that might use the engine.
        """

    def join(self, process_set: int) -> Operation: ...

    def wait(self, operation: Operation, limit_s: float, alone: bool) -> bool: ...

    def leave(self, reason: str) -> None: ...

    def add_process_set(self, ranks: Sequence[int]) -> int: ...

    def remove_process_set(self, process_set: int) -> None: ...

    def start_timeline(self) -> None: ...

    def stop_timeline(self) -> list:
        """
        Spans since start_timeline: (name, activity, lane, channel or -1, begin ns, end ns, bytes).
        """

    def wait_for_attention(self, limit_s: float) -> bool: ...

    def take_attention(self) -> tuple[list[str], bool]:
        """(warnings to log, whether a peer wants this rank's stacks)"""

    def reply_stacks(self, text: str) -> None: ...

    def transports(self) -> list[str]:
        """The transport to each rank: 'self', 'shm' or 'tcp'."""
