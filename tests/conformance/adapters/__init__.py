"""What the suite needs of a framework: tensors from numpy arrays and back, and the module with the collectives."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Protocol

import numpy as np

# Module of the adapter -> modules that it needs. The suite runs with those that are there.
ADAPTERS = {
    "numpy": ("numpy",),
    "torch": ("ringcore_torch", "torch"),
    "torch_distributed": ("ringcore_torch", "torch"),
    "tensorflow": ("ringcore_tensorflow", "tensorflow"),
    "jax": ("ringcore_jax", "jax"),
    "mxnet": ("ringcore_mxnet", "mxnet"),
}
# The same with tensors of another kind; what differs is in the adapter, so that one transport and two ranks do.
VARIANTS = {
    "torch_strided": ("ringcore_torch", "torch"),
    "torch_leaf": ("ringcore_torch", "torch"),
    "tensorflow_function": ("ringcore_tensorflow", "tensorflow"),
    "jax_jit": ("ringcore_jax", "jax"),
    "mxnet_nd": ("ringcore_mxnet", "mxnet"),
    "keras": ("ringcore_keras", "keras"),
}
# Arrays on GPUs, through the test double of CUDA and NCCL: what it is told -> by NCCL; in the memory of one GPU that
# ranks share, or of two, each with two of four ranks; by way of the host, where that cannot be or a kernel is missing.
GPUS = {
    "gpu": {},
    "gpu_shared": {"RINGCORE_TEST_GPUS": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "0"},
    "gpu_pairs": {"RINGCORE_TEST_GPUS": "2", "NCCL_MULTI_RANK_GPU_ENABLE": "0"},
    "gpu_by_host": {"GPU_DOUBLE_DEVICE": "0", "GPU_DOUBLE_IPC": "0"},
    "gpu_without_kernels": {"GPU_DOUBLE_NVRTC": "0"},
}
# PyTorch's tensors on real GPUs, which ranks share where there are fewer: session `gpu_torch` has them.
ON_GPUS = {"torch_gpu": ("ringcore_torch", "torch"), "torch_distributed_gpu": ("ringcore_torch", "torch")}
# Cases that an adapter's framework has nothing for.
# Arrays do not change, have a gradient, or lie on a GPU.
_OUTPUTS = {"results_go_where_the_caller_says"}
_WITHOUT_OUTPUTS = (
    "jax", "jax_jit", "tensorflow", "tensorflow_function", "torch_leaf", "torch_gpu", *GPUS,
)  # fmt: skip
# What lies on a GPU is sent as it is, but for PyTorch's tensors, which are cast there.
_QUANTISED = {"quantised_sums_are_near_and_the_same_bits"}
_CAST = {"values_are_rounded_to_16_bits_once_on_each_rank"}
# Programs have the same results on all ranks, and say so of these; what has no programs has nothing to refuse.
_FOR_ONE = {"reduce", "gather"}
_IN_PROGRAMS = {"programs_refuse_what_one_rank_alone_gets"}
_LACKS: dict[str, set[str]] = {
    **dict.fromkeys(_WITHOUT_OUTPUTS, _OUTPUTS),
    "tensorflow_function": _OUTPUTS | _FOR_ONE,
    **dict.fromkeys(GPUS, _OUTPUTS | _QUANTISED | _CAST),
    "torch_gpu": _OUTPUTS | _QUANTISED,
    # It has no program that would have a name to tell.
    "jax_jit": {"what_one_rank_refuses_is_told_to_all", "scatter", *_OUTPUTS, *_FOR_ONE},
    # Averages of integers are cut there, as in gloo.
    **{
        name: {"join", "join_in_a_process_set", "what_one_rank_refuses_is_told_to_all", *_OUTPUTS, *_QUANTISED, *_CAST}
        for name in ("torch_distributed", "torch_distributed_gpu")
    },
    # But on each GPU, and then by NCCL.
    "gpu_pairs": {"sums_of_16_bits_are_rounded_once", *_OUTPUTS, *_QUANTISED, *_CAST},
}
LACKS = {
    name: _LACKS.get(name, set()) | (set() if name in ("jax_jit", "tensorflow_function") else _IN_PROGRAMS)
    for name in (*ADAPTERS, *VARIANTS, *GPUS, *ON_GPUS)
}


class Adapter(Protocol):
    """One framework."""

    # Has allreduce, allgather, ... by the names and with the keywords that all adapters share; those in place, whose
    # names end in "_", where the framework's tensors can be written.
    collectives: ModuleType
    # Names of numpy's dtypes, and bfloat16.
    dtypes: tuple[str, ...]

    def tensor(self, array: np.ndarray) -> Any:
        """A new tensor with the values of an array (bfloat16: of ml_dtypes)."""

    def array(self, tensor: Any) -> np.ndarray:
        """A tensor's values."""


def load(name: str) -> Adapter:
    """The adapter of a framework, by its name here."""
    name = "gpu" if name in GPUS else name
    adapter: Adapter = importlib.import_module(f"conformance.adapters.{name}_adapter")
    return adapter
