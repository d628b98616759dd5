"""For authors of adapters: everything of the core that an adapter uses, beside the public API of `ringcore`.

The collectives on raw memory, arrays as the engine sees them, this process's place in its job, and what all adapters
share. An adapter imports nothing else of the core.
"""

from ringcore._native import Buffer, Handle, UnsupportedArray
from ringcore._objects import unpickle
from ringcore._version import __version__
from ringcore.adapter.arguments import check_arguments, start_progress_check
from ringcore.adapter.asynchronous import Agreement, AsynchronousSums, Offer, Verdict, Word, check_bounds
from ringcore.adapter.asynchronous_steps import Asynchronous, AsynchronousSteps, as_array, write_arrays
from ringcore.adapter.averages import start_averages
from ringcore.adapter.batch_norm import Statistics, batch_statistics
from ringcore.adapter.buffer import DTYPE_NAMES, as_buffer, empty, from_bytes
from ringcore.adapter.bystanders import add_bystanders
from ringcore.adapter.collectives import (
    COLLECTIVE_CODES,
    DTYPE_CODES,
    ReduceOp,
    allgather,
    allocate,
    allreduce,
    allreduce_in_place,
    alltoall,
    barrier,
    broadcast,
    capi,
    check,
    check_op,
    copy,
    gather,
    join,
    name_or_next,
    reduce,
    reducescatter,
    require_same_version,
    root_index,
    scatter,
)
from ringcore.adapter.compression import (
    QUANTISED,
    Choices,
    Compressor,
    Exchanges,
    exchange_of,
    fed_back,
    reduce_compressed,
    refuse_quantised_shares,
    round_to_quantised,
)
from ringcore.adapter.dealings import Dealt, Part, dealt
from ringcore.adapter.device import DeviceArray
from ringcore.adapter.error_feedback import ErrorFeedback
from ringcore.adapter.exchange import Exchange, check_exchange_options
from ringcore.adapter.framework import Finish, Framework
from ringcore.adapter.frameworks import import_framework
from ringcore.adapter.gradients import (
    SMALL_BYTES,
    buckets,
    check_gradient_options,
    check_outer_steps,
    dealt_evenly,
    dealt_out,
    has_room_to_overlap,
    keep_freed_memory,
    priority_of,
)
from ringcore.adapter.objects import gather_bytes
from ringcore.adapter.refusals import refuse, refusing, title_of
from ringcore.adapter.served import Placed, Served, check_servers
from ringcore.adapter.sparse import check_rows, start_allreduce_of_rows
from ringcore.adapter.starts import first, share_of
from ringcore.adapter.tuning import Tuner, tell_untuned
from ringcore.adapter.verbs import Verbs
from ringcore.adapter.virtual import Node, SumTree, nodes_of, seed_of, share_out
from ringcore.adapter.weights import abstains, check_weights, comparable, different_weights, differing, hash_of
from ringcore.environment.libraries import version_here
from ringcore.environment.mpi import launched_by_mpi
from ringcore.environment.placement import Placement, find_placement, rank_and_size
from ringcore.environment.settings import Settings, check_setting
from ringcore.job.agreement import await_devices

# Functions that `shutdown` calls while the engine still runs, at the end of the process too. For frameworks that work
# in the background: what they have begun needs this rank.
from ringcore.job.lifecycle import after_init, before_shutdown
from ringcore.job.process_sets import (
    ProcessSet,
    add_process_set_of_members,
    global_process_set,
    process_set_id_of,
)
from ringcore.job.state import Context, context, followed, goes_back, is_elastic
from ringcore.job.statistics import drop_step, optimizer_step
from ringcore.job.told_errors import as_ringcore_error

__all__ = [
    "COLLECTIVE_CODES",
    "DTYPE_CODES",
    "DTYPE_NAMES",
    "QUANTISED",
    "SMALL_BYTES",
    "Agreement",
    "Asynchronous",
    "AsynchronousSteps",
    "AsynchronousSums",
    "Buffer",
    "Choices",
    "Compressor",
    "Context",
    "Dealt",
    "DeviceArray",
    "ErrorFeedback",
    "Exchange",
    "Exchanges",
    "Finish",
    "Framework",
    "Handle",
    "Node",
    "Offer",
    "Part",
    "Placed",
    "Placement",
    "ProcessSet",
    "ReduceOp",
    "Served",
    "Settings",
    "Statistics",
    "SumTree",
    "Tuner",
    "UnsupportedArray",
    "Verbs",
    "Verdict",
    "Word",
    "__version__",
    "abstains",
    "add_bystanders",
    "add_process_set_of_members",
    "after_init",
    "allgather",
    "allocate",
    "allreduce",
    "allreduce_in_place",
    "alltoall",
    "as_array",
    "as_buffer",
    "as_ringcore_error",
    "await_devices",
    "barrier",
    "batch_statistics",
    "before_shutdown",
    "broadcast",
    "buckets",
    "capi",
    "check",
    "check_arguments",
    "check_bounds",
    "check_exchange_options",
    "check_gradient_options",
    "check_op",
    "check_outer_steps",
    "check_rows",
    "check_servers",
    "check_setting",
    "check_weights",
    "comparable",
    "context",
    "copy",
    "dealt",
    "dealt_evenly",
    "dealt_out",
    "different_weights",
    "differing",
    "drop_step",
    "empty",
    "exchange_of",
    "fed_back",
    "find_placement",
    "first",
    "followed",
    "from_bytes",
    "gather",
    "gather_bytes",
    "global_process_set",
    "goes_back",
    "has_room_to_overlap",
    "hash_of",
    "import_framework",
    "is_elastic",
    "join",
    "keep_freed_memory",
    "launched_by_mpi",
    "name_or_next",
    "nodes_of",
    "optimizer_step",
    "priority_of",
    "process_set_id_of",
    "rank_and_size",
    "reduce",
    "reduce_compressed",
    "reducescatter",
    "refuse",
    "refuse_quantised_shares",
    "refusing",
    "require_same_version",
    "root_index",
    "round_to_quantised",
    "scatter",
    "seed_of",
    "share_of",
    "share_out",
    "start_allreduce_of_rows",
    "start_averages",
    "start_progress_check",
    "tell_untuned",
    "title_of",
    "unpickle",
    "version_here",
    "write_arrays",
]
