"""Which rank ringrun blames when one ends and the others fail for it, in the framework's own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.blame import WAYS, check_blame

FRAMEWORK = """
    import tensorflow as tf
    import ringcore_tensorflow as ring

    @tf.function
    def step():
        return ring.allreduce(tf.ones([8]))
"""


@pytest.mark.long  # in each run PyTorch's adapter, of whatever the launcher sees
@pytest.mark.parametrize("way", WAYS)
def test_the_rank_that_ended_is_blamed_and_its_exit_code_told(tmp_path: Path, way: str) -> None:
    check_blame(tmp_path, FRAMEWORK, way)
