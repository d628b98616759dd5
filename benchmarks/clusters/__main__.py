"""Measures ranks that clusters start, beside what those clusters have.

    python benchmarks/clusters spark|ray|large [repeats [parts ...]]

    spark    calls: ringcore_spark.run and TorchDistributor, from the call to the results of a 4 MiB allreduce; our part
             of it
             estimator: TorchEstimator, and the same loop by hand
             parquet: an epoch on two ranks by ParquetShards and by a torch DataLoader over pyarrow
             kills: from the kill of a rank, and of a worker, to the error
             executors: from the kill of an executor's JVM to the error, on two executors with a JVM each
    ray      fit: RingTrainer and Ray Train's TorchTrainer, the same from fit()
             ready: start() of RingExecutor, and of actors that do nothing, where Ray has idle processes
             executor: the same where it has none; restart()
             kills: from the kill of an actor, and of a raylet, to the error
             nice: 64 MiB between actors and under ringrun, with the niceness that Ray gives its workers and without
    large    own: 64 MiB under ringrun, between tasks of Spark, and between actors of Ray
             gloo: the same between tasks of TorchDistributor, which take long to start

Two ranks each, interleaved; the first of each, and the median, least and most of the others. Results are checked, and
rows go to benchmarks/results/clusters-spark.jsonl, clusters-ray.jsonl and clusters-large.jsonl, where those of other
parts stay. All of them: `nox -s bench_clusters -- 10`. For a machine that does nothing else. Where petastorm is
installed (it needs pyarrow before 13), `python benchmarks/clusters petastorm` reads the same Parquet by it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

# Ranks unpickle functions of these modules.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")])


def _of(row: str) -> tuple[str, str]:
    told = json.loads(row)
    return told["what"], told["who"]


if __name__ == "__main__":
    import common

    if sys.argv[1] == "spark":
        import on_spark as measured
    elif sys.argv[1] == "ray":
        import on_ray as measured
    elif sys.argv[1] == "large":
        import large as measured
    else:
        import reading as measured
    unknown = set(sys.argv[3:]) - set(measured.PARTS)
    if unknown:
        sys.exit(f"there is no part {', '.join(sorted(unknown))}: {', '.join(measured.PARTS)}")
    measured.main(int(sys.argv[2]) if len(sys.argv) > 2 else 10, sys.argv[3:] or list(measured.PARTS))
    results = Path(__file__).parents[1] / "results" / f"clusters-{sys.argv[1]}.jsonl"
    before = results.read_text().splitlines() if results.exists() else []
    again = {_of(row) for row in common.rows}
    kept = [row for row in before if _of(row) not in again]
    results.write_text("\n".join([*kept, *common.rows]) + "\n")
