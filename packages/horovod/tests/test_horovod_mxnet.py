"""Scripts for Horovod's MXNet interface, as they are under the alias."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def on_two_ranks(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = Path(sys.executable).with_name("horovodrun")
    return subprocess.run(
        [str(launcher), "-np", "2", sys.executable, str(script), *arguments], capture_output=True, text=True,
        timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_script_for_gluon_runs_as_it_is(tmp_path: Path) -> None:
    done = on_two_ranks(HERE / "script_mxnet.py", str(tmp_path / "found"))
    assert done.returncode == 0, done.stdout + done.stderr
    expected = "[1.0, 1.0], [0.5, 0.5], [2.0, 2.0, 2.0], [0.0, 0.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0], [2.0], [2.0, 2.0]"
    assert (tmp_path / "found").read_text() == f"[{expected}, [0.0, 1.0], [1, 1]] [0, 1] True True\n"


def test_horovods_arithmetic_and_errors(tmp_path: Path) -> None:
    done = on_two_ranks(HERE / "differences_mxnet.py", str(tmp_path / "found"))
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        found = json.loads((tmp_path / f"found.{rank}").read_text())
        halves = [3, -4]  # of 7 and -9; and the sums of 1.5 and 2, of -2 and -2.5, each cut towards zero
        assert found["reductions"] == {
            "min": [3, -5], "max": [4, -4], "product": [12, 20],
            "average": halves, "average in place": halves, "average of a group": halves,
            "average of rows": [halves[rank]], "prescale": halves, "postscale": halves, "group": halves,
            "group's floats": [1.5, 2.5], "prescale of rows": [halves[rank]],
            "prescale of rows of floats": [[1.5, 2.5][rank]],
        }  # fmt: skip
        assert len(found["refusals"]) == 7
        assert all(found["refusals"].values()), found["refusals"]


@pytest.mark.parametrize("module", ["horovod.mxnet", pytest.param("ringcore_mxnet", marks=pytest.mark.long)])
def test_a_tutorial_runs_with_only_the_import_changed(tmp_path: Path, module: str) -> None:
    text = (HERE / "script_mxnet_module.py").read_text()
    assert text.count("horovod.mxnet") == 1
    script = tmp_path / "script.py"
    script.write_text(text.replace("horovod.mxnet", module))
    done = on_two_ranks(script, str(tmp_path / "checkpoint"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy good, same weights True" in done.stdout
    assert (tmp_path / "checkpoint-0008.params").exists()


def test_modules_that_scripts_import_from() -> None:
    code = (
        "import horovod.mxnet as hvd\n"
        "from horovod.mxnet.mpi_ops import grouped_reducescatter, rank\n"
        "from horovod.mxnet.functions import broadcast_object\n"
        "from horovod.mxnet.compression import Compression\n"
        "import mxnet as mx\n"
        "assert all(hasattr(hvd, name) for name in hvd.__all__)\n"
        "hvd.init()\n"
        "optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(), num_groups=3)\n"
        "net = mx.gluon.nn.Dense(1, in_units=1)\n"
        "net.initialize()\n"
        "trainer = hvd.DistributedTrainer(net.collect_params(), optimizer)\n"
        "assert type(trainer.optimizer) is mx.optimizer.SGD\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
