"""What an estimator starts its ranks with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringcore_spark.runner import run


class SparkBackend:
    """Ranks as tasks of Spark.

    Args:
        num_proc: How many; `None`: as many as fit.
        env: Variables for them.
        **options: Of `ringcore_spark.run`: `resources`, `start_timeout`, `retries`, ...
    """

    def __init__(self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **options: Any) -> None:
        self._num_proc = num_proc
        self._env = dict(env or {})
        self._options = options

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any], *, env: Mapping[str, str], spark: Any = None,
        dataframe: Any = None,
    ) -> list[Any]:  # fmt: skip
        """Call a function on every rank; see `ringcore_spark.run`."""
        environ = {**env, **self._env}
        given = {"env": environ, "spark": spark, "dataframe": dataframe, **self._options}
        return run(fn, args, num_proc=self._num_proc, **given)
