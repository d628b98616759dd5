"""Measures ranks that clusters start, beside what those clusters have: python benchmarks/clusters spark|ray [repeats].

    spark    ringcore_spark.run and TorchDistributor: from the call to the results of a 4 MiB allreduce; our part of it;
             64 MiB between tasks, under ringrun, and by gloo; an estimator and a loop by hand; Parquet on two ranks by
             ParquetShards and a torch DataLoader over pyarrow; from a kill of a rank and of a worker to the error
    ray      RingTrainer and Ray Train's TorchTrainer: the same from fit(); RingExecutor's start(), and actors that do
             nothing; from a kill of an actor to the error; 64 MiB between actors and under ringrun, with the niceness
             that Ray gives its workers and without

Two ranks each, interleaved; the first of each, and the median, least and most of the others. Results are checked, and
rows go to benchmarks/results/clusters-spark.jsonl and clusters-ray.jsonl.
Both: `nox -s bench_clusters -- 5`. For a machine that does nothing else. Where petastorm is installed (it needs pyarrow
before 13), `python benchmarks/clusters petastorm` reads the same Parquet by it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Ranks unpickle functions of these modules.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")])

if __name__ == "__main__":
    import common

    if sys.argv[1] == "spark":
        import on_spark as measured
    elif sys.argv[1] == "ray":
        import on_ray as measured
    else:
        import reading as measured
    measured.main(int(sys.argv[2]) if len(sys.argv) > 2 else 10)
    results = Path(__file__).parents[1] / "results" / f"clusters-{sys.argv[1]}.jsonl"
    results.write_text("\n".join(common.rows) + "\n")
