"""Executors that have another ringcore or another Python than the driver, by Python workers of their own."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import pytest
import ringcore
import ringcore_spark
from pyspark.sql import SparkSession
from ringcore_spark import LaunchError

# Py4J's own sockets, and what Spark says of versions of pandas.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
OWN = "\\W+".join(platform.python_version_tuple()[:2])  # "3.11", or "(3, 11)"


def place() -> int:
    import ringcore as ring

    ring.init()
    return ring.rank()


def another_ringcore(folder: Path) -> Path:
    """This ringcore, with another number."""
    package = folder / "ringcore"
    package.mkdir()
    for entry in Path(ringcore.__file__).parent.iterdir():
        if entry.name not in ("_version.py", "__pycache__"):
            (package / entry.name).symlink_to(entry)
    (package / "_version.py").write_text('__version__ = "9.9"\n')
    return folder


def test_another_ringcore_is_named_with_both_hosts_and_versions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers of Python with another environment are others than those that this session has.
    path = os.pathsep.join([str(another_ringcore(tmp_path)), spark.sparkContext.environment.get("PYTHONPATH", "")])
    with monkeypatch.context() as patch:
        patch.setitem(spark.sparkContext.environment, "PYTHONPATH", path)
        host, version = socket.gethostname(), ringcore.__version__
        said = rf"on \S+: .*{host} has ringcore {version}, but {host} has ringcore 9\.9; install the same version"
        with pytest.raises(LaunchError, match=said) as caught:
            ringcore_spark.run(place)
        assert "\tat org.apache" not in str(caught.value)
    assert ringcore_spark.run(place) == [0, 1]


def test_an_executor_without_ringcore_is_told_what_to_do(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ringcore_spark.py").write_text("import ringcore_that_is_not_there")
    path = os.pathsep.join([str(tmp_path), spark.sparkContext.environment.get("PYTHONPATH", "")])
    with monkeypatch.context() as patch:
        patch.setitem(spark.sparkContext.environment, "PYTHONPATH", path)
        said = r"on \S+: ModuleNotFoundError: No module named 'ringcore_that.*'\. Install it .* PYSPARK_PYTHON"
        with pytest.raises(LaunchError, match=said):
            ringcore_spark.run(place)
    assert ringcore_spark.run(place) == [0, 1]


def test_another_python_is_named_with_its_host_and_both_versions(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself looks at that before the task begins, and tells the host elsewhere."""
    with monkeypatch.context() as patch:
        patch.setattr(spark.sparkContext, "pythonVer", "3.1")
        said = rf"could not run the tasks on \S+: .* version.*\b{OWN}\b.* than that in driver.* 3\.1\b"
        with pytest.raises(LaunchError, match=said):
            ringcore_spark.run(place)
    assert ringcore_spark.run(place) == [0, 1]
