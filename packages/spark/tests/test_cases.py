"""The conformance suite on ranks that Spark places."""

from __future__ import annotations

from pathlib import Path

import pytest
import ringcore_spark
from conformance.on_rank import check, run_cases
from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TESTS = str(Path(__file__).parents[3] / "tests")


@pytest.mark.long  # what the ranks do once they run is tests/conformance's
def test_every_rank_gets_the_right_results(spark: SparkSession) -> None:
    reports = ringcore_spark.run(run_cases, ("numpy",), num_proc=2, env={"PYTHONPATH": TESTS})
    check(reports, "numpy", "shm")
