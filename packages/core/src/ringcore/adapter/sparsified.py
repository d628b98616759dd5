"""Gradients of which the largest values are sent, or only the signs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcore._errors import InvalidArgument
from ringcore.adapter.exchange import Exchange, gathered
from ringcore.job.process_sets import ProcessSet

if TYPE_CHECKING:
    from ringcore.adapter.exchange import Array, Arrays

# A gradient is sent whole unless it has at least so many values.
_LEAST_VALUES = 1024


class TopK(Exchange):
    """Sends the values of the largest magnitude, with their places (Aji & Heafield 2017).

    Every rank gets what all others send: the bytes grow with the number of ranks.

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

    def exchange(self, gradients: Arrays, name: str, process_set: ProcessSet) -> Arrays:  # noqa: D102
        import numpy as np

        places, values = [], []
        for gradient in gradients.values():
            flat = gradient.reshape(-1)
            count = max(1, int(flat.size * self.ratio))
            own = np.sort(np.argpartition(np.abs(flat), flat.size - count)[flat.size - count :])
            places.append(own.astype(np.int32 if flat.size < 2**31 else np.int64))
            values.append(flat[own])
        everybody = gathered([*places, *values], name, process_set)
        sent = {}
        for index, (each, gradient) in enumerate(gradients.items()):
            sent[each] = np.zeros_like(gradient)
            sent[each].reshape(-1)[places[index]] = values[index]
            total = np.zeros(gradient.size, gradient.dtype)
            # One rank after the other: the same sums everywhere.
            for at, value in zip(everybody[index], everybody[len(places) + index], strict=True):
                total[at] += value
            gradient[...] = (total / process_set.size()).reshape(gradient.shape)
        return sent


class OneBit(Exchange):
    """Sends the sign of each value, and the mean magnitude of a gradient (Seide et al. 2014; Bernstein et al. 2018).

    Every rank gets what all others send: the bytes grow with the number of ranks.

    Args:
        warmup_steps: See `Exchange`.
    """

    def shrinks(self, gradient: Array) -> bool:  # noqa: D102
        return gradient.size >= _LEAST_VALUES

    def exchange(self, gradients: Arrays, name: str, process_set: ProcessSet) -> Arrays:  # noqa: D102
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
