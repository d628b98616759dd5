"""`ringcore_spark.run` on a real Spark, local[2]."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore_spark
from pyspark.sql import SparkSession
from ringcore_spark import LaunchError, RankError, cluster, runner
from support.processes import WRITE_PID, Pids, eventually, is_alive

# Py4J's own sockets, and what Spark says of versions of pandas.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def total(value: float) -> tuple[int, int, float]:
    import ringcore as ring

    ring.init()
    print("hello")
    return ring.rank(), ring.local_size(), float(ring.allreduce(np.full(9, value + ring.rank()), op=ring.Sum)[0])


def test_results_in_order_and_output_of_a_function_that_was_defined_here(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    offset = 3.0
    local = lambda: (*total(offset), os.environ["SOME_NAME"])  # noqa: E731
    assert ringcore_spark.run(local, env={"SOME_NAME": "x"}) == [(0, 2, 7.0, "x"), (1, 2, 7.0, "x")]
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0]<stdout> hello", "[1]<stdout> hello"]
    assert ringcore_spark.run(total, (1.0,), num_proc=1, spark=spark) == [(0, 1, 1.0)]


def fails_on_one(how: str) -> None:
    import ringcore as ring

    ring.init()
    ring.barrier()
    if ring.rank() == 1:
        if how == "raise":
            raise LookupError("no such row")
        os.abort()
    ring.allreduce(np.ones(10))


def test_what_a_rank_raises_is_the_exception_without_a_stack_of_java(spark: SparkSession) -> None:
    with pytest.raises(RankError, match="rank 1 raised LookupError: no such row") as caught:
        ringcore_spark.run(fails_on_one, ("raise",))
    assert isinstance(caught.value.original, LookupError)
    assert "in fails_on_one" in caught.value.remote_traceback
    # The folder of this environment may be named after Java.
    assert not re.search(r"java\.|Py4J|org\.apache|\tat ", str(caught.value))
    with pytest.raises(RankError, match=r"rank 1 of 2 on .* was killed by SIGABRT"):
        ringcore_spark.run(fails_on_one, ("abort",))


def waits(folder: str, moment: str = "allreduce") -> None:
    """Rank 0 gets no further than this moment, and the other waits for it."""
    import ringcore as ring

    os.chdir(folder)
    namespace: dict[str, Any] = {}
    exec(WRITE_PID, namespace)
    if moment == "start":
        namespace["write_pid"](os.environ["RINGCORE_RANK"])
        if os.environ["RINGCORE_RANK"] == "0":
            time.sleep(1000)
    ring.init()
    namespace["write_pid"](ring.rank())
    ring.barrier()
    if ring.rank() == 0:
        time.sleep(1000)
    ring.allreduce(np.ones(10))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def launcher_of_this_process() -> int:
    own = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    (launcher,) = (
        pid
        for pid in own
        if is_alive(pid)
        and parent(pid) == os.getpid()
        and b"ringcore.launcher.call" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return launcher


@pytest.mark.parametrize("moment", [pytest.param("start", marks=pytest.mark.long), "allreduce"])
@pytest.mark.parametrize("victim", ["rank", pytest.param("worker", marks=pytest.mark.long)])
def test_who_is_killed_is_the_error_and_leaves_no_rank(
    spark: SparkSession, tmp_path: Path, victim: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = threading.Event()
    abandon = runner.PlacedJob.abandon

    def abandon_and_tell(job: runner.PlacedJob) -> None:
        abandon(job)
        given_up.set()

    monkeypatch.setattr(runner.PlacedJob, "abandon", abandon_and_tell)

    def kill() -> None:
        pid = Pids(tmp_path).wait(2)["0"]
        if victim == "rank":
            os.kill(pid, signal.SIGKILL)
            return
        launcher = launcher_of_this_process()
        os.kill(launcher, signal.SIGSTOP)  # So Spark hears of it first.
        # Spark's worker has a zygote, that an agent, that the rank.
        os.kill(parent(parent(parent(pid))), signal.SIGKILL)
        heard = given_up.wait(300)
        os.kill(launcher, signal.SIGCONT)
        assert heard, "Spark has given the stage up"

    killer = threading.Thread(target=kill)
    killer.start()
    said = r"rank 0 of 2 on .* was killed by SIGKILL" if victim == "rank" else r"its agent has gone"
    with pytest.raises(RankError, match=said) as caught:
        ringcore_spark.run(waits, (str(tmp_path), moment))
    killer.join()
    assert caught.value.rank == 0
    eventually(lambda: not any(map(is_alive, Pids(tmp_path).read().values())), "no rank is left", 30)
    if moment == "allreduce":
        assert ringcore_spark.run(total, (1.0,)) == [(0, 2, 3.0), (1, 2, 3.0)]


@pytest.mark.parametrize("where", ["Spark's page", pytest.param("the notebook", marks=pytest.mark.long)])
def test_a_job_that_is_cancelled_leaves_no_rank(spark: SparkSession, tmp_path: Path, where: str) -> None:
    def cancel() -> None:
        Pids(tmp_path).wait(2)
        if where == "the notebook":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            spark.sparkContext.cancelAllJobs()

    killer = threading.Thread(target=cancel)
    killer.start()
    with pytest.raises(KeyboardInterrupt if where == "the notebook" else (RankError, LaunchError)):
        ringcore_spark.run(waits, (str(tmp_path),))
    killer.join()
    eventually(lambda: not any(map(is_alive, Pids(tmp_path).read().values())), "no rank is left", 30)


def fails_once(mark: str) -> int:
    import ringcore as ring

    ring.init()
    ring.barrier()
    if ring.rank() == 0 and not Path(mark).exists():
        Path(mark).touch()
        raise LookupError("the first time")
    ring.barrier()
    return ring.rank()


def test_retries_start_anew_where_they_are_asked_for(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ringcore_spark.run(fails_once, (str(tmp_path / "mark"),), retries=1) == [0, 1]
    assert "attempt 1 of 2 failed: rank 0 raised LookupError: the first time" in capsys.readouterr().out


def descriptors(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.long
def test_ten_jobs_one_after_the_other_leave_nothing(spark: SparkSession) -> None:
    jvm = spark._jvm.ProcessHandle.current().pid()
    ringcore_spark.run(total, (1.0,))
    own, of_java = descriptors(), descriptors(jvm)
    for _ in range(10):
        assert ringcore_spark.run(total, (1.0,)) == [(0, 2, 3.0), (1, 2, 3.0)]
    eventually(lambda: descriptors() <= own, "the driver holds no more descriptors than before", 30)
    # Java closes when it likes to, and opens jars; jobs that each kept one would show.
    assert descriptors(jvm) < of_java + 10


def tells() -> None:
    import ringcore as ring

    ring.init()
    if ring.rank() == 0:
        print("progress: epoch 1 of 2: loss 0.5\nnothing to tell\nprogress: epoch 2 of 2: loss 0.25")
    else:
        print("progress: of another rank")


def test_progress_of_rank_0_is_in_sparks_page(spark: SparkSession) -> None:
    ringcore_spark.run(tells)
    wanted = "tells on 2 ranks: epoch 2 of 2: loss 0.25"

    def described() -> list[str]:
        jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
        found = [jobs.apply(index).description() for index in range(jobs.size())]
        return [text.get() for text in found if text.isDefined() and text.get().startswith("tells")]

    eventually(lambda: wanted in described(), "Spark's page has the last line", 30)
    assert "tells on 2 ranks" in described(), "that of the ranks' own stage"
    assert not any("another rank" in text for text in described())
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


def reads() -> dict[str, list[list[int]]]:
    import ringcore as ring

    ring.init()
    found = {}
    for uneven in ("pad", "join"):
        shards = ringcore_spark.partition(8, ["id", "pair"], uneven=uneven, shuffle=uneven == "pad")
        for epoch in ("first", "second"):
            batches = list(shards)
            for batch in batches:
                assert (batch["pair"] == np.stack([batch["id"], batch["id"] + 1], 1)).all()
                batch["id"][0] += 0  # whoever trains may write to it
            found[f"{uneven}, {epoch}"] = [batch["id"].tolist() for batch in batches]
    return found


def test_rows_of_a_dataframe_stay_with_the_tasks_of_the_ranks(spark: SparkSession) -> None:
    frame = spark.range(0, 101, 1, 5).selectExpr("id", "array(id, id + 1) as pair")
    ranks = ringcore_spark.run(reads, dataframe=frame)
    for name in ranks[0]:
        rows = sorted(row for rank in ranks for batch in rank[name] for row in batch)
        padded = name.startswith("pad")
        assert sorted({*rows} if padded else rows) == list(range(101)), name
        assert not padded or [len(batch) for batch in ranks[0][name]] == [len(batch) for batch in ranks[1][name]]
    assert ranks[0]["pad, first"] != ranks[0]["pad, second"], "rows are shuffled anew"
    with pytest.raises(RankError, match=r"ValueError: rank [01] has none of the DataFrame's 1 row\(s\)"):
        ringcore_spark.run(reads, dataframe=frame.limit(1))
    with pytest.raises(RankError, match=r"there is no DataFrame: give one to ringcore_spark.run"):
        ringcore_spark.run(reads)


def runs_again() -> str:
    with pytest.raises(RuntimeError) as caught:
        ringcore_spark.run(total, (1.0,))
    return str(caught.value)


def forgets_init() -> None:
    import ringcore as ring

    ring.allreduce(np.ones(3))


def test_what_goes_wrong_inside_a_rank_is_said(spark: SparkSession) -> None:
    for said in ringcore_spark.run(runs_again):
        assert "is called inside a rank or a task of Spark; call it on the driver" in said
    with pytest.raises(RankError, match=r"rank [01] raised NotInitializedError: .*init\(\)") as caught:
        ringcore_spark.run(forgets_init)
    assert type(caught.value.original).__name__ == "NotInitializedError"


def test_what_cannot_be_is_said_before_anything_starts(spark: SparkSession) -> None:
    remedy = r"local\[3\]" if spark.sparkContext.master == "local[2]" else r"spark\.executor\.instances"
    said = rf"3 ranks need as many slots .* the cluster has 2: .*spark\.task\.cpus.* or .*{remedy}"
    with pytest.raises(ValueError, match=said):
        ringcore_spark.run(total, (1.0,), num_proc=3)
    with pytest.raises(ValueError, match="at least one rank, not 0"):
        ringcore_spark.run(total, (1.0,), num_proc=0)
    for name, value in (("start_timeout", 0), ("start_timeout", -1.0), ("start_timeout", float("nan"))):
        with pytest.raises(ValueError, match=rf"{name}={value} is not a time .*: give seconds, more than 0, or None"):
            ringcore_spark.run(total, (1.0,), **{name: value})  # type: ignore[arg-type]
    for name in ("num_proc", "min_num_proc"):
        with pytest.raises(TypeError, match=rf"{name}='2' is no whole number"):
            ringcore_spark.run(total, (1.0,), elastic=True, **{name: "2"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"are to call is a tuple, and no function: give the function itself"):
        ringcore_spark.run(("results",))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"spark= is a str, and no SparkSession"):
        ringcore_spark.run(total, (1.0,), spark="local[2]")
    with pytest.raises(TypeError, match=r"dataframe= is a list, and no DataFrame of Spark"):
        ringcore_spark.run(total, (1.0,), dataframe=[(1.0, 2.0)])
    with pytest.raises(TypeError, match=r"resources= is a str: give what a task needs, such as .* ResourceProfile"):
        ringcore_spark.run(total, (1.0,), resources="gpu")
    with pytest.raises(ValueError, match=r"retries=-1 is how often to start anew"):
        ringcore_spark.run(total, (1.0,), retries=-1)
    if spark.sparkContext.master == "local[2]":  # A cluster takes them, as tests of its own show.
        with pytest.raises(
            ValueError, match=r"Spark does not take resources= here: TaskResourceProfiles .*spark\.task\.cpus"
        ):
            ringcore_spark.run(total, (1.0,), resources={"cpus": 1})
    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot be pickled because of variable 'lock'"):
        ringcore_spark.run(lambda: lock)
    conf = spark.sparkContext._conf
    for name, said in (
        ("spark.dynamicAllocation.enabled", "spark.dynamicAllocation.enabled is true, and Spark runs no barrier stage"),
        ("spark.speculation", "spark.speculation is true: Spark would start a rank twice"),
    ):
        before = conf.get(name, "false")
        conf.set(name, "true")
        with pytest.raises(ValueError, match=said):
            ringcore_spark.run(total, (1.0,))
        conf.set(name, before)


@pytest.mark.parametrize(
    ("settings", "version", "encrypted"),
    [
        ("", "4.3.0", False),
        ("ssl", "4.3.0", False),
        ("ssl.rpc", "4.3.0", True),
        ("ssl.rpc", "4.0.0.dev1", True),
        ("ssl.rpc ssl", "3.5.7", False),
        ("network.crypto", "4.3.0", False),
        ("authenticate", "4.3.0", False),
        ("authenticate ssl", "4.3.0", False),
        ("authenticate network.crypto", "3.5.7", True),
        ("authenticate authenticate.enableSaslEncryption", "4.3.0", True),
        ("authenticate.enableSaslEncryption", "4.3.0", False),
    ],
)
def test_tasks_are_encrypted_only_by_settings_that_are_of_sparks_rpc(
    settings: str, version: str, encrypted: bool
) -> None:
    switches = {"ssl", "ssl.rpc", "network.crypto"}
    names = {f"spark.{name}.enabled" if name in switches else f"spark.{name}" for name in settings.split()}
    assert cluster.tasks_are_encrypted(names.__contains__, version) == encrypted


def test_what_spark_encrypts_ranks_encrypt_too_and_clear_text_is_warned_of_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "_warned", False)
        patch.setattr(context, "master", "spark://elsewhere:7077")
        context._conf.set("spark.driver.host", "192.0.2.1")
        said = r"clear text, .*key of the job.* set both spark\.network\.crypto\.enabled and spark\.authenticate"
        context._conf.set("spark.ssl.enabled", "true")
        with pytest.warns(UserWarning, match=said):
            assert cluster.encryption(spark, {}) == {"RINGCORE_ENCRYPTION": "on"}
        context._conf.set("spark.ssl.enabled", "false")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cluster.encryption(spark, {}) == {}
        context._conf.set("spark.driver.host", "127.0.0.1")
    context._conf.set("spark.ssl.enabled", "true")
    try:
        assert ringcore_spark.run(lambda: os.environ["RINGCORE_ENCRYPTION"]) == ["on", "on"]
        assert cluster.encryption(spark, {"RINGCORE_ENCRYPTION": "off"}) == {}
    finally:
        context._conf.set("spark.ssl.enabled", "false")


@pytest.mark.long
def test_slots_that_are_taken_are_waited_for_and_named(spark: SparkSession) -> None:
    def busy(batches: Any) -> Any:
        time.sleep(1000)
        yield from batches

    context = spark.sparkContext

    def occupy() -> None:
        context.setJobGroup("busy", "takes both slots", interruptOnCancel=True)
        with pytest.raises(Exception, match="cancel"):
            spark.range(0, 2, 1, 2).mapInArrow(busy, "id long").collect()

    other = threading.Thread(target=occupy)
    other.start()
    eventually(lambda: len(context.statusTracker().getActiveJobsIds()) == 1, "the slots are taken", 60)
    try:
        with pytest.raises(LaunchError, match=r"task 0, task 1 did not answer within 2 s"):
            ringcore_spark.run(total, (1.0,), start_timeout=2)
    finally:
        context.cancelJobGroup("busy")
        other.join()
    assert len(ringcore_spark.run(total, (1.0,))) == 2
