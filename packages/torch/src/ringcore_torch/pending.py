"""Parameters that are still to be made, stepped here or gathered: whoever reads one waits for that.

Until then it is of another class, as torch's own lazy parameters are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

# What tells nothing about values. Tensors' attributes arrive as the methods that get them.
_METADATA = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "requires_grad")),
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_floating_point,
}  # fmt: skip
_GRADIENT = {getattr(torch.Tensor.grad, name) for name in ("__get__", "__set__", "__delete__")}


class Awaited(Protocol):
    """What makes some parameters.

    Attributes:
        takes_gradients: Whoever reads or drops a gradient waits as well.
    """

    takes_gradients: bool

    def settle(self) -> None:
        """Make them, now."""


class PendingParameter(torch.nn.Parameter):
    """A parameter that is still to be made."""

    _ring_update: Awaited
    # The engine would look at its memory, and ask nobody.
    __dlpack_c_exchange_api__ = None

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Make what is read, and then do it."""
        if func in _METADATA or (func in _GRADIENT and not args[0]._ring_update.takes_gradients):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        for parameter in _pending_in((args, kwargs)):
            parameter._ring_update.settle()
        return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of what it will be."""
        self._ring_update.settle()
        return copy.deepcopy(self, memo)


def _pending_in(values: Any) -> Iterator[PendingParameter]:
    if isinstance(values, list | tuple):
        for value in values:
            yield from _pending_in(value)
    elif isinstance(values, dict):
        yield from _pending_in(list(values.values()))
    elif type(values) is PendingParameter:
        yield values


def hide(parameters: Iterable[torch.Tensor], awaited: Awaited) -> None:
    """From here on whoever reads the parameters waits."""
    for parameter in parameters:
        parameter._ring_update = awaited  # type: ignore[attr-defined]
        parameter.__class__ = PendingParameter


def show(parameters: Iterable[torch.Tensor]) -> None:
    """Undo `hide`."""
    for parameter in parameters:
        parameter.__class__ = torch.nn.Parameter
        del parameter._ring_update  # type: ignore[attr-defined]


def why_not_hidden(parameters: Iterable[torch.Tensor]) -> str:
    """Why nobody can be made to wait for these; empty where whoever reads one can."""
    for parameter in parameters:
        if type(parameter) is not torch.nn.Parameter:
            return f"a parameter is of the class {type(parameter).__name__}, not of torch.nn.Parameter"
        if not parameter.is_cpu:
            return "parameters lie on a GPU"
    return ""


class Held(Protocol):
    """What `overlap="forward"` asks of a bucket.

    Attributes:
        parameters: They are stepped together.
        held: Its update is still to be made.
        priority: The larger, the sooner it is sent.
    """

    parameters: list[torch.Tensor]
    held: bool
    priority: int

    def wait(self) -> object:
        """Wait for its averages."""


AnyBucket = TypeVar("AnyBucket", bound=Held)


@dataclass(eq=False)
class Update(Generic[AnyBucket]):
    """One bucket, between `step` and its first use.

    Attributes:
        make: Settles it: waits for the averages, and steps the bucket.
        bucket: Its gradients are on their way.
        gradients: Which the parameters had. Meanwhile they have none, so that nothing is added to what is sent.
        drops: What `zero_grad` has asked for since: its `set_to_none`.
        is_shown: The parameters are of their own class again.
        takes_gradients: See `Awaited`.
    """

    make: Callable[[Update[AnyBucket]], None]
    bucket: AnyBucket
    gradients: list[torch.Tensor | None]
    drops: bool | None = None
    is_shown: bool = False
    takes_gradients: bool = True

    def hide(self) -> None:
        """From here on whoever reads the parameters waits."""
        for parameter in self.bucket.parameters:
            parameter.grad = None
        hide(self.bucket.parameters, self)
        self.bucket.held = True

    def show(self) -> None:
        """The parameters are what they were at `step`."""
        if self.is_shown:
            return
        self.is_shown = True
        self.bucket.held = False
        show(self.bucket.parameters)
        for index, parameter in enumerate(self.bucket.parameters):
            parameter.grad, self.gradients[index] = self.gradients[index], parameter.grad

    def settle(self) -> None:
        """Make it, now."""
        self.make(self)

    # torch.compile breaks its graph here, and looks at parameters after that. `torch.compiler.disable` loads dynamo.
    settle._torchdynamo_disable = True  # type: ignore[attr-defined]

    def finish(self) -> None:
        """The gradients are what the script expects them to be."""
        for parameter, newer in zip(self.bucket.parameters, self.gradients, strict=True):
            if newer is not None:  # of a graph that was made before `step`
                parameter.grad = newer
            elif self.drops:
                parameter.grad = None
            elif self.drops is False and parameter.grad is not None:
                parameter.grad = parameter.grad.detach().zero_()
