"""What Horovod's modules, functions and arguments are called in ringcore: tables for `ringcore migrate`."""

from __future__ import annotations

# Horovod's module -> the one that has its names here.
MODULES = {
    "horovod": "ringcore",
    "horovod.common.exceptions": "ringcore",
    "horovod.common.process_sets": "ringcore",
    "horovod.torch": "ringcore_torch",
    "horovod.torch.elastic": "ringcore_torch.elastic",
    "horovod.torch.elastic.sampler": "ringcore_torch.elastic",
    "horovod.torch.elastic.state": "ringcore_torch.elastic",
    "horovod.tensorflow": "ringcore_tensorflow",
    "horovod.tensorflow.elastic": "ringcore_tensorflow.elastic",
    "horovod.tensorflow.data.compute_service": "ringcore_tensorflow.data_service",
    "horovod.runner.common.util.env": "ringcore.adapter",
    "horovod.mxnet": "ringcore_mxnet",
    "horovod.mxnet.elastic": "ringcore_mxnet.elastic",
    "horovod.spark": "ringcore_spark",
    "horovod.spark.keras": "ringcore_spark.keras",
    "horovod.spark.torch": "ringcore_spark.torch",
    "horovod.spark.lightning": "ringcore_spark.lightning",
    "horovod.spark.common.store": "ringcore_spark.store",
    "horovod.spark.common.backend": "ringcore_spark.ml.backend",
    **{
        f"{keras}{inside}": f"ringcore_keras{inside}"
        for keras in ("horovod.keras", "horovod.tensorflow.keras")
        for inside in ("", ".callbacks", ".elastic")
    },
    # All of their names are in the adapter itself.
    **{
        f"horovod.{framework}.{inside}": f"ringcore_{framework}"
        for framework in ("torch", "tensorflow", "mxnet")
        for inside in ("mpi_ops", "compression", "functions", "optimizer", "sync_batch_norm")
    },
}

# Names that are another one here, in whichever module: of the second kind `module.name` in full.
RENAMED = {
    "horovod.runner.common.util.env.get_env_rank_and_size": "rank_and_size",
    "horovod.spark.lightning.TorchEstimator": "LightningEstimator",
    "horovod.spark.lightning.TorchModel": "LightningModel",
}
MOVED = {
    "HorovodInternalError": "ringcore.RingcoreError",
    "horovod.tensorflow.elastic.TensorFlowKerasState": "ringcore_keras.elastic.TensorFlowKerasState",
    **{f"horovod.{framework}.run": "ringcore.run" for framework in ("torch", "tensorflow", "mxnet")},
}
# Functions without arguments whose answer is known.
ANSWERS = {
    **dict.fromkeys(("nccl_built", "ddl_built", "ccl_built", "rocm_built"), "False"),
    **dict.fromkeys(("gloo_built", "gloo_enabled"), "True"),
}
# Constants whose value is known.
CONSTANTS = {"horovod.spark.lightning.estimator.MIN_PL_VERSION": "'2.6'"}

_IN_A_SESSION = "of TensorFlow 1: it runs with ringcore-horovod as it is"
_NOT_COMPILED = "ringcore is not compiled for anything; delete the check"
# Names that ringcore lacks -> what to do. Of one module, or of all.
LACKS = {
    "horovod.tensorflow.DistributedOptimizer": "ringcore_keras.DistributedOptimizer takes optimizers of Keras; one "
    + _IN_A_SESSION,
    "horovod.tensorflow.BroadcastGlobalVariablesHook": _IN_A_SESSION,
    "horovod.tensorflow.broadcast_global_variables": _IN_A_SESSION,
    "horovod.tensorflow.broadcast_object_fn": _IN_A_SESSION,
    **dict.fromkeys(
        ("mpi_built", "mpi_enabled", "mpi_threads_supported", "cuda_built", "check_extension"), _NOT_COMPILED
    ),
    "gpu_available": "ask the framework itself",
    "split_list": "write it out",
    "check_num_rank_power_of_2": "delete the check: ringcore's Adasum takes any number of ranks",
    "run_elastic": "use run(...), and elastic.run around the function",
    **dict.fromkeys(
        ("_cache", "_executing_eagerly", "_make_subgraph", "refs_to_vars", "vars_to_refs"), "it is Horovod's own"
    ),
}

# ---- Arguments ----

_FACTORS = ("prescale_factor", "postscale_factor", "process_set")
_DEVICES = ("device_dense", "device_sparse")
_GROUPED = ("grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_")

# Behind the first `n` ringcore takes keywords only: Horovod's positional arguments, by framework and function.
Signatures = dict[str, tuple[int, tuple[str, ...]]]
_EVERYWHERE: Signatures = {
    **dict.fromkeys(
        ("broadcast", "broadcast_", "broadcast_async", "broadcast_async_"),
        (2, ("tensor", "root_rank", "name", "process_set")),
    ),
    "broadcast_object": (2, ("obj", "root_rank", "name", "process_set")),
    "allgather_object": (1, ("obj", "name", "process_set")),
    "barrier": (0, ("process_set",)),
    "join": (0, ("device",)),
    "init": (0, ("comm", "process_sets")),
}
_TORCH: Signatures = {
    **_EVERYWHERE,
    **dict.fromkeys(
        ("allreduce", "grouped_allreduce"), (1, ("tensor", "average", "name", "compression", "op", *_FACTORS))
    ),
    **dict.fromkeys(
        ("allreduce_", "allreduce_async", "allreduce_async_", *_GROUPED),
        (1, ("tensor", "average", "name", "op", *_FACTORS)),
    ),
    "sparse_allreduce_async": (1, ("tensor", "name", "op", "process_set")),
    **dict.fromkeys(
        ("allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async"),
        (1, ("tensor", "name", "process_set")),
    ),
    **dict.fromkeys(("alltoall", "alltoall_async"), (2, ("tensor", "splits", "name", "process_set"))),
    **dict.fromkeys(
        ("reducescatter", "grouped_reducescatter"),
        (1, ("tensor", "name", "compression", "op", "process_set", "prescale_factor", "postscale_factor")),
    ),
    **dict.fromkeys(
        ("reducescatter_async", "grouped_reducescatter_async"),
        (1, ("tensor", "name", "op", "process_set", "prescale_factor", "postscale_factor")),
    ),
    "broadcast_optimizer_state": (2, ("optimizer", "root_rank", "model")),
    "DistributedOptimizer": (
        2,
        ("optimizer", "named_parameters", "compression", "backward_passes_per_step", "op", "gradient_predivide_factor",
         "num_groups", "groups", "sparse_as_dense", "process_set"),
    ),
}  # fmt: skip
_REDUCED = (*_DEVICES, "compression", "op", "prescale_factor", "postscale_factor")
_TAPE = (
    "gradtape", *_DEVICES, "compression", "sparse_as_dense", "op", "gradient_predivide_factor", "num_groups", "groups",
    "process_set",
)  # fmt: skip
_TENSORFLOW: Signatures = {
    **_EVERYWHERE,
    "allreduce": (1, ("tensor", "average", *_REDUCED, "name", "process_set", "ignore_name_scope")),
    "grouped_allreduce": (1, ("tensors", "average", *_REDUCED, "process_set", "ignore_name_scope", "name")),
    **dict.fromkeys(
        ("allgather", "grouped_allgather"), (1, ("tensor", "name", "ignore_name_scope", "process_set"))
    ),
    "broadcast": (2, ("tensor", "root_rank", "name", "ignore_name_scope", "process_set")),
    "alltoall": (2, ("tensor", "splits", "name", "ignore_name_scope", "process_set")),
    "broadcast_variables": (2, ("variables", "root_rank", "process_set")),
    "DistributedGradientTape": (1, (*_TAPE, "scale_local_gradients")),
    "PartialDistributedGradientTape": (1, (*_TAPE, "local_layers", "scale_local_gradients")),
}  # fmt: skip
_KERAS: Signatures = {
    **_EVERYWHERE,
    "allreduce": (1, ("value", "name", "average", "prescale_factor", "postscale_factor", "op", "compression")),
    "allgather": (1, ("value", "name")),
    "reducescatter": (1, ("value", "name", "op")),
    "DistributedOptimizer": (
        1,
        ("optimizer", "name", *_DEVICES, "compression", "sparse_as_dense", "gradient_predivide_factor", "op",
         "backward_passes_per_step", "average_aggregated_gradients", "num_groups", "groups", "process_set",
         "scale_local_gradients"),
    ),
    "broadcast_global_variables": (1, ("root_rank",)),
}  # fmt: skip
_MX = ("name", "priority", "prescale_factor", "postscale_factor", "process_set", "op")
_MXNET: Signatures = {
    **_EVERYWHERE,
    **dict.fromkeys(
        ("allreduce", "allreduce_", "grouped_allreduce", "grouped_allreduce_"), (1, ("tensor", "average", *_MX))
    ),
    **dict.fromkeys(("allgather", "grouped_allgather"), (1, ("tensor", "name", "priority", "process_set"))),
    **dict.fromkeys(("broadcast", "broadcast_"), (2, ("tensor", "root_rank", "name", "priority", "process_set"))),
    "alltoall": (2, ("tensor", "splits", "name", "priority", "process_set")),
    "DistributedOptimizer": (1, ("optimizer", "gradient_predivide_factor", "num_groups", "process_set")),
    "DistributedTrainer": (
        3,
        ("params", "optimizer", "optimizer_params", "compression", "gradient_predivide_factor", "prefix", "num_groups",
         "process_set"),
    ),
}  # fmt: skip
SIGNATURES: dict[str, Signatures] = {
    "ringcore": {"run": (4, ("func", "args", "kwargs", "np"))},
    "ringcore_torch": _TORCH,
    "ringcore_tensorflow": _TENSORFLOW,
    "ringcore_keras": _KERAS,
    "ringcore_keras.callbacks": {"BestModelCheckpoint": (0, ("monitor", "verbose", "mode", "save_freq", "filepath"))},
    "ringcore_mxnet": _MXNET,
    "ringcore_spark": {
        "run": (4, ("fn", "args", "kwargs", "num_proc", "start_timeout", "use_mpi", "use_gloo", "extra_mpi_args")),
    },
    "ringcore_spark.keras": {"KerasEstimator": (0, ())},
    "ringcore_spark.torch": {"TorchEstimator": (0, ())},
    "ringcore_spark.lightning": {"TorchEstimator": (0, ())},
    "ringcore_spark.ml.backend": {"SparkBackend": (2, ("num_proc", "env"))},
}
# `ringcore_mxnet.broadcast_parameters` and the callbacks of Keras take what Horovod's take.

RENAMED_KEYWORDS = {
    "num_groups": "groups",
    ("ringcore", "func"): "fn",
    ("ringcore", "num_proc"): "np",
}
_READING = (
    "compress_sparse_cols", "debug_data_loader", "inmemory_cache_all", "loader_num_epochs", "mp_start_method",
    "num_gpus", "partitions_per_process", "reader_pool_type", "train_async_data_loader_queue_size",
    "train_reader_num_workers", "transformation_edit_fields", "transformation_removed_fields",
    "val_async_data_loader_queue_size", "val_reader_num_workers",
)  # fmt: skip
_PRINTING = ("stdout", "stderr", "prefix_output_with_timestamp")
# What changes nothing here.
DROPPED = {
    "ringcore": {"use_gloo", "use_mpi"},
    "ringcore_torch": {"device", "model"},
    "ringcore_tensorflow": {*_DEVICES, "ignore_name_scope", "device"},
    "ringcore_keras": {*_DEVICES, "device"},
    "ringcore_mxnet": {"device"},
    "ringcore_spark": {"use_gloo", "use_mpi", *_PRINTING},
    "ringcore_spark.ml.backend": {"use_gloo", "use_mpi", *_PRINTING},
    **{f"ringcore_spark.{framework}": set(_READING) for framework in ("keras", "torch", "lightning")},
}
# Of a function alone.
DROPPED_OF = {
    ("ringcore_keras", "DistributedOptimizer"): {"name"},
    ("ringcore_keras", "allreduce"): {"compression"},
    ("ringcore_mxnet", "DistributedOptimizer"): {"num_groups"},
}
# Values that said "the default".
DEFAULTS: dict[str, tuple[object, ...]] = {
    "average": (True, None), "op": (None,), "num_groups": (0,), "groups": (None,), "comm": (None,),
    "process_sets": (None,),
}  # fmt: skip
_ELASTIC = "start it with ringrun --min-np ... --max-np ..."
# What has to be done by hand where it is given.
BY_HAND = {
    "comm": "takes no ranks, only a communicator of mpi4py; use add_process_set after it for some of them",
    "process_sets": "call add_process_set after init for each of them",
    "min_num_proc": _ELASTIC,
    "max_num_proc": _ELASTIC,
    "min_np": _ELASTIC,
    "max_np": _ELASTIC,
    "extra_mpi_args": "ranks meet without MPI: leave it out",
    "mpi_args": "ranks meet without MPI: leave it out",
    "network_interfaces": "use env={'RINGCORE_NETWORK_INTERFACES': ...}",
    "start_timeout": "use env={'RINGCORE_START_TIMEOUT_S': ...}",
}
BY_HAND_ONLY_OF = {"start_timeout": "ringcore"}
# What is given where the script does not: Horovod's default is another one. (module, function) -> (unless, text)
ADDED = {
    ("ringcore", "run"): ({"np", "num_proc"}, "np=1"),
    ("ringcore_keras.callbacks", "BestModelCheckpoint"): ({"filepath"}, 'filepath="best.keras"'),
}
# Numbers that say how much is printed, where here something is printed or not.
VERBOSE = ("ringcore", "ringcore_spark", "ringcore_spark.ml.backend")
