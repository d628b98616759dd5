"""Gradients of which the largest values are sent, or only the signs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcore._errors import InvalidArgument
from ringcore.adapter.exchange import Exchange, are_finite, gathered
from ringcore.job.process_sets import ProcessSet

if TYPE_CHECKING:
    import numpy as np

    from ringcore.adapter.exchange import Array, Arrays

# A gradient is sent whole unless it has at least so many values.
_LEAST_VALUES = 1024


class _Form:
    """How some values of a gradient are written, with their places: on every rank in as many bytes.

    A place is its offset in a block, of 8 or 16 bits; in front is how many values each block has. Values have 16 bits,
    as parts of the largest one, which is at the end.

    Args:
        size: Of the gradient.
        count: Values that are written.
    """

    def __init__(self, size: int, count: int) -> None:
        import numpy as np

        def fields(bits: int) -> np.dtype[Any]:
            counter = f"u{bits // 4}"  # a block may be full
            return np.dtype(
                [("counters", counter, -(-size >> bits)), ("offsets", f"u{bits // 8}", count), ("parts", "f2", count),
                 ("largest", "f8")]
            )  # fmt: skip

        # Small blocks pay where there are several values in each.
        self._bits = min((8, 16), key=lambda bits: fields(bits).itemsize)
        self._fields = fields(self._bits)
        self.nbytes = self._fields.itemsize

    def write(self, places: Array, values: Array) -> Array:
        """Values at places that ascend, as bytes."""
        import numpy as np

        written = np.zeros((), self._fields)
        written["counters"] = np.bincount(places >> self._bits, minlength=written["counters"].size)
        written["offsets"] = places & ((1 << self._bits) - 1)
        written["largest"] = np.abs(values).max()
        with np.errstate(invalid="ignore"):  # of infinite ones nothing is left, as of any sum with them
            written["parts"] = values / (written["largest"] or 1.0)
        return np.frombuffer(written.tobytes(), np.uint8)

    def read(self, written: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        """The places and values that somebody has written."""
        import numpy as np

        found = np.frombuffer(written.tobytes(), self._fields)[0]
        blocks = np.arange(found["counters"].size) << self._bits
        with np.errstate(invalid="ignore"):
            values = found["parts"].astype(np.float64) * found["largest"]
        return np.repeat(blocks, found["counters"]) + found["offsets"], values.astype(dtype)


class _Gathered(Exchange):
    """Every rank gets what all others send: the bytes grow with the number of ranks."""

    def exchange(self, gradients: Arrays, name: str, process_set: ProcessSet, *, keeps: bool) -> None:
        for each in gradients.keys() & self.errors.keys():
            gradients[each] += self.errors[each]
        before = {each: gradient.copy() for each, gradient in gradients.items()}
        sent = self.send(gradients, name, process_set)
        if keeps and are_finite(gradients.values()):
            for each, whole in before.items():
                self.errors[each] = whole - sent[each]

    def send(self, gradients: Arrays, name: str, process_set: ProcessSet) -> Arrays:
        """Write what stands for the averages into `gradients`, and return what of this rank's own went into it."""
        raise NotImplementedError


class TopK(_Gathered):
    """Sends the values of the largest magnitude, with their places (Aji & Heafield 2017).

    Of each it sends 16 bits of the value and 8 to 16 of the place.

    Args:
        ratio: Of the values of a gradient so many are sent; at least one.
        warmup_steps: See `Exchange`.
    """

    def __init__(self, ratio: float, warmup_steps: int = 0) -> None:
        if not 0 < ratio <= 0.5:
            raise InvalidArgument(f"topk: the ratio is above 0 and at most 0.5, not {ratio}")
        super().__init__(warmup_steps)
        self.ratio = ratio

    def shrinks(self, gradient: Array) -> bool:  # noqa: D102
        return _LEAST_VALUES <= gradient.size < 2**32

    def send(self, gradients: Arrays, name: str, process_set: ProcessSet) -> Arrays:  # noqa: D102
        import numpy as np

        forms: list[_Form] = []
        written: list[Array] = []
        for gradient in gradients.values():
            flat = gradient.reshape(-1)
            count = max(1, int(flat.size * self.ratio))
            forms.append(_Form(flat.size, count))
            places = np.sort(np.argpartition(np.abs(flat), flat.size - count)[flat.size - count :])
            written.append(forms[-1].write(places, flat[places]))
        (everybody,) = gathered([np.concatenate(written)], name, process_set)
        sent = {each: np.zeros_like(gradient) for each, gradient in gradients.items()}
        totals = {each: np.zeros_like(gradient) for each, gradient in gradients.items()}
        borders = np.cumsum([form.nbytes for form in forms])[:-1]
        # One rank after the other: the same sums everywhere.
        for rank, theirs in enumerate(everybody):
            for form, part, (each, total) in zip(forms, np.split(theirs, borders), totals.items(), strict=True):
                places, values = form.read(part, total.dtype)
                total.reshape(-1)[places] += values
                if rank == process_set.rank():
                    sent[each].reshape(-1)[places] = values
        for each, gradient in gradients.items():
            gradient[...] = totals[each] / process_set.size()
        return sent


class OneBit(_Gathered):
    """Sends the sign of each value, and the mean magnitude of a gradient (Seide et al. 2014; Bernstein et al. 2018).

    Args:
        warmup_steps: See `Exchange`.
    """

    def shrinks(self, gradient: Array) -> bool:  # noqa: D102
        return gradient.size >= _LEAST_VALUES

    def send(self, gradients: Arrays, name: str, process_set: ProcessSet) -> Arrays:  # noqa: D102
        import numpy as np

        signs = [np.packbits(gradient.reshape(-1) >= 0) for gradient in gradients.values()]
        scales = [np.abs(gradient).mean(keepdims=True).reshape(1) for gradient in gradients.values()]
        everybody = gathered([*signs, *scales], name, process_set)
        sent = {}
        for index, (each, gradient) in enumerate(gradients.items()):
            total = np.zeros(gradient.size, gradient.dtype)
            for packed, scale in zip(everybody[index], everybody[len(signs) + index], strict=True):
                total += _signed(packed, scale[0], gradient.size)
            sent[each] = _signed(signs[index], scales[index][0], gradient.size).reshape(gradient.shape)
            gradient[...] = (total / process_set.size()).reshape(gradient.shape)
        return sent


def _signed(packed: Array, scale: Array, count: int) -> Array:
    import numpy as np

    return np.where(np.unpackbits(packed, count=count).view(bool), scale, -scale)
