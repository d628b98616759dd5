"""PyTorch's own tests of torch.distributed with the backend "ring", on the ranks of this job.

    ringrun -np 4 python pytorch_suite.py FOLDER

Each test gets a process group of its own. Rank 0 writes what became of each test to FOLDER/results.json: "passed",
"skipped: why", "failed: why".
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import unittest
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER = Path(sys.argv[1])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LIMIT = datetime.timedelta(seconds=30)

# What PyTorch's module reads when it is imported.
os.environ.update(BACKEND="ring", TEMP_DIR=str(FOLDER))
for name in ("barrier", "test_dir", "init_dir"):
    (FOLDER / name).mkdir(parents=True, exist_ok=True)
warnings.simplefilter("ignore")

from torch.testing._internal import common_distributed, common_utils  # noqa: E402

for feature in ("ddp", "subgroup", "gpu", "cuda"):
    common_distributed.DistTestCases.backend_feature[feature].add("ring")
common_distributed.DistTestCases.skip_collective["sendrecv anysource"].add("ring")
# It skips all tests of groups on less than 8 ranks, although they need 3.
common_distributed.skip_if_small_worldsize = lambda test: test

from torch.testing._internal.distributed import distributed_test  # noqa: E402

# Tests of other backends, or that need what PyTorch has for backends of these names only.
OTHERS = {
    "monitored_barrier": "torch.distributed calls it for gloo only",
    "any_source": "a receiver names the sender, as with NCCL",
    "barrier_timeout": "start their ranks anew, with gloo",
    "accumulate_gradients_no_sync": "know the models of gloo and NCCL only",
    "mixed_backend_err": "needs NCCL",
    "op_err": "needs a GPU",
    "_cuda": "needs a GPU",
    "SyncBatchNorm_process_group": "needs torchvision",
}


class Case(distributed_test.DistributedTest._DistTestBase, common_utils.TestCase):
    """One test on this rank of a running job."""

    rank = RANK
    world_size = SIZE  # type: ignore[assignment]
    init_method = ""  # type: ignore[assignment]

    def _barrier(self, *_: object, **__: object) -> None:
        dist.barrier()


def run(name: str, path: Path) -> str:
    """What becomes of a test on this rank."""
    try:
        case = Case(name)
        case.init_method = f"file://{path}"
        case.file_name = str(path)
        dist.init_process_group("ring", init_method=case.init_method, rank=RANK, world_size=SIZE, timeout=LIMIT)
        torch.manual_seed(0)
        getattr(case, name)()
    except unittest.SkipTest as reason:
        return f"skipped: {reason}"
    except SystemExit as reason:
        skips = common_distributed.TEST_SKIPS.values()
        return "skipped: " + next(skip.message for skip in skips if skip.exit_code == reason.code)
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"
    return "passed"


def main() -> None:
    """Run all tests that are not of other backends."""
    names = [name for name in sorted(dir(Case)) if name.startswith("test_") and not any(x in name for x in OTHERS)]
    store = dist.FileStore(str(FOLDER / "results"), SIZE)
    results = {}
    for name in names:
        store.set(f"{name}.{RANK}", run(name, FOLDER / f"group.{name}"))
        outcomes = [store.get(f"{name}.{rank}").decode() for rank in range(SIZE)]  # waits for all
        dist.destroy_process_group()
        results[name] = next((outcome for outcome in outcomes if outcome.startswith("failed")), outcomes[0])
    if RANK == 0:
        (FOLDER / "results.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
