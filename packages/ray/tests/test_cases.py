"""The conformance suite on ranks that are actors of Ray."""

from __future__ import annotations

import pytest
from conformance.on_rank import check, run_cases
from ringcore_ray import RingExecutor


@pytest.mark.long  # what the ranks do once they run is tests/conformance's
def test_every_rank_gets_the_right_results() -> None:
    with RingExecutor(num_workers=2) as executor:
        check(executor.run(run_cases, args=["numpy"]), "numpy", "shm")
