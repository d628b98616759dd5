"""What the cluster is like: how many ranks fit, where they reach the driver, and what stands in the way."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ringcore.adapter import import_framework
from ringcore.launcher.external import own_address

_DYNAMIC = "spark.dynamicAllocation.enabled"
# Spark counts its tasks a little later than they end.
_HEAR_MS = 5000
_warned = False


def active_session(spark: Any) -> Any:
    """The session to use.

    Raises:
        ImportError: PySpark is not installed; the message tells what to install.
        RuntimeError: There is none, it has been stopped, or this is a rank or a task itself.
        TypeError: It is none.
    """
    import_framework("pyspark", "ringcore-spark", {"pyspark": "'ringcore-spark[pyspark]'"})
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    if os.environ.get("RINGCORE_RANK") or TaskContext.get() is not None:
        raise RuntimeError(
            "ringcore_spark.run is called inside a rank or a task of Spark; call it on the driver, where the session is"
        )
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise RuntimeError(
            "there is no active Spark session: make one with SparkSession.builder.getOrCreate(), or pass spark="
        )
    if not hasattr(session, "createDataFrame"):
        raise TypeError(f"spark= is a {type(session).__name__}, and no SparkSession")
    context = context_of(session)
    if context is not None and context._jsc is None:
        raise RuntimeError(
            "this Spark session has been stopped: make another one with SparkSession.builder.getOrCreate()"
        )
    return session


def context_of(session: Any) -> Any:
    """The SparkContext; `None` over Spark Connect, where there is none."""
    from pyspark.errors import PySparkException

    try:
        return session.sparkContext
    except (PySparkException, AttributeError):
        return None


def number_of_ranks(session: Any, wanted: int | None, profile: Any = None) -> int:
    """How many ranks to start.

    Args:
        session: The session.
        wanted: How many; None: as many as fit.
        profile: What a task needs, as a ResourceProfile; None: as set.

    Raises:
        ValueError: There are not as many slots, or nobody says how many ranks are wanted.
    """
    slots = _slots(session, profile)
    if wanted is None:
        wanted = _known(slots, "num_proc=")
    _check_slots(session, wanted, slots, profile)
    if wanted < 1:
        raise ValueError(f"a job has at least one rank, not {wanted}")
    return wanted


def numbers_of_ranks(
    session: Any, wanted: int | None, least: int | None, most: int | None, profile: Any = None
) -> tuple[int, int, int]:
    """How many ranks an elastic job begins with, at least has, and at most has.

    Args:
        session: The session.
        wanted: It begins with so many; None: as many as fit.
        least: None: as many as it begins with, if that was said, or else one.
        most: None: as many as fit.
        profile: See `number_of_ranks`.

    Raises:
        ValueError: They do not fit together, or there are not as many slots and Spark makes no more.
    """
    slots = _slots(session, profile)
    may_grow = _is_on(session, _DYNAMIC)
    least = (wanted or 1) if least is None else least
    most = max(least, wanted or 0, _known(slots, "max_num_proc=")) if most is None else most
    wanted = max(least, min(most, _known(slots, "num_proc="))) if wanted is None else wanted
    if not 1 <= least <= wanted <= most:
        raise ValueError(
            f"an elastic job begins with num_proc={wanted} ranks, which is not between min_num_proc={least} and "
            f"max_num_proc={most}"
        )
    if not may_grow:
        _check_slots(session, wanted, slots, profile)
    return wanted, least, most


def _known(slots: int | None, argument: str) -> int:
    if slots is None:
        raise ValueError(f"say how many ranks ({argument}): Spark does not tell how many slots there are")
    return slots


def _check_slots(session: Any, wanted: int, slots: int | None, profile: Any) -> None:
    if slots is not None and wanted > slots:
        need = f"{_setting(session, 'spark.task.cpus', '1')} core(s) of its executors (spark.task.cpus)"
        is_local = re.match(r"local(\[|$)", _setting(session, "spark.master", ""))
        settings = "raise spark.executor.instances or spark.executor.cores"
        raise ValueError(
            f"{wanted} ranks need as many slots at the same time, and the cluster has {slots}: one for each "
            f"{need if profile is None else 'share of its executors that resources= says'}. Ask for fewer "
            f"ranks, or {f'start Spark as local[{wanted}]' if is_local else settings}"
        )


def _slots(session: Any, profile: Any) -> int | None:
    """Tasks that can run at the same time, as Spark itself counts them before a barrier stage; None: it does not say.

    Raises:
        ValueError: This kind of cluster has no resources of stages.
    """
    context = context_of(session)
    if context is None:
        local = re.fullmatch(r"local\[(\d+)\b.*\]", _setting(session, "spark.master", ""))
        return int(local[1]) if local else None
    scala = context._jsc.sc()
    manager = scala.resourceProfileManager()
    if profile is None:
        return int(scala.maxNumConcurrentTasks(manager.defaultResourceProfile()))
    from py4j.protocol import Py4JJavaError

    wanted = profile._java_resource_profile
    try:
        manager.addResourceProfile(wanted)
    except Py4JJavaError as error:
        why = error.java_exception.getMessage().rstrip(".")
        raise ValueError(
            f"Spark does not take resources= here: {why}. Ask for no more than an executor has, or leave it out and "
            "set spark.task.cpus and spark.task.resource.gpu.amount"
        ) from error
    return int(scala.maxNumConcurrentTasks(wanted))


def check_settings(session: Any, *, elastic: bool = False) -> None:
    """Refuse what Spark would refuse later, or do in silence.

    Raises:
        ValueError: With the setting.
    """
    if _is_on(session, _DYNAMIC) and not elastic:
        raise ValueError(
            f"{_DYNAMIC} is true, and Spark runs no barrier stage then: all ranks have to run at the same time. Set it "
            "to false for this application, with spark.executor.instances executors; or give elastic=True, whose ranks "
            "come and go as executors do"
        )
    if _is_on(session, "spark.speculation"):
        raise ValueError(
            "spark.speculation is true: Spark would start a rank twice when it is slow. Set it to false for this "
            "application"
        )


def encryption(session: Any, env: Mapping[str, str]) -> dict[str, str]:
    """Variables for the ranks that follow from what Spark encrypts. Warns once where the key travels in clear text."""
    global _warned
    is_watched = not _warned and context_of(session) is not None and driver_host(session) != "127.0.0.1"
    if is_watched and not tasks_are_encrypted(lambda name: _is_on(session, name), session.version):
        _warned = True
        warnings.warn(
            "Spark sends tasks in clear text, and with them the key of the job: where the network is not trusted, set "
            "both spark.network.crypto.enabled and spark.authenticate or, from Spark 4.0 on, spark.ssl.rpc.enabled "
            "(spark.ssl.enabled alone leaves tasks in clear text)",
            stacklevel=3,
        )
    if _is_on(session, "spark.ssl.enabled") and "RINGCORE_ENCRYPTION" not in env:
        return {"RINGCORE_ENCRYPTION": "on"}
    return {}


def tasks_are_encrypted(is_on: Callable[[str], bool], version: str) -> bool:
    """Whether Spark encrypts its RPC, by which tasks travel.

    Of all parts of Spark only its RPC does not inherit `spark.ssl.enabled`, and before 4.0 it has no SSL (SPARK-45427).
    The two older encryptions follow from authentication: without that, Spark reads neither setting.

    Args:
        is_on: Whether a setting is true.
        version: Of Spark.
    """
    if is_on("spark.ssl.rpc.enabled") and int(version.partition(".")[0]) >= 4:
        return True
    older = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption")
    return is_on("spark.authenticate") and any(map(is_on, older))


def driver_host(session: Any) -> str:
    """Where executors reach this process: on loopback if they are on this machine."""
    context = context_of(session)
    if context is None:
        return own_address()
    if context.master.startswith("local"):
        return "127.0.0.1"
    return _setting(session, "spark.driver.host", "") or own_address()


def words_of(session: Any, error: BaseException, doing: str) -> str:
    """What Spark says, without its stacks: the exception of a task's Python and its host, or else the first line.

    Args:
        session: The session.
        error: What it raised.
        doing: What it could not do.
    """
    lines = str(error).splitlines() or [type(error).__name__]
    starts = [index for index, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    after = lines[starts[-1] + 1 :] if starts else lines
    # Behind a traceback's lines, which are indented.
    if not starts and len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        after = [lines[1].removeprefix(":").strip()]  # Py4J's first line names its own call.
    said = next((line for line in after if line.strip() and not line[0].isspace()), lines[0])
    host = _host_of(session, str(error))
    missing = re.search(r"No module named '(ringcore\w*|cloudpickle|pyarrow)", said)
    remedy = "" if missing is None else (
        ". Install it for the Python of the executors too, or name the Python that has it: PYSPARK_PYTHON in the "
        "environment of the driver, or spark.pyspark.python"
    )  # fmt: skip
    return f"Spark could not {doing}{f' on {host}' if host else ''}: {said.strip()}{remedy}"


def _host_of(session: Any, said: str) -> str | None:
    """The host of the task that Spark says has failed. Of a barrier stage it tells only which task that was."""
    found = re.search(r"\(TID \d+\) \((\S+) executor ", said)
    task = re.search(r"ResultTask\((\d+), (\d+)\)", said)
    context = context_of(session)
    if found or not task or context is None:
        return found[1] if found else None
    scala = context._jsc.sc()
    from py4j.protocol import Py4JJavaError

    try:
        scala.listenerBus().waitUntilEmpty(_HEAR_MS)
        stage, index = int(task[1]), int(task[2])
        tasks = scala.statusStore().taskList(stage, 0, index + 1)  # In the order of their numbers.
        return str(tasks.apply(index).host())
    except Py4JJavaError:  # A busy Spark has forgotten the stage, or takes too long.
        return None


def _is_on(session: Any, name: str) -> bool:
    return _setting(session, name, "false").lower() == "true"


def _setting(session: Any, name: str, default: str) -> str:
    context = context_of(session)
    found = session.conf.get(name, default) if context is None else context.getConf().get(name, default)
    return str(found)
