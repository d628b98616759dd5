"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from ringcore import ProcessSet, Sum, global_process_set
from ringcore.adapter import batch_statistics, name_or_next

from ringcore_mxnet._operations import allreduce_

# So many uses of a layer may be under way at once, in an unrolled loop for instance.
_USES = 1024
# MXNet makes operators from strings.
_process_sets: dict[str, ProcessSet] = {}


class SyncBatchNorm(mx.gluon.nn.BatchNorm):  # type: ignore[misc]
    """`mx.gluon.nn.BatchNorm` whose mean and variance in training are those of all ranks' batches together.

    Works hybridized as well. Ranks may have batches of different size.

    Args:
        options: Those of `mx.gluon.nn.BatchNorm`.
        process_set: The ranks whose batches belong together.
    """

    def __init__(self, *args: Any, process_set: ProcessSet = global_process_set, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ring_key = name_or_next(None, "SyncBatchNorm", process_set)
        self._ring_set = str(process_set.process_set_id)
        self._ring_uses = 0
        _process_sets[self._ring_set] = process_set

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:  # noqa: N803
        """Normalise; in training with the statistics of all ranks."""
        if F is mx.sym or mx.autograd.is_training():  # ranks need not infer equally often
            self._ring_uses = (self._ring_uses + 1) % _USES
        options = self._kwargs
        return F.Custom(
            x, gamma, beta, running_mean, running_var, op_type="ringcore_sync_batch_norm",
            key=f"{self._ring_key}.{self._ring_uses}", process_set=self._ring_set, eps=options["eps"],
            momentum=options["momentum"], axis=options["axis"], fix_gamma=int(options["fix_gamma"]),
            use_global_stats=int(options["use_global_stats"]),
        )  # fmt: skip


@mx.operator.register("ringcore_sync_batch_norm")
class _SyncBatchNormProperties(mx.operator.CustomOpProp):  # type: ignore[misc]
    """Shapes and settings of the operator."""

    def __init__(self, **settings: str) -> None:
        super().__init__(need_top_grad=True)
        self.settings = settings

    def list_arguments(self) -> list[str]:
        return ["data", "gamma", "beta"]

    def list_auxiliary_states(self) -> list[str]:
        return ["running_mean", "running_var"]

    def infer_shape(self, in_shape: list[Any]) -> Any:
        channels = (in_shape[0][int(self.settings["axis"])],)
        return [in_shape[0], channels, channels], [in_shape[0]], [channels, channels]

    def infer_type(self, in_type: list[Any]) -> Any:
        of_statistics = np.float32 if in_type[0] == np.float16 else in_type[0]
        return [in_type[0], of_statistics, of_statistics], [in_type[0]], [of_statistics] * 2

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> Any:
        return _SyncBatchNormOperator(self.settings, len(in_shapes[0]))


class _SyncBatchNormOperator(mx.operator.CustomOp):  # type: ignore[misc]
    """Forward and backward, in a thread that MXNet has for such operators."""

    def __init__(self, settings: dict[str, str], dims: int) -> None:
        super().__init__()
        self.key = settings["key"]
        self.process_set = _process_sets[settings["process_set"]]
        self.eps, self.momentum = float(settings["eps"]), float(settings["momentum"])
        self.fix_gamma, self.use_global_stats = settings["fix_gamma"] == "1", settings["use_global_stats"] == "1"
        axis = int(settings["axis"]) % dims
        self.over = tuple(i for i in range(dims) if i != axis)
        self.shape = tuple(-1 if i == axis else 1 for i in range(dims))
        self.saved: Any = None

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        x, gamma, beta = in_data
        x = x.astype(gamma.dtype, copy=False)
        if is_train and not self.use_global_stats:
            mean, variance, total, centred = batch_statistics(
                x, mx.nd.full((1,), x.size / gamma.size, dtype=gamma.dtype), sum_of=lambda x: x.sum(self.over),
                over_ranks=self._over_ranks, spread=lambda x: x.reshape(self.shape), constant=lambda count: count,
            )  # fmt: skip
            for running, now in zip(aux, (mean, variance), strict=True):
                running[:] = self.momentum * running + (1 - self.momentum) * now
        else:
            total, variance = None, aux[1]
            centred = mx.nd.broadcast_sub(x, aux[0].reshape(self.shape))
        inverse = mx.nd.rsqrt(variance + self.eps).reshape(self.shape)
        normal = mx.nd.broadcast_mul(centred, inverse)
        self.saved = normal, inverse, total
        scaled = normal if self.fix_gamma else mx.nd.broadcast_mul(normal, gamma.reshape(self.shape))
        result = mx.nd.broadcast_add(scaled, beta.reshape(self.shape))
        self.assign(out_data[0], req[0], result.astype(out_data[0].dtype, copy=False))

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        normal, inverse, total = self.saved
        gamma = in_data[1]
        given = out_grad[0].astype(gamma.dtype, copy=False)
        of_beta, of_gamma = given.sum(self.over), (given * normal).sum(self.over)
        of_x = given
        if total is not None:  # the mean and the variance are functions of x
            sums = self._over_ranks([of_beta, of_gamma], "backward")
            first, second = (mx.nd.broadcast_div(part, total).reshape(self.shape) for part in sums)
            of_x = mx.nd.broadcast_sub(given - mx.nd.broadcast_mul(normal, second), first)
        of_x = mx.nd.broadcast_mul(of_x, inverse)
        if not self.fix_gamma:
            of_x = mx.nd.broadcast_mul(of_x, gamma.reshape(self.shape))
        self.assign(in_grad[0], req[0], of_x.astype(in_grad[0].dtype, copy=False))
        self.assign(in_grad[1], req[1], mx.nd.zeros_like(of_gamma) if self.fix_gamma else of_gamma)
        self.assign(in_grad[2], req[2], of_beta)

    def _over_ranks(self, parts: Sequence[Any], what: str) -> list[Any]:
        sent = mx.nd.concat(*parts, dim=0)
        total = allreduce_(sent, op=Sum, name=f"{self.key}.{what}", process_set=self.process_set)
        ends = list(itertools.accumulate(part.size for part in parts))
        return [total[end - part.size : end] for part, end in zip(parts, ends, strict=True)]
