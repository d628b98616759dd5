"""Which gradients are averaged by one operation, and how.

Parameters are dealt to buckets in the reverse of their order, which is about the order in which backward finishes them.
Behind its gradients a bucket sends two flags a parameter: whether the rank had a dense gradient, and whether it had a
sparse one. After the reduction a 0 means that no rank had one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from operator import is_not
from typing import Any

import torch
from ringcore import InvalidArgument, RingcoreError, adapter

from ringcore_torch._bridge import CODES, as_buffer
from ringcore_torch.compression import Compressor

# How gradients are sent together, see `DistributedOptimizer`.
Groups = int | Sequence[Sequence[torch.Tensor]] | None

# The first bucket is small, so that communication starts early; the figures are those of DistributedDataParallel.
_FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
# Where each bucket is waited for by itself, as large as what may be overtaken.
SOONER_BUCKET_BYTES = 4 << 20
_ALIGNMENT_BYTES = 64
_MOST_PACKED = 2000  # a group is described in one record


class Bucket:
    """Gradients of some parameters that one operation averages.

    Attributes:
        takes_early: A gradient is taken as soon as it is there, not when the bucket is submitted.
        touched: Backward has reached one of the parameters since the last average.
        sealed: The gradients are complete, and may not be changed until they hold the average.
        handle: The operation, once it is submitted.
        finished: The gradients hold the average.
        held: Its update is still to be made; what is on its way stays.
        priority: The larger, the sooner.
        errors: By the name of a parameter: what was lost of its gradients, and is added to the next ones.
    """

    errors: dict[str, torch.Tensor]
    takes_early = False
    flags: torch.Tensor  # [2, parameters]: dense, sparse
    quantised = adapter.QUANTISED["none"]  # how the gradients may be sent between hosts

    def __init__(self, name: str, parameters: list[torch.Tensor], names: list[str]) -> None:
        self.name = name
        self.errors = {}
        self.parameters = parameters
        self.names = names
        self.dtype = parameters[0].dtype
        self.device = parameters[0].device
        self.on_gpu = self.device.type != "cpu"
        # Reduced by an operation of their own: those of gradients on a GPU stay in the host, which reads them at once.
        self.flags_apart = self.on_gpu
        self._streams: set[Any] = set()  # of the GPU, in which gradients have come
        self._flags_handle: adapter.Handle | None = None
        self._flag_sums: torch.Tensor | None = None  # of flags apart, while these stay as they are
        self.passes = [0] * len(parameters)
        self.ready = 0
        self.handle: adapter.Handle | None = None
        self._last: adapter.Handle | None = None  # that of the last step, where it has described many tensors
        self._sent: tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]] = ((), (), {})
        self.finished = False
        self.held = False
        self.priority = 0
        self.all_dense = False
        self.touched = False
        self.sealed = False
        self._sealed_version = 0
        self._unseen = False  # sealed without a look at which gradients backward has brought
        self.is_short = False  # there is too little memory to keep what is summed up
        self._left: list[torch.Tensor | None] = []  # the gradients, when they were sealed or finished

    def take(self, index: int, grad: torch.Tensor) -> None:
        """The parameter has this dense gradient."""
        raise NotImplementedError

    def leave_out(self, index: int) -> None:
        """The parameter has no dense gradient on this rank: it counts as zero."""
        raise NotImplementedError

    def arrays(self) -> tuple[Any, ...]:
        """What is reduced: where it lies, or into `sums`."""
        raise NotImplementedError

    def sums(self) -> tuple[Any, ...]:
        """Where the sums go, while what they are made of stays as it is; nothing where they may take its place."""
        return ()

    def keep_inputs(self) -> None:
        """What is summed up stays as it is, so that it can be done again: in the host's memory, where that has room."""

    def stop_keeping(self) -> None:
        """From the next step on sums take the place of what they are made of."""
        raise NotImplementedError

    def epochs(self) -> list[int]:
        """Those of whose ranks the sums are; of what has been submitted, and waited for."""
        return [handle.epoch for handle in (self.handle, self._flags_handle) if handle is not None]

    def land(self) -> None:
        """All sums of the step are there: the gradients become the averages."""

    def has_sparse(self) -> bool:
        """Whether a gradient is sparse on some rank; once its average is there."""
        return bool(self.flags[1].any())

    def result(self, index: int) -> torch.Tensor:
        """The average of the parameter's dense gradients."""
        raise NotImplementedError

    def check(self, index: int, grad: torch.Tensor) -> None:
        """Refuse what cannot be averaged any more.

        Raises:
            InvalidArgument: The model was moved to another device or dtype.
        """
        if grad.dtype != self.dtype or grad.device != self.device:
            raise InvalidArgument(
                f"'{self.names[index]}' was a parameter of {self.dtype} on {_place(self.device)} when its optimizer "
                f"was wrapped, and has a gradient of {grad.dtype} on {grad.device}; wrap the optimizer after moving "
                "the model"
            )

    def note_stream(self) -> None:
        """A gradient comes in the current stream: that of its part of the forward pass."""
        self._streams.add(torch.cuda.current_stream(self.device))

    def join_streams(self) -> None:
        """Let the current stream, in which the bucket is submitted, wait for those in which gradients have come."""
        if self._streams:
            current = torch.cuda.current_stream(self.device)
            for stream in self._streams - {current}:
                current.wait_stream(stream)
            self._streams.clear()

    def seal(self) -> None:
        """From here on the gradients may not be changed."""
        self._left = [parameter.grad for parameter in self.parameters]
        self._sealed_version = self.version()
        self.sealed, self._unseen = True, False

    def launch(self, *, early: bool, sparse_as_dense: bool, **options: Any) -> None:
        """Submit what has been collected.

        Args:
            early: The caller does not wait for the averages, and gradients may be changed meanwhile.
            sparse_as_dense: Take sparse gradients as dense ones.
            options: Of the operation.

        Raises:
            InvalidArgument: The gradients were changed since they were sealed.
        """
        self.check_unchanged()
        self.join_streams()
        dense, sparse = [1] * len(self.parameters), [0] * len(self.parameters)
        for index, parameter in enumerate(self.parameters):
            grad = parameter.grad
            if grad is None or (grad.is_sparse and not sparse_as_dense):
                self.leave_out(index)
                dense[index], sparse[index] = 0, int(grad is not None)
            else:
                self.take(index, grad)  # also one that the user has set or replaced
        self.all_dense = all(dense)
        self.flags.copy_(torch.tensor([dense, sparse], device="cpu"))
        arrays = self.arrays()
        self.sealed = False
        if early:
            self.seal()
        try:
            self.submit(arrays, self.sums(), **options)
        except adapter.UnsupportedArray:
            self.submit(tuple(map(as_buffer, arrays)), tuple(map(as_buffer, self.sums())), **options)

    def submit(self, arrays: tuple[Any, ...], sums: tuple[Any, ...], **options: Any) -> None:
        """Start to reduce the arrays, and the flags."""
        self._sent = arrays, sums, options
        with self._told_of():
            self.handle = adapter.allreduce(
                arrays, sums or arrays, self.name, again=self._last, compression=self.quantised, **options
            )
            if self.flags_apart:
                flags = as_buffer(self.flags)
                into = flags if self._flag_sums is None else as_buffer(self._flag_sums)
                self._flags_handle = adapter.allreduce((flags,), (into,), f"{self.name}.flags", **options)

    def submit_again(self) -> None:
        """Reduce once more what was sent: it is as it was."""
        arrays, sums, options = self._sent
        self.submit(arrays, sums, **options)

    def version(self) -> int:
        """Changes whenever torch writes to the gradients."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait for the averages.

        Raises:
            InvalidArgument: The gradients were changed on the way.
        """
        if self.handle is not None:
            with self._told_of():
                self.handle.wait()
                if self._flags_handle is not None:
                    self._flags_handle.wait()
            self.check_unchanged()

    @contextlib.contextmanager
    def _told_of(self) -> Iterator[None]:
        """Errors speak of parameters by their names, and not of buckets."""
        try:
            yield
        except adapter.UnsupportedArray:
            raise
        except RingcoreError as error:
            text = str(error)
            for index in reversed(range(len(self.names))):
                text = text.replace(f"'{self.name}[{index}]'", f"the gradient of '{self.names[index]}'")
            several = (
                f"s of '{self.names[0]}' to '{self.names[-1]}'" if len(self.names) > 1 else f" of '{self.names[0]}'"
            )
            raise type(error)(text.replace(f"'{self.name}'", f"the gradient{several}")) from None

    def check_unchanged(self, now: list[torch.Tensor | None] | None = None) -> None:
        """Refuse gradients that were changed although they are sealed.

        Args:
            now: The parameters' gradients, where the caller has looked them up.

        Raises:
            InvalidArgument: They were.
        """
        if self.sealed and (self.version() != self._sealed_version or self.has_other_gradients(now)):
            raise InvalidArgument(
                f"the gradient of '{self.names[0]}' or another one of its bucket was changed while its average was on "
                "the way; call optimizer.synchronize() before clipping or unscaling gradients, and step() inside "
                "optimizer.skip_synchronize()"
            )

    def has_other_gradients(self, now: list[torch.Tensor | None] | None = None) -> bool:
        """Whether a parameter has another gradient than it had when the bucket was sealed, or finished.

        Where not each of them was seen to arrive, one may still come, from another loss, or be dropped.
        """
        if now is None:
            now = [parameter.grad for parameter in self.parameters]
        if not any(map(is_not, now, self._left)):
            return False
        if not self._unseen:
            return True
        pairs = zip(now, self._left, strict=True)
        return any(grad is not None and had is not None and grad is not had for grad, had in pairs)

    def finish(self, *, replaced: bool) -> None:
        """The gradients hold the average; `replaced`: some parameter may have another one than was submitted."""
        self.finished, self._unseen = True, False
        self._left = [parameter.grad for parameter in self.parameters]

    def reset(self) -> None:
        """Forget what has been collected; memory stays as it is."""
        self.passes[:] = [0] * len(self.parameters)
        self.ready = 0
        self.touched = False
        self.sealed = self._unseen = False
        self._left = []
        self.handle = self._flags_handle = None
        self._sent = (), (), {}
        self.finished = False


class FlatBucket(Bucket):
    """Gradients in one piece of registered memory: they become views into it and are reduced where they lie."""

    takes_early = True

    def __init__(
        self, name: str, parameters: list[torch.Tensor], names: list[str], compression: type[Compressor],
        *, keeps_errors: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(name, parameters, names)
        wide = self.dtype in compression.wide_dtypes
        self.quantised = compression.quantised if wide else self.quantised
        # Among quantised gradients flags might become 0.
        self.flags_apart = self.on_gpu or self.quantised != adapter.QUANTISED["none"]
        align = _ALIGNMENT_BYTES // self.dtype.itemsize
        starts, end = [], 0
        for parameter in parameters:
            starts.append(end)
            end += -(-parameter.numel() // align) * align
        flags = 0 if self.flags_apart else 2 * len(parameters)
        self._flat = registered_zeros(end + flags, self.dtype, self.device)
        compresses = compression.wire_dtype is not None and wide
        self._wire = (
            registered_zeros(len(self._flat), compression.wire_dtype, self.device) if compresses else self._flat
        )
        self._twin: torch.Tensor | None = None
        self._starts, self._end = starts, end
        if self.flags_apart:
            self.flags = _flags(parameters)
        self._look()
        loses = keeps_errors and wide and (compresses or self.quantised != adapter.QUANTISED["none"])
        self._errors = torch.zeros(end, dtype=self.dtype, device=self.device) if loses else None
        self.errors = {
            name: self._errors[start : start + one.numel()].view_as(one)
            for name, start, one in zip(names, starts, parameters, strict=True)
            if self._errors is not None
        }

    def _look(self) -> None:
        self._views = [
            self._flat[start : start + one.numel()].view_as(one)
            for start, one in zip(self._starts, self.parameters, strict=True)
        ]
        if not self.flags_apart:
            self.flags = self._flat[self._end :].view(2, -1)

    def take(self, index: int, grad: torch.Tensor) -> None:  # noqa: D102
        view = self._views[index]
        if grad.is_sparse or grad.data_ptr() != view.data_ptr() or grad.stride() != view.stride():
            self.check(index, grad)
            _copy(grad.to_dense() if grad.is_sparse else grad, view)
            self.parameters[index].grad = view

    def leave_out(self, index: int) -> None:  # noqa: D102
        self._views[index].zero_()

    def arrays(self) -> tuple[Any, ...]:  # noqa: D102
        if self._errors is not None:
            self._add_errors(self._errors)
        if self._wire is not self._flat:
            self._wire.copy_(self._flat)
        return (self._wire,)

    def _add_errors(self, errors: torch.Tensor) -> None:
        """Send what was lost before, and keep what is lost now."""
        own = self._flat[: self._end]
        errors += own
        if self.quantised:
            own.copy_(errors)
            adapter.round_to_quantised(own, self.quantised)
        else:
            own.copy_(errors.to(self._wire.dtype))
        errors -= own

    def version(self) -> int:  # noqa: D102
        return int(self._flat._version)

    def sums(self) -> tuple[Any, ...]:  # noqa: D102
        return () if self._twin is None else (self._twin,)

    def keep_inputs(self) -> None:  # noqa: D102
        if self.on_gpu:
            return
        try:
            self._twin = registered_zeros(len(self._wire), self._wire.dtype, self.device)
        except (RuntimeError, MemoryError):  # torch's, ringcore's, Python's
            self.is_short = True
        if self.flags_apart:
            self._flag_sums = _flags(self.parameters)

    def stop_keeping(self) -> None:  # noqa: D102
        self._twin = self._flag_sums = None

    def land(self) -> None:  # noqa: D102
        if self._flag_sums is not None:
            self.flags.copy_(self._flag_sums)
        if self._wire is not self._flat:
            self._flat.copy_(self._wire if self._twin is None else self._twin)
        elif self._twin is not None:
            # The two take turns: nothing is copied.
            self._flat, self._twin = self._twin, self._flat
            self._wire = self._flat
            self._look()
            for parameter, view in zip(self.parameters, self._views, strict=True):
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    parameter.grad = view

    def result(self, index: int) -> torch.Tensor:  # noqa: D102
        return self._views[index]


class PackedBucket(Bucket):
    """Small gradients: they stay where autograd has put them, and the engine packs them."""

    def __init__(self, name: str, parameters: list[torch.Tensor], names: list[str]) -> None:
        super().__init__(name, parameters, names)
        self.flags = _flags(parameters)
        self._all_have_dense = torch.tensor([[1.0], [0.0]], device="cpu").expand(2, len(parameters))
        self._grads: list[Any] = [None] * len(parameters)
        self._keeps = False
        self._sums: list[torch.Tensor] = []

    def launch(self, *, early: bool, sparse_as_dense: bool, **options: Any) -> None:  # noqa: D102
        now = [parameter.grad for parameter in self.parameters]
        self.check_unchanged(now)
        self.sealed = False
        self.join_streams()
        # Without a look at each gradient: the engine refuses whatever is not a contiguous tensor.
        self._grads = now
        self.flags.copy_(self._all_have_dense)
        self.all_dense = True
        try:
            self.submit(self.arrays(), self.sums(), **options)
            self._left, self._unseen = self._grads, False
            if early:
                self._sealed_version = self.version()
                self.sealed = True
        except adapter.UnsupportedArray:
            self._left = []
            super().launch(early=early, sparse_as_dense=sparse_as_dense, **options)

    def seal(self) -> None:  # noqa: D102
        if not self.sealed and self.ready == len(self.parameters):
            self._grads = [parameter.grad for parameter in self.parameters]
        super().seal()

    def seal_arrived(self) -> None:
        """Backward has ended: the gradients that are there may not be changed; others may still come."""
        self._left = [parameter.grad for parameter in self.parameters]
        self._grads = list(self._left)
        self._sealed_version = self.version()
        self.sealed = self._unseen = True

    def take(self, index: int, grad: torch.Tensor) -> None:  # noqa: D102
        if grad.dtype is not self.dtype:
            self.check(index, grad)
        if grad.is_sparse or not grad.is_contiguous():
            grad = (grad.to_dense() if grad.is_sparse else grad).contiguous()
            self.parameters[index].grad = grad
        self._grads[index] = grad

    def leave_out(self, index: int) -> None:  # noqa: D102
        self._grads[index] = torch.zeros_like(self.parameters[index], memory_format=torch.contiguous_format)

    def finish(self, *, replaced: bool) -> None:  # noqa: D102
        if replaced or not self._left:
            return super().finish(replaced=replaced)
        self.finished, self._unseen = True, False
        return None

    def reset(self) -> None:  # noqa: D102
        if not self.on_gpu and not self._keeps:
            self._last = self.handle or self._last
        super().reset()
        self._grads = [None] * len(self.parameters)

    def arrays(self) -> tuple[Any, ...]:  # noqa: D102
        return tuple(self._grads) if self.on_gpu else (*self._grads, self.flags)

    def sums(self) -> tuple[Any, ...]:  # noqa: D102
        if self._keeps and not self._sums:
            arrays = (*self.parameters, self.flags)
            self._sums = [torch.empty_like(array, memory_format=torch.contiguous_format) for array in arrays]
        return tuple(self._sums)

    def keep_inputs(self) -> None:  # noqa: D102
        self._keeps = not self.on_gpu

    def stop_keeping(self) -> None:  # noqa: D102
        self._keeps, self._sums = False, []

    def land(self) -> None:  # noqa: D102
        if self._keeps:
            torch._foreach_copy_([*self._grads, self.flags], self._sums)

    def version(self) -> int:  # noqa: D102
        return sum([grad._version for grad in self._grads if grad is not None])

    def result(self, index: int) -> torch.Tensor:  # noqa: D102
        grad: torch.Tensor = self._grads[index]
        return grad


def check_dtypes(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuse parameters whose gradients cannot be reduced.

    Raises:
        InvalidArgument: A complex parameter, or one of another dtype that the engine does not know.
    """
    for name, parameter in named:
        if parameter.is_complex():
            raise InvalidArgument(
                f"'{name}' is a parameter of {parameter.dtype}, and ringcore reduces real numbers; make "
                "torch.view_as_real(parameter) the parameter, and torch.view_as_complex(parameter) of it where it is "
                "used"
            )
        if parameter.dtype not in CODES:
            raise InvalidArgument(f"'{name}' is a parameter of {parameter.dtype}, of which there is no average")


def make_buckets(
    named: list[tuple[str, torch.Tensor]], prefix: str, *, groups: Groups, compression: type[Compressor],
    keeps_errors: bool = False, bucket_bytes: int = BUCKET_BYTES,
) -> list[Bucket]:  # fmt: skip
    """Deal parameters to buckets: those of `groups` together, the others by their size."""
    names = {id(parameter): name for name, parameter in named}
    buckets: list[Bucket] = []
    for parameters in deal([parameter for _, parameter in named], groups, bucket_bytes):
        name = f"{prefix}.bucket{len(buckets)}"
        own = [names[id(parameter)] for parameter in parameters]
        if compression.wire_dtype is None and _bytes(parameters) < adapter.SMALL_BYTES * len(parameters):
            buckets.append(PackedBucket(name, parameters, own))
        else:
            buckets.append(FlatBucket(name, parameters, own, compression, keeps_errors=keeps_errors))
    return buckets


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    if source.is_cpu and torch.get_num_threads() == 1 and source.stride() == target.stride():
        with contextlib.suppress(adapter.UnsupportedArray):
            return adapter.copy(source, target)
    target.copy_(source)  # with all threads
    return None


def _flags(parameters: list[torch.Tensor]) -> torch.Tensor:
    return torch.zeros(2, len(parameters), device="cpu")  # whatever torch.set_default_device says


def _place(device: torch.device) -> str:
    return "the CPU" if device.type == "cpu" else str(device)


def registered_zeros(count: int, dtype: Any, device: torch.device) -> torch.Tensor:
    """Registered memory where there is shared memory."""
    if device.type != "cpu":
        return torch.zeros(count, dtype=dtype, device=device)
    registered = adapter.allocate(count * dtype.itemsize)
    if registered is None:
        return torch.zeros(count, dtype=dtype, device="cpu")
    return torch.frombuffer(registered.view(), dtype=dtype)[:count].zero_()


def deal(parameters: list[torch.Tensor], groups: Groups, bucket_bytes: int) -> list[list[torch.Tensor]]:
    """The parameters of each bucket: those of `groups`, the rest by size in the reverse of their order."""
    if isinstance(groups, int):
        chosen = [[parameters[i] for i in group] for group in reversed(adapter.dealt_out(len(parameters), groups))]
    else:
        chosen = [list(group) for group in groups or []]
    dealt = [same for group in chosen for same in _by_kind(group)]
    taken = {id(parameter) for group in chosen for parameter in group}
    rest = [parameter for parameter in reversed(parameters) if id(parameter) not in taken]
    for small in (False, True):
        for same in _by_kind(p for p in rest if (_bytes([p]) < adapter.SMALL_BYTES) is small):
            limit = _FIRST_BUCKET_BYTES if small else bucket_bytes
            dealt += _fill(same, _FIRST_BUCKET_BYTES if not dealt else limit, limit, small=small)
    return dealt


def _fill(parameters: list[torch.Tensor], first: int, others: int, *, small: bool) -> Iterable[list[torch.Tensor]]:
    """Buckets that are closed as soon as they have so many bytes, `first` of the first one."""
    bucket: list[torch.Tensor] = []
    limit = first
    for parameter in parameters:
        bucket.append(parameter)
        if _bytes(bucket) >= limit or (small and len(bucket) == _MOST_PACKED):
            yield bucket
            bucket, limit = [], others
    if bucket:
        yield bucket


def _bytes(parameters: Iterable[torch.Tensor]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _by_kind(parameters: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    found: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for parameter in parameters:
        found.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return list(found.values())
