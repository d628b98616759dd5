"""`ringcore_spark.run`: a function on ranks that Spark places."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ringcore.launcher.external import Elasticity, LaunchError, PlacedJob, RankError

from ringcore_spark import cluster
from ringcore_spark.progress import Progress
from ringcore_spark.tasks import Tasks

T = TypeVar("T")

# Clusters may have to start machines before they have slots for all; an elastic job begins with fewer before.
_LIMIT_S, _FEWER_S = 600.0, 60.0
# All ranks have ended: what Spark does then is to hear of its tasks.
_END_LIMIT_S = 30.0


def run(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    spark: Any = None,
    env: Mapping[str, str] | None = None,
    resources: Any = None,
    dataframe: Any = None,
    verbose: bool = False,
    start_timeout: float | None = None,
    retries: int = 0,
    elastic: bool = False,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
) -> list[T]:
    """Call a function on several ranks at the same time, each in a task of Spark, and wait for all of them.

    The tasks are one barrier stage, or an ordinary one where the job is elastic. A rank is a child process of its
    task's Python worker: what it does to itself does not harm the worker, and it is dead when the task is. What ranks
    print appears here as it comes; a line of rank 0 that begins with `progress: ` appears in Spark's page as well.

    Args:
        fn: The function; it calls `ring.init()`. Pickled by cloudpickle.
        args: Its arguments, the same on each rank.
        kwargs: Its keyword arguments.
        num_proc: Number of ranks; `None`: as many as tasks fit. An elastic job begins with so many.
        spark: The session; `None`: the active one.
        env: Variables for the ranks, `RINGCORE_*` settings among them.
        resources: What a task needs, as a ResourceProfile of Spark or as `{"cpus": 2, "gpu": 1}`; `None`: as set.
        dataframe: Its rows are dealt to the ranks, which read them by `ringcore_spark.partition`: each task keeps its
            part on its own disk, and nothing is written elsewhere.
        verbose: Say what is done.
        start_timeout: Seconds after which all tasks must have begun, with their part of the DataFrame; `None`: 600.
            An elastic job begins then with fewer (`None`: 60).
        retries: How often to start anew when ranks or executors fail. The function has to load its checkpoint itself.
        elastic: Go on without ranks that are lost, and take in others: the function calls one that
            `ringcore.elastic.run` decorates. A task whose rank fails brings another one, and so does a task that Spark
            tries again, or that begins later.
        min_num_proc: An elastic job with fewer waits; `None`: `num_proc`, or 1 if that is not given.
        max_num_proc: It has no more; `None`: as many as tasks fit.
        elastic_timeout: Seconds for which it waits with fewer than `min_num_proc`; `None`: 600.
        reset_limit: It ends after so many changes; `None`: it does not.

    Returns:
        What it returned, in the order of ranks; of an elastic job, by those that were there in the end. Ranks of an
        executor's host are neighbours.

    Raises:
        RankError: It raised on a rank, or a rank was killed; its `original` is the exception.
        LaunchError: The ranks could not be started.
        ValueError: There are too few slots, a setting of Spark stands in the way, or a number is wrong.
        TypeError: The function or its arguments cannot be pickled, or an argument is of another type.
        RuntimeError: There is no session, or this is a rank itself.
    """
    further = (min_num_proc, max_num_proc, elastic_timeout, reset_limit)
    if not elastic and further != (None,) * len(further):
        raise ValueError(
            "min_num_proc=, max_num_proc=, elastic_timeout= and reset_limit= are of elastic jobs: give elastic=True as "
            "well"
        )
    _check_times(start_timeout=start_timeout, elastic_timeout=elastic_timeout)
    _check_numbers(num_proc=num_proc, min_num_proc=min_num_proc, max_num_proc=max_num_proc, retries=retries)
    if dataframe is not None and not hasattr(dataframe, "mapInArrow"):
        raise TypeError(
            f"dataframe= is a {type(dataframe).__name__}, and no DataFrame of Spark: spark.createDataFrame makes one"
        )
    if retries < 0:
        raise ValueError(f"retries={retries} is how often to start anew: 0 or more")
    if elastic and dataframe is not None:
        raise ValueError(
            "dataframe= deals its rows to fixed ranks, and those of a lost one would be lost: leave elastic=True out, "
            "or let ranks read shared files, by ringcore.data.ParquetShards or an ElasticSampler"
        )
    session = cluster.active_session(spark)
    cluster.check_settings(session, elastic=elastic)
    profile = _profile(resources)
    elasticity = None
    if elastic:
        size, least, most = cluster.numbers_of_ranks(session, num_proc, min_num_proc, max_num_proc, profile)
        elasticity = Elasticity(least, most, _LIMIT_S if elastic_timeout is None else elastic_timeout, reset_limit)
    else:
        size = cluster.number_of_ranks(session, num_proc, profile)
    environ = {**cluster.encryption(session, env or {}), **(env or {})}
    description = f"{_name(fn)} on {size} ranks"
    for attempt in range(retries + 1):
        tag = f"ringcore-{uuid.uuid4().hex}"
        progress = Progress(cluster.context_of(session), tag, description)
        # Each attempt has a key of its own: ranks of one before, if they live, find nobody.
        with PlacedJob(
            size,
            fn,
            args,
            kwargs,
            host=cluster.driver_host(session),
            env=environ,
            start_timeout_s=(_FEWER_S if elastic else _LIMIT_S) if start_timeout is None else start_timeout,
            verbose=verbose,
            hear=progress.hear,
            elastic=elasticity,
        ) as job:
            try:
                stage = _Stage(session, job, profile, dataframe, tag, description)
                results = stage.results()
                progress.show()
                return results
            except (RankError, LaunchError) as error:
                if attempt == retries:
                    raise
                print(f"attempt {attempt + 1} of {retries + 1} failed: {str(error).partition(chr(10))[0]}")
    raise AssertionError("the last attempt returns or raises")


class _Stage:
    """The stage of one attempt. A thread waits for Spark; this one shows what ranks print."""

    def __init__(self, session: Any, job: PlacedJob, profile: Any, dataframe: Any, tag: str, description: str) -> None:
        self._session = session
        self._context = cluster.context_of(session)
        self._job = job
        self._profile = profile
        self._dataframe = dataframe
        self._description = description
        self._tag = tag
        self._error: BaseException | None = None
        self._over = threading.Event()

    def results(self) -> list[Any]:
        """Wait for all ranks; see `run`."""
        thread = self._thread()
        thread.start()
        try:
            results = self._job.results()
        except LaunchError as error:
            if self._error is None and self._context is None:
                raise LaunchError(
                    f"{error}\nSpark Connect does not tell how many slots there are: has the cluster one for each of "
                    f"{self._job.size} ranks (executors, cores, spark.task.cpus)?"
                ) from error
            if self._error is None:
                raise
            raise LaunchError(cluster.words_of(self._session, self._error, "run the tasks")) from self._error
        else:
            thread.join(_END_LIMIT_S)
            return results
        finally:
            self._over.set()
            self._job.stop()
            if thread.is_alive():
                thread.join(0.5)  # Tasks that have begun end by themselves, and no task fails.
            if thread.is_alive():
                self._cancel()
                thread.join(_END_LIMIT_S)

    def _thread(self) -> threading.Thread:
        if self._context is None:
            return threading.Thread(target=self._run, name="ringcore-spark", daemon=True)
        from pyspark import InheritableThread

        # It has the properties of this one, such as the scheduler's pool, and its twin in Java ends with it.
        thread: threading.Thread = InheritableThread(target=self._run, name="ringcore-spark", daemon=True)
        return thread

    def _run(self) -> None:
        try:
            self._submit()
        except BaseException as error:
            if not self._over.is_set():
                self._error = error
                self._job.abandon()  # The launcher may hear later of the same, and knows which rank it was.

    def _submit(self) -> None:
        count = self._job.tasks
        if self._context is not None:
            self._context.setJobGroup(self._tag, self._description, interruptOnCancel=True)
        else:
            self._session.addTag(self._tag)
        keep = self._dataframe is not None
        fixed = not self._job.is_elastic
        tasks = Tasks(
            [self._job.ticket(index) for index in range(count)], self._job.call, keep=keep, again=not fixed
        )  # fmt: skip
        rows = self._dataframe.repartition(count) if keep else self._session.range(0, count, 1, count)
        profile = {} if self._profile is None else {"profile": self._profile}  # Spark 3.5 has no such argument.
        rows.mapInArrow(tasks, "nothing int", barrier=fixed, **profile).collect()

    def _cancel(self) -> None:
        if self._context is not None:
            self._context.cancelJobGroup(self._tag)
        else:
            self._session.interruptTag(self._tag)


def _check_times(**times: float | None) -> None:
    for name, seconds in times.items():
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"{name}={seconds} is not a time that tasks can take: give seconds, more than 0, or None")


def _check_numbers(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and not hasattr(number, "__index__"):
            raise TypeError(f"{name}={number!r} is no whole number")


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", fn))


def _profile(resources: Any) -> Any:
    """What a task needs, as this session has it. A profile that was made before there was one is made anew."""
    if resources is None:
        return None
    from pyspark.resource import (
        ExecutorResourceRequests,
        ResourceProfile,
        ResourceProfileBuilder,
        TaskResourceRequests,
    )

    builder = ResourceProfileBuilder()
    if isinstance(resources, ResourceProfile):
        if resources._java_resource_profile is not None:
            return resources
        builder.require(ExecutorResourceRequests(_requests=resources.executorResources))
        return builder.require(TaskResourceRequests(_requests=resources.taskResources)).build
    if not isinstance(resources, Mapping):
        raise TypeError(
            f'resources= is a {type(resources).__name__}: give what a task needs, such as {{"cpus": 2, "gpu": 1}}, or '
            "a ResourceProfile of Spark"
        )
    requests = TaskResourceRequests()
    for name, amount in resources.items():
        if name == "cpus":
            requests.cpus(amount)
        else:
            requests.resource(name, amount)
    return builder.require(requests).build
