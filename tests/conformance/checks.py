"""Gathers what is wrong, and a digest of what must be the same on all ranks; raises nothing: ranks stay in step."""

from __future__ import annotations

import hashlib

import numpy as np

from conformance.payload import ulps_apart

_MOST = 5


class Checks:
    """The checks of one case on one rank."""

    def __init__(self) -> None:
        self.count = 0
        self.failures: list[str] = []
        self._digest = hashlib.sha256()

    def equal(
        self, what: str, got: np.ndarray, expected: np.ndarray, *, ulps: float = 0.0, common: bool = True
    ) -> None:
        """The arrays have the same dtype, shape and values.

        Args:
            what: Of the operation.
            got: What came out.
            expected: What must come out.
            ulps: Allowed difference, in units of the last place.
            common: All ranks must have got the same bits.
        """
        self.count += 1
        if common:
            self._digest.update(got.tobytes())
        if got.dtype != expected.dtype or got.shape != expected.shape:
            self._fail(f"{what}: {got.dtype} {got.shape} instead of {expected.dtype} {expected.shape}")
        elif ulps == 0.0 and not np.array_equal(got, expected):
            wrong = np.flatnonzero(got.reshape(-1) != expected.reshape(-1))
            i = wrong[0]
            self._fail(
                f"{what}: {len(wrong)} of {got.size} wrong; [{i}] is {got.flat[i]} instead of {expected.flat[i]}"
            )
        elif ulps > 0.0 and ulps_apart(got, expected) > ulps:
            self._fail(f"{what}: {ulps_apart(got, expected):g} units of the last place off, {ulps:g} are allowed")

    def that(self, what: str, is_so: bool) -> None:
        """Something is so."""
        self.count += 1
        if not is_so:
            self._fail(what)

    def report(self) -> dict[str, object]:
        return {"count": self.count, "failures": self.failures, "digest": self._digest.hexdigest()}

    def _fail(self, text: str) -> None:
        if len(self.failures) < _MOST:
            self.failures.append(text)
