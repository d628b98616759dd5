"""The times that the comparison with parameter servers is held against, and how it tells wrong weights."""

from __future__ import annotations

import pytest
from parameter_server.bounds import ring_s, servers_range_s, servers_s
from parameter_server.measure import LARGEST_ERROR, WrongWeightsError, check_weights

RATE = 10.0


def test_ring() -> None:
    assert [ring_s(workers, 100.0, RATE) for workers in (1, 2, 4, 8)] == [0.0, 10.0, 15.0, 17.5]


@pytest.mark.parametrize(("servers", "times"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_servers(servers: int, times: int) -> None:
    """Of 4 workers: the narrower of all workers' and all servers' cables, for all tensors and the largest once more."""
    assert servers_range_s(4, servers, 100.0, RATE) == (10.0 * times, 20.0 * times)
    assert servers_s(4, servers, [100], RATE) == 20.0 * times
    assert servers_s(4, servers, [10] * 10, RATE) == 11.0 * times
    assert servers_s(4, servers, [70, 20, 10], RATE) == 17.0 * times


def test_wrong_weights_are_noticed() -> None:
    right = {"digest": "a", "error": LARGEST_ERROR / 10, "moved": 0.01}
    check_weights([right, {"digest": "a"}])
    for wrong in ({**right, "error": 1e-4}, {**right, "error": float("nan")}, {**right, "moved": 1e-7}):
        with pytest.raises(WrongWeightsError, match="off by"):
            check_weights([wrong, {"digest": "a"}])
    with pytest.raises(WrongWeightsError, match="different weights"):
        check_weights([right, {"digest": "b"}])
