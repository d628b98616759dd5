"""
The compiled engine of ringcore. Use the package `ringcore`; this module is its private part.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any


DTYPES: dict = ...

REDUCE_OPS: dict = ...

COMPRESSIONS: dict = {'none' : 0, 'int8' : 1, 'int4' : 2}

COLLECTIVES: dict = ...

def kernel_instruction_set() -> str:
    """The instruction set that the reduction kernels use on this processor."""

class Buffer:
    """
    A contiguous piece of memory: `address` of the first element, `shape` with the outermost extent first, `dtype` as the engine's code, `owner`, which keeps the memory alive. `device`: the number of the GPU that it lies on, -1 for the host; `stream`: the handle of that GPU's stream in which it is made.
    """

    def __init__(self, address: int, shape: Sequence[int], dtype: int, owner: object | None, device: int = -1, stream: int = 0) -> None: ...

    @property
    def address(self) -> int: ...

    @property
    def shape(self) -> tuple: ...

    @property
    def dtype(self) -> int: ...

    @property
    def owner(self) -> object: ...

    @property
    def device(self) -> int: ...

    @property
    def stream(self) -> int: ...

    @property
    def contiguous(self) -> bool: ...

def describe(array: object, writable: bool) -> Buffer:
    """
    The array as a Buffer; its dtype may be -1, and it may be not contiguous. TypeError for what is no array in host memory, or may not be written where `writable`.
    """

class UnsupportedArray(TypeError):
    pass

def copy(source: object, target: object) -> None:
    """
    Copies an array into memory that is reduced later, past the caches where that is quicker.
    """

def round_to_quantised(array: object, compression: int) -> None:
    """
    Makes of the values, in place, what a rank gets that they are sent to with this compression.
    """

def orthonormalise(matrix: object) -> None:
    """
    Makes the rows of a matrix orthonormal, in place, with the same bits on every processor.
    """

def multiply_narrow(left: object, right: object, begin: int, target: object) -> None:
    """
    target[i, j] = sum of left[k, begin + i] * right[k, j] over k, with the same bits on every processor.
    """

class HostMemory:
    """The memory that this rank shares with the other ranks of its host."""

    @staticmethod
    def create(rank: int, size: int, arena_bytes: int, fusion_bytes: int) -> HostMemory:
        """
        `arena_bytes`: 0 for the usual size. `fusion_bytes`: of a buffer that small tensors are packed in, of which there are several.
        """

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

def keep_freed_memory(largest_block_bytes: int, kept_bytes: int) -> None:
    """
    glibc: blocks up to this size come from the heap, and so much stays free at its top.
    """

def hash_of(address: int, nbytes: int) -> int:
    """Of so many bytes of this process's memory: XXH64."""

class MpiWorld:
    """The ranks of an MPI communicator, and the MPI that connects them."""

    @staticmethod
    def open(library: str, shims: str, fortran_comm: int | None, limit_s: float) -> MpiWorld:
        """
        Opens an MPI library with the shim for it from the folder `shims`, initialises MPI if nobody has, and duplicates the communicator (None: MPI_COMM_WORLD). Every rank of it calls this.
        """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def version(self) -> str:
        """What the library calls itself."""

    def exchange(self, own: bytes, limit_s: float) -> list[bytes]:
        """What every rank gave, by rank. Every rank calls this."""

class DeviceMemory:
    """
    Memory of a GPU. It is given back in its stream: behind what was given to that before.
    """

    def __init__(self, device: int, nbytes: int, stream: int) -> None: ...

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def device(self) -> int: ...

def set_library_paths(cuda: Sequence[str], nccl: Sequence[str], nvrtc: Sequence[str]) -> None:
    """
    Where NVIDIA's libraries may be; without effect on those that are open already.
    """

def library_status() -> list[tuple[str, str, str, str]]:
    """
    (name, path, version, why it cannot be used) of each of NVIDIA's libraries.
    """

def device_of(address: int) -> int:
    """The number of the GPU that memory lies on."""

def current_device() -> int:
    """The number of the GPU that this thread works on."""

def set_openssl_library(path: str) -> None:
    """The libssl to use, before the first use; else the system's."""

def tls_library() -> str:
    """
    Opens the OpenSSL that encrypts between hosts; its version and its file. Raises ResourceError.
    """

def use_kernel_tls(wanted: bool) -> None:
    """
    Whether connections from now on have the kernel encrypt what they send.
    """

def kernel_tls_refusal() -> str:
    """
    Why the kernel cannot encrypt what connections send; empty where it can.
    """

class Handle:
    """A submitted operation, or a group of them."""

    def done(self, timeout_s: float = 0.0) -> bool:
        """
        Whether it has ended, successfully or not, so that `synchronize` will not block; within `timeout_s` from now.
        """

    def landed(self) -> bool:
        """
        Whether it has ended on the GPU as well: `done` tells there that it was launched.
        """

    def wait(self, timeout_s: float = float('inf')) -> bool:
        """
        Waits until it has ended: True. False when `timeout_s` has passed. Raises why it failed, which is the same on every rank.
        """

    def synchronize(self) -> Any:
        """
        Waits until it has ended and returns its result. Raises why it failed, which is the same on every rank.
        """

    @staticmethod
    def of_nothing(result: object | None) -> Handle:
        """Of an empty group: it has ended."""

    def result(self, index: int = 0) -> Annotated[memoryview, dict(dtype='uint8', shape=(None,))]:
        """
        The bytes of what a gather, alltoall or scatter produced; of a group's tensor `index`.
        """

    def device_result(self, index: int = 0) -> DeviceMemory:
        """The same of tensors on a GPU. Once: it is handed over."""

    def rows(self, index: int = 0) -> list[int]:
        """
        The rows that came from each rank, in the result of a gather, alltoall or scatter.
        """

    def adasum_into(self, index: int, target: object, scale: float) -> None:
        """
        Of an allgather of one row a rank: combines the rows by Adasum into `target`.
        """

    @property
    def name(self) -> str:
        """What identifies it on all ranks; empty for one of nothing."""

    @property
    def epoch(self) -> int:
        """When it is done: the epoch of the ranks whose result it is."""

    @property
    def last_joined(self) -> int:
        """Of a join: the rank that joined last."""

MOST_PLAN_STEPS: int = 262144

class Plan:
    """A plan with all ranks' programs; see plan/forms/whole.hpp."""

    def __init__(self, generator: str, collective: int, ranks: int, serving: int, root: int, chunks: int, scratch_chunks: int, accumulates_once: bool) -> None: ...

    def append(self, rank: int, channel: int, kind: str, peer: int, sources: Sequence[tuple[int, int, int]], targets: Sequence[tuple[int, int, int]], final: bool, after_channel: int, after_step: int) -> int:
        """
        The index of the new step in its channel. Chunks are (rank, buffer, chunk).
        """

    @staticmethod
    def read(data: bytes) -> Plan:
        """Of the text or the binary form."""

    def text(self) -> str: ...

    def binary(self) -> bytes: ...

    @property
    def hash(self) -> str: ...

    def flaw(self, host_of: Sequence[int]) -> str | None:
        """What the verifier says, where the nodes are on these hosts."""

    def predict(self, host_of: Sequence[int], network: tuple[float, float, Sequence[tuple[int, int, float, float]]], message_s: float, nbytes: int) -> float:
        """Seconds until the last rank is done, see network.hpp."""

    def program(self, rank: int) -> list[list[str]]:
        """By channel: the steps of a rank in words."""

    def traffic(self, rank: int) -> tuple[int, int, list[int]]:
        """(chunks that it sends, that it receives, with whom)"""

    @property
    def steps(self) -> int: ...

    @property
    def generator(self) -> str: ...

    @property
    def collective(self) -> str: ...

    @property
    def ranks(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    @property
    def root(self) -> int: ...

    @property
    def chunks(self) -> int: ...

    @property
    def scratch_chunks(self) -> int: ...

    @property
    def inputs_ready(self) -> bool: ...

    @property
    def one_sided(self) -> bool: ...

    @property
    def accumulates_once(self) -> bool: ...

DIRECT_BYTES: int = 32768

def capi() -> int:
    """
    The address of the functions of ringcore.h, for the compiled half of an adapter.
    """

def add_bystanders_code(begin: int, end: int) -> None:
    """
    Code of a framework whose threads do nothing for the program, though a clock wakes them.
    """

TRANSPORTS: tuple = ('shm', 'tcp', 'mpi')

DIRECT_MEMBERS: int = 16

MOST_AGREED_SETS: int = 8192

PLACES_TO_COME: int = 32

DATA_LANES: int = 3

def connected_at_start(host_of: Sequence[int], rank: int) -> list[int]:
    """
    With whom a rank is connected before anybody needs it: with all others in jobs of up to DIRECT_MEMBERS.
    """

class Runtime:
    """The engine of this rank, connected to its peers."""

    def __init__(self, rank: int, size: int, epoch: int, memory: HostMemory | None, peers: Sequence[tuple[int, str, Sequence[int], int, Sequence[bytes]]], host_of: Sequence[int], local_rank: int, local_size: int, *, fusion_threshold_bytes: int, partition_bytes: int, credit_bytes: int, eager_limit_bytes: int, deterministic: bool, timeout_s: float, stall_warning_s: float, heartbeat_s: float, elastic: bool, elastic_timeout_s: float, has_witness: bool, start_timeout_s: float, spin_s: float, nccl_shares_gpus: bool, mpi: MpiWorld | None = None, joins: bool = False, network: tuple[float, float, Sequence[tuple[int, int, float, float]]] | None = None, servers: int = 0, aggregation: tuple[str, int, bytes, int, bool, float] | None = None) -> None: ...

    def members(self, epoch: int | None = None) -> tuple[int, list[int]]:
        """
        An epoch of an elastic job, None: the present one, and its members, by rank, as ranks of the first epoch.
        """

    def excuse(self, ranks: Sequence[int]) -> None:
        """
        These are busy with each other, for as long as it takes: others that wait for them alone do not take them for late, till all have come to an operation again.
        """

    def fail_on_change(self, fails: bool) -> None:
        """
        Whether what is under way fails when ranks are lost: the program goes back to an earlier state then. Else it is done again where that is possible.
        """

    def meet(self, peer: tuple[int, str, Sequence[int], int, Sequence[bytes]]) -> None:
        """
        Takes the descriptors: whoever is connected with this rank so, and has taken a place behind all others, wants to join the job.
        """

    def hosts_of(self, places: Sequence[int]) -> list[int]:
        """Of each place, the number of the group of ranks that share memory."""

    def arrivals(self) -> list[int]:
        """The places of those who want to join, and have met all ranks."""

    def is_turned_away(self, place: int) -> bool:
        """Whether who was met at this place, and is no member, will be none."""

    def let_in(self, place: int) -> None:
        """
        Waits until all ranks have called it and who wants the place has joined them, or cannot any more.
        """

    def become_member(self) -> None:
        """Waits until the others have let this process in."""

    def await_devices(self) -> None:
        """
        Waits until GPUs have ended what this rank has launched on them. Raises why the results are none.
        """

    @property
    def told_epoch(self) -> int:
        """
        The newest epoch of the ranks whose results a compiled program was given.
        """

    def accept_change(self, epoch: int, local_rank: int, local_size: int) -> None:
        """
        The caller knows who the members are since that epoch: what is submitted from now on is theirs.
        """

    def hear_witness(self, message: bytes) -> None:
        """What the launcher says as the witness, see Witness."""

    def lose_witness(self) -> None:
        """The launcher cannot be asked any more."""

    def check(self) -> None:
        """Raises why the engine has failed, if it has."""

    def serve(self) -> None:
        """
        On a server: takes part in what the ranks do, until all of them have left. Raises why the job has failed.
        """

    def leave(self, reason: str) -> None: ...

    def fail(self, message: str) -> None:
        """
        Fails all operations here and on the other ranks: what they wait for cannot come.
        """

    def add_process_set(self, ranks: Sequence[int], agreed: int | None = None) -> int: ...

    def remove_process_set(self, process_set: int) -> None: ...

    def add_service_thread(self, native_id: int) -> None:
        """
        A thread of Python serves this runtime: it submits nothing, so that another one may be alone.
        """

    def remove_service_thread(self, native_id: int) -> None:
        """It ends."""

    @property
    def lanes_wanted_fd(self) -> int:
        """Readable when `take_wanted_lanes` has something to give."""

    def take_wanted_lanes(self) -> list[tuple[int, int]]:
        """
        (rank, lane) for each lane over TCP that is needed for the first time now: connect it and `attach_lane` it.
        """

    def attach_lane(self, rank: int, lane: int, fds: Sequence[int], secrets: Sequence[bytes]) -> bool:
        """Takes the descriptors; false when the link is closed already."""

    def needs_lane(self, rank: int, lane: int) -> bool:
        """
        Whether something waits for the lane: what wanted it may have ended when the members changed.
        """

    def give_up_link(self, rank: int, why: str) -> None:
        """
        What was wanted of the link cannot be connected: the rank is lost, unless it has left.
        """

    def submit(self, collective: int, name: str, inputs: tuple, outputs: tuple, op: int, root: int, prescale: float, postscale: float, process_set: int, priority: int, splits: tuple, blocking: bool, result: object | None, finish: object | None, again: Handle | None = None, compression: int = 0) -> Handle:
        """
        Submits one array, or several as a group; outputs are empty where the engine allocates the result. Waits for it where `blocking`. `again`: the handle of the same group's last use, which need not be described once more; it is used up.
        """

    def allreduce_in_place(self, array: object, name: str, op: int, prescale: float, postscale: float, process_set: int) -> None:
        """Reduces one array where it lies, and waits for it: without a handle."""

    def run_into(self, collective: int, array: object, output: object, name: str, op: int, root: int, prescale: float, postscale: float, process_set: int) -> None:
        """
        Any collective of one array into another, which may be the same, and waits for it: without a handle.
        """

    def join(self, process_set: int) -> Handle: ...

    def watch(self, process_set: int, name: str, members: int) -> Handle:
        """
        Is done when so many ranks have submitted the allreduce of this name, which this one need not have done.
        """

    def refuse(self, process_set: int, name: str, why: str) -> None:
        """
        Tells the other ranks why this rank will not submit what they submit by that name; it counts as submitted.
        """

    def start_timeline(self) -> None:
        """Keeps what is recorded for take_timeline."""

    def write_timeline(self, path: str, rank: int, origin_ns: int) -> None:
        """
        Writes what is recorded to a file of this rank, as events, until stop_timeline.
        """

    @property
    def timeline_failure(self) -> str:
        """Why nothing more is written; empty: it is."""

    def take_timeline(self) -> list:
        """
        Spans since start_timeline, or the last call: (name, activity, lane, channel or -1, begin ns, end ns, bytes).
        """

    def stop_timeline(self) -> list:
        """The spans that are left, as those of take_timeline."""

    def statistics(self) -> dict:
        """
        {operations: that have ended, waits: [(title, seconds, whether all ranks have submitted it, ranks that have not)], traffic: {transport: (bytes sent, received)}}
        """

    @property
    def waited_for_others(self) -> float:
        """
        For how many seconds this rank of an elastic job has waited, with nothing more to announce, until all had announced what it had.
        """

    def wait_for_attention(self, limit_s: float) -> bool: ...

    def take_attention(self) -> tuple[list[str], bool, int | None, list[bytes]]:
        """
        (warnings to log, whether a peer wants this rank's stacks, as lost_rank, messages for the witness)
        """

    @property
    def lost_rank(self) -> int | None:
        """
        The rank whose end has made an operation of this rank fail; None: none has.
        """

    def reply_stacks(self, text: str) -> None: ...

    def transports(self) -> list[str]:
        """The transport to each rank: 'self', 'shm', 'tcp' or 'mpi'."""

    def offer_plans(self, rank: int, host_of: Sequence[int], servers: int, offers: Sequence[tuple[Plan, int, int, bool]]) -> None:
        """
        Takes (plan, least bytes, most bytes, always) into account from now on; on all ranks at once, while nothing is under way. `host_of`: of each rank, and the servers behind them, which rank 0 tells.
        """

    def plan_outcomes(self) -> list[tuple[str, str, int, float, float, float, bool]]:
        """
        (generator, collective, bytes, predicted s, measured s, of the best beside it s, whether it was chosen)
        """

class Witness:
    """
    Has half a vote on who goes on when ranks are lost; see engine/view_change.hpp.
    """

    def __init__(self, epoch: int, size: int) -> None: ...

    def receive(self, message: bytes) -> bytes | None:
        """What a rank asks, or tells; returns the answer to it, if there is one."""

    def prove_ended(self, rank: int) -> None:
        """The process of this rank is no more."""

    @property
    def ended(self) -> list[int]:
        """The ranks of the first epoch that are proven to have ended."""

    @property
    def proofs(self) -> bytes:
        """What tells a rank who has ended."""

    @property
    def asked(self) -> bool:
        """Whether ranks agree on their next epoch, and have needed its vote."""

    @property
    def view(self) -> tuple[int, list[int]]:
        """
        The epoch that it knows, and its members, by rank, as ranks of the first epoch.
        """

class CollectiveTime:
    """
    What a collective takes by one algorithm; see simulation/collective.hpp.
    """

    @property
    def algorithm(self) -> str: ...

    @property
    def parts(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    @property
    def steps(self) -> float: ...

    @property
    def program_bytes(self) -> int: ...

    @property
    def sent_bytes(self) -> int: ...

    @property
    def peers(self) -> int: ...

class AgreementTime:
    """What agreeing takes; see simulation/agreement.hpp."""

    @property
    def first_s(self) -> float: ...

    @property
    def again_s(self) -> float: ...

    @property
    def step_s(self) -> float: ...

    @property
    def step_bytes(self) -> int: ...

    @property
    def step_records(self) -> int: ...

    @property
    def neighbours(self) -> int: ...

class SimulatedNetwork:
    """A job that is not there; see simulation/network.hpp."""

    def __init__(self, ranks: int, hosts: int, bytes_per_s: float, latency_s: float, message_s: float, jitter_s: float, slow_hosts: Mapping[int, float], seed: int) -> None: ...

    @staticmethod
    def between(host_of: Sequence[int], serving: int, network: tuple[float, float, Sequence[tuple[int, int, float, float]]], message_s: float) -> SimulatedNetwork:
        """Of nodes on these hosts, the last of which serve; see network.hpp."""

    def collective(self, collective: int, nbytes: int, algorithms: Sequence[str]) -> list[CollectiveTime]:
        """The time of each algorithm, the quickest first."""

    def agreement(self, operations: int) -> AgreementTime:
        """
        The time that ranks take to agree along their tree; of a step with so many operations.
        """

class Switch:
    """A switch that adds what workers send it over UDP."""

    def __init__(self, host: str, port: int, key: bytes, *, parent: tuple[str, int] | None = None, members: int = 0, sessions: int = 64, silence_s: float = 5.0) -> None:
        """
        Listens at this address. Under a parent, (host, port), it is a worker of that one. Members: of a session; 0: as many as the job has ranks.
        """

    @property
    def address(self) -> str:
        """Where it listens: host:port."""

    def run(self) -> None:
        """Serves until a signal's handler raises."""

    def counts(self) -> tuple[int, int, int, int, int, int]:
        """
        Packets of ours, not ours, of another key, and without a session; sessions, and bytes that they hold.
        """
