"""Fewer bytes on the wire: tensors are sent as 16-bit floats, or as integers of 8 or 4 bits between hosts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore.adapter.blocks import Blocks
from ringcore.adapter.error_feedback import KINDS, ErrorFeedback
from ringcore.adapter.exchange import Exchange
from ringcore.adapter.framework import Tensor
from ringcore.adapter.powersgd import PowerSGD
from ringcore.adapter.sparsified import OneBit, TopK

# round_to_quantised(array, code): makes of the values, in place, what a rank gets that they are sent to.
round_to_quantised = _native.round_to_quantised

# Codes of the engine's compressions: what `Compressor.quantised` is.
QUANTISED: dict[str, int] = dict(_native.COMPRESSIONS)


class Compressor(Generic[Tensor]):
    """Sends tensors as they are. An adapter derives its own, which casts; subclasses of that change an attribute.

    Attributes:
        wire_dtype: Of what is sent, in the framework's words; None: every tensor's own.
        wide_dtypes: Those that are sent as `wire_dtype`; others stay.
        quantised: The engine sends those, where it takes them, between hosts as integers in blocks with a scale each.
    """

    wire_dtype: ClassVar[Any] = None
    wide_dtypes: ClassVar[tuple[Any, ...]] = ()
    quantised: ClassVar[int] = QUANTISED["none"]

    @staticmethod
    def dtype_of(tensor: Tensor) -> Any:
        """A tensor's dtype."""
        dtype: Any = getattr(tensor, "dtype", None)
        return dtype

    @staticmethod
    def cast(tensor: Tensor, dtype: Any) -> Tensor:
        """The tensor in another dtype, by the framework's own means."""
        raise NotImplementedError

    @classmethod
    def code_for(cls, *tensors: Tensor) -> int:
        """What `allreduce` takes as `compression` for these tensors, which are reduced by one operation."""
        if cls.quantised == QUANTISED["none"]:
            return cls.quantised
        wide = all(cls.dtype_of(tensor) in cls.wide_dtypes for tensor in tensors)
        return cls.quantised if wide else QUANTISED["none"]

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor as it is sent, and what `decompress` needs to know."""
        if cls.wire_dtype is None:
            return tensor, None
        dtype = cls.dtype_of(tensor)
        return (cls.cast(tensor, cls.wire_dtype), dtype) if dtype in cls.wide_dtypes else (tensor, None)

    @classmethod
    def decompress(cls, tensor: Tensor, dtype: Any) -> Tensor:
        """The received tensor in its own dtype again."""
        return tensor if dtype is None else cls.cast(tensor, dtype)


def reduce_compressed(
    compression: type[Compressor[Tensor]], tensors: Sequence[Tensor], reduce: Callable[[list[Tensor]], Sequence[Tensor]]
) -> list[Tensor]:
    """Reduce tensors of which less is sent.

    Args:
        compression: How they are sent.
        tensors: As the user has them.
        reduce: Reduces them as they are sent.

    Returns:
        The results, in the tensors' own dtypes.
    """
    pairs = [compression.compress(tensor) for tensor in tensors]
    results = reduce([sent for sent, _ in pairs])
    return [compression.decompress(result, kept) for result, (_, kept) in zip(results, pairs, strict=True)]


class Choices:
    """An adapter's `Compression`: `compression=` takes its members, subclasses of `none`, or their names."""

    none: ClassVar[Any]

    @classmethod
    def name_of(cls, compression: Any) -> str:
        """What a user calls what `chosen` has returned, where it has a name; else that of its class."""
        names = [name for name, member in vars(cls).items() if member is compression]
        return names[0] if names else getattr(compression, "__name__", repr(compression))

    @classmethod
    def chosen(
        cls, compression: Any, *, exchanges: bool = False, lasts: bool = True, who: str = "this operation"
    ) -> Any:
        """The member that a user means.

        Args:
            compression: What was given as `compression=`.
            exchanges: It may be an `Exchange`, too, or the name of one.
            lasts: `who` lasts as long as the training. Else an `Exchange` has to be made by the user, and no name does.
            who: It was given to, in the words of the user.

        Raises:
            InvalidArgument: It is none of these.
        """
        if isinstance(compression, type) and issubclass(compression, cls.none):
            return compression
        members = {name: member for name, member in vars(cls).items() if isinstance(member, type)}
        if isinstance(compression, str) and compression in members:
            return members[compression]
        if exchanges and (exchange := exchange_of(compression, who if not lasts else "")) is not None:
            return exchange
        if inspect.isroutine(compression):
            name = compression.__name__
            raise InvalidArgument(
                f"compression=Compression.{name} is the function that makes one; call it: Compression.{name}()"
            )
        if isinstance(compression, Exchange):
            raise InvalidArgument(
                f"{who} does not take {type(compression).__name__}, which averages all gradients of a step by itself, "
                "as a DistributedOptimizer, MXNet's DistributedTrainer and TensorFlow's tapes hand them over. Remedy: "
                f"take one of {', '.join(members)} here"
            )
        raise InvalidArgument(f"compression is one of {', '.join(members)}, or its name, not {compression!r}")

    @classmethod
    def chosen_for_shares(cls, compression: Any, *, who: str) -> Any:
        """The member that a user means who reduce-scatters gradients.

        Raises:
            InvalidArgument: It is none, or one that the engine has for allreduces only.
        """
        compressor = cls.chosen(compression, who=who)
        if compressor.quantised:
            refuse_quantised_shares(cls.name_of(compressor), who)
        return compressor

    @classmethod
    def with_errors(cls, compressor: Any, *, error_feedback: bool) -> Any:
        """What `chosen` has returned, or with `error_feedback` the `Exchange` that sends like it: see `fed_back`."""
        is_member = isinstance(compressor, type)
        kinds = (kind for kind in KINDS if is_member and issubclass(compressor, getattr(cls, kind, ())))
        return fed_back(compressor, next(kinds, "none"), error_feedback=error_feedback)


def refuse_quantised_shares(name: str, who: str) -> None:
    """Refuse what a reduce-scatter cannot send.

    Raises:
        InvalidArgument: It is a compression to integers.
    """
    if QUANTISED.get(name):
        raise InvalidArgument(
            f"{who} reduce-scatters gradients, and {name} is for allreduces, of which each rank gets all sums; use "
            "Compression.fp16 or bf16, or a DistributedOptimizer"
        )


def exchange_of(compression: Any, who: str = "") -> Exchange | None:
    """The `Exchange` that was given as `compression=`, or one of that name; None where it is neither.

    Args:
        compression: What was given.
        who: It was given to, where that does not last, so that a name will not do.

    Raises:
        InvalidArgument: There it is a name.
    """
    if isinstance(compression, Exchange):
        return compression
    if not isinstance(compression, str) or compression not in vars(Exchanges) or compression.startswith("_"):
        return None
    if who:
        raise InvalidArgument(
            f"{who} is called anew in each step, and {compression} has a memory that lasts. Remedy: make it once, "
            f"exchange = Compression.{compression}(), and pass compression=exchange in each step"
        )
    made: Exchange = getattr(Exchanges, compression)()
    return made


def fed_back(compression: Any, kind: str, *, error_feedback: bool) -> Any:
    """With `error_feedback` the `Exchange` that sends like a compression, and keeps what is lost.

    Args:
        compression: What the user has chosen: it is returned without.
        kind: What it sends, of `KINDS`, or "none".
        error_feedback: Whether what is lost is to be kept.

    Raises:
        InvalidArgument: Nothing is lost.
    """
    if not error_feedback or isinstance(compression, Exchange):  # which does so anyway
        return compression
    if kind == "none":
        raise InvalidArgument("error_feedback keeps what a compression loses; pass a compression, or leave it out")
    return ErrorFeedback(kind)


class Exchanges:
    """What an adapter's `Compression` has besides, for its optimizer: each call makes one with a memory of its own."""

    @staticmethod
    def powersgd(rank: int = 4, warmup_steps: int = 0) -> Exchange:
        """Matrices as products of two with so many columns: see `PowerSGD`."""
        return PowerSGD(rank, warmup_steps)

    @staticmethod
    def topk(ratio: float = 0.01, warmup_steps: int = 0) -> Exchange:
        """This part of a gradient's values, the largest ones: see `TopK`."""
        return TopK(ratio, warmup_steps)

    @staticmethod
    def onebit(warmup_steps: int = 0) -> Exchange:
        """Signs, and one magnitude: see `OneBit`."""
        return OneBit(warmup_steps)

    @staticmethod
    def blocks(size: int = 256) -> Exchange:
        """All but blocks of so many elements that are zero on all ranks: see `Blocks`."""
        return Blocks(size)

    @staticmethod
    def error_feedback(kind: str = "int8", warmup_steps: int = 0) -> Exchange:
        """What `fp16`, `bf16`, `int8` or `int4` sends, and what is lost with the next gradient: see `ErrorFeedback`."""
        return ErrorFeedback(kind, warmup_steps)
