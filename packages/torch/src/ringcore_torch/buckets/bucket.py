"""A bucket: from the gradients of some parameters to one operation, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import is_not
from typing import Any

import torch
from ringcore import InvalidArgument, RingcoreError, adapter

from ringcore_torch._bridge import as_buffer
from ringcore_torch.parameters import of_parameters


class Bucket:
    """Gradients of some parameters that one operation averages.

    Behind its gradients it sends two flags a parameter: whether the rank had a dense gradient, and whether it had a
    sparse one. After the reduction a 0 means that no rank had one.

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
            raise type(error)(text.replace(f"'{self.name}'", of_parameters("the gradient", self.names))) from None

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


def _place(device: torch.device) -> str:
    return "the CPU" if device.type == "cpu" else str(device)


def new_flags(parameters: list[torch.Tensor]) -> torch.Tensor:
    """For `Bucket.flags`, where these lie by themselves."""
    return torch.zeros(2, len(parameters), device="cpu")  # whatever torch.set_default_device says
