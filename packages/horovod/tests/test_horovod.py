"""Scripts for Horovod: as they are under the alias, and changed by `ringcore migrate` without it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ringcore.commands import _horovod_names as tables
from ringcore.commands.migrate import migrate
from support.gpu import double_environ

PACKAGES = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("script.py")


def start(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip


def on_two_ranks(launcher: str, script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = Path(sys.executable).with_name(launcher)
    return start(str(path), "-np", "2", sys.executable, str(script), *arguments, **variables)


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return start(sys.executable, "-c", code, **variables)


@pytest.mark.parametrize("launcher", ["horovodrun", pytest.param("ringrun", marks=pytest.mark.long)])
def test_a_script_for_horovod_runs_as_it_is(tmp_path: Path, launcher: str) -> None:
    done = on_two_ranks(launcher, SCRIPT, str(tmp_path / "found"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = (tmp_path / "found").read_text()
    sums = "[1.0, 1.0], [0.5, 0.5], [2.0, 2.0], [0.0, 0.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0], [2.0, 2.0, 2.0]"
    assert f"{sums}, [2.0], [2.0, 2.0]] [0, 1] True" in found


def test_the_migrated_script_does_the_same_without_the_alias(tmp_path: Path) -> None:
    migration = migrate(SCRIPT.read_text())
    assert not [line for line in migration.source.splitlines() if "import" in line and "horovod." in line]
    assert migration.notes == []
    script = tmp_path / "migrated.py"
    script.write_text(migration.source)
    (tmp_path / "horovod.py").write_text("raise ImportError('the migrated script imports the alias')")
    found = []
    for path in (SCRIPT, script):
        done = on_two_ranks("ringrun", path, str(tmp_path / "found"))
        assert done.returncode == 0, done.stdout + done.stderr
        found.append((tmp_path / "found").read_text())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import horovod.torch\nhorovod.torch.init()\n", "import ringcore_torch\nringcore_torch.init()\n"),
        ("from horovod import torch as hvd\n", "import ringcore_torch as hvd\n"),
        ("from horovod.torch.compression import Compression\n", "from ringcore_torch import Compression\n"),
        ("import horovod.torch as h\nh.allreduce(x, True)  # mean\n",
         "import ringcore_torch as h\nh.allreduce(x)  # mean\n"),
        ("import horovod.torch as h\nh.allreduce(ä, a, 'n')\n",
         "import ringcore_torch as h\nh.allreduce(ä, op=h.Average if a else h.Sum, name='n')\n"),
        ("import horovod.torch as h\nh.allreduce(h.allreduce(x, False), False)\n",
         "import ringcore_torch as h\nh.allreduce(h.allreduce(x, op=h.Sum), op=h.Sum)\n"),
        ("import horovod.torch as h\ntry: f()\nexcept h.HorovodInternalError: pass\n",
         "import ringcore_torch as h\nimport ringcore\n\ntry: f()\nexcept ringcore.RingcoreError: pass\n"),
        ("allreduce(x, False)\n", "allreduce(x, False)\n"),
        ("import horovod.torch\nhorovod.torch.allgather(o, horovod.torch.rank())\n",
         "import ringcore_torch\nringcore_torch.allgather(o, name=ringcore_torch.rank())\n"),
        ("import horovod.torch as h\nh.allreduce(y, average=bool(h.allreduce(z, False)))\n",
         "import ringcore_torch as h\nh.allreduce(y, op=h.Average if bool(h.allreduce(z, op=h.Sum)) else h.Sum)\n"),
        ("import horovod.torch as h\nh.allreduce(x, (n), ('a'))\n",
         "import ringcore_torch as h\nh.allreduce(x, op=h.Average if (n) else h.Sum, name=('a'))\n"),
        ("try:\n  from horovod import torch as h\nexcept OSError: pass\nh.HorovodInternalError\n",
         "import ringcore\n\ntry:\n  import ringcore_torch as h\nexcept OSError: pass\nringcore.RingcoreError\n"),
        ("import horovod.torch as h\n# \x0c page\nh.allgather(x, 'n')\n",
         "import ringcore_torch as h\n# \x0c page\nh.allgather(x, name='n')\n"),
        ("import horovod.torch as h\r\nh.allreduce(x, op=None)\r\nh.DistributedOptimizer(o, num_groups=0)\r\n",
         "import ringcore_torch as h\r\nh.allreduce(x)\r\nh.DistributedOptimizer(o)\r\n"),
        ("import horovod.torch as h\ns = n if h.nccl_built() else 1\n",
         "import ringcore_torch as h\ns = n if False else 1\n"),
        ("import horovod.tensorflow as h\nh.DistributedGradientTape(t, '', '', h.Compression.fp16)\n",
         "import ringcore_tensorflow as h\nh.DistributedGradientTape(t, compression=h.Compression.fp16)\n"),
        ("import horovod.tensorflow as h\nh.allreduce(x, False, name='n')\n",
         "import ringcore_tensorflow as h\nh.allreduce(x, op=h.Sum, name='n')\n"),
        ("import horovod.tensorflow as h\nh.elastic.TensorFlowKerasState(m)\n",
         ("import ringcore_tensorflow as h\nimport ringcore_keras.elastic\n\n"
          "ringcore_keras.elastic.TensorFlowKerasState(m)\n")),
        ("from horovod.keras.callbacks import BestModelCheckpoint\nBestModelCheckpoint('loss')\n",
         ("from ringcore_keras.callbacks import BestModelCheckpoint\n"
          "BestModelCheckpoint(monitor='loss', filepath=\"best.keras\")\n")),
        ("import horovod.tensorflow.keras as h\nh.DistributedOptimizer(o, 'n', backward_passes_per_step=2)\n",
         ("import ringcore_keras as h\n"
          "h.DistributedOptimizer(o, backward_passes_per_step=2, average_aggregated_gradients=False)\n")),
        ("from horovod.keras.callbacks import MetricAverageCallback as M\n",
         "from ringcore_keras.callbacks import MetricAverageCallback as M\n"),
        ("import horovod.mxnet as h\nt = h.DistributedTrainer(p, o, q, h.Compression.fp16, num_groups=2)\n",
         "import ringcore_mxnet as h\nt = h.DistributedTrainer(p, o, q, compression=h.Compression.fp16, groups=2)\n"),
        ("import horovod\nhorovod.run(f, args=(a,), num_proc=2, use_gloo=g(), verbose=2)\n",
         "import ringcore\nringcore.run(f, args=(a,), np=2, verbose=True)\n"),
        ("import horovod.torch as h\nh.run(f)\n",
         "import ringcore_torch as h\nimport ringcore\n\nringcore.run(f, np=1)\n"),
        ("import horovod.spark\nhorovod.spark.run(f, num_proc=n, stdout=s, verbose=v)\n",
         "import ringcore_spark\nringcore_spark.run(f, num_proc=n, verbose=v > 1)\n"),
        ("from horovod.spark.lightning import TorchEstimator\ne = TorchEstimator(inmemory_cache_all=True, epochs=1)\n",
         "from ringcore_spark.lightning import LightningEstimator as TorchEstimator\ne = TorchEstimator(epochs=1)\n"),
        ("import horovod.spark.lightning as h\nh.TorchEstimator(model=m, num_gpus=1)\n",
         "import ringcore_spark.lightning as h\nh.LightningEstimator(model=m)\n"),
        ("import horovod.tensorflow as h\nh.broadcast_variables(opt.variables(), root_rank=0)\n",
         "import ringcore_tensorflow as h\nh.broadcast_variables(opt.variables, root_rank=0)\n"),
        ("import horovod.keras as h\nm.compile(o, experimental_run_tf_function=False)\n",
         "import ringcore_keras as h\nm.compile(o)\n"),
        ("import horovod.keras as h\nfrom keras import backend as K\nK.set_value(m.optimizer.lr, h.size())\n",
         "import ringcore_keras as h\nfrom keras import backend as K\nm.optimizer.learning_rate.assign(h.size())\n"),
        ("import horovod.keras as h\nimport tensorflow as tf\nx = tf.keras.backend.get_value(opt.lr) + args.lr\n",
         "import ringcore_keras as h\nimport tensorflow as tf\nx = opt.learning_rate.numpy() + args.lr\n"),
        ("import horovod.keras as h\nh.DistributedOptimizer(o)\ns = h.elastic.KerasState(m)\n",
         "import ringcore_keras as h\nh.DistributedOptimizer(o, check_weights=False)\ns = h.elastic.KerasState(m)\n"),
        ("from horovod.runner.common.util import env\nenv.get_env_rank_and_size()\n",
         "import ringcore.adapter as env\nenv.rank_and_size()\n"),
        ("import horovod.torch as h\nTrainer(accelerator='horovod', gpus=(1 if c else 0))\n",
         'import ringcore_torch as h\nTrainer(strategy="ring", accelerator="gpu" if (1 if c else 0) else "cpu")\n'),
        ("import horovod.torch as h\ndef f(h):\n    h.allreduce(x, False)\n",
         "import ringcore_torch as h\ndef f(h):\n    h.allreduce(x, False)\n"),
        ("from horovod.torch import allreduce\nallreduce(x, False)\n",
         "from ringcore_torch import allreduce\nimport ringcore_torch\n\nallreduce(x, op=ringcore_torch.Sum)\n"),
        ("import horovod.torch as h\nh.allreduce(\n    x,  # this\n    name='n',\n    average=True,\n)\n",
         "import ringcore_torch as h\nh.allreduce(\n    x,  # this\n    name='n',\n)\n"),
    ],
)  # fmt: skip
def test_what_migrate_changes(before: str, after: str) -> None:
    assert migrate(before).source == after


def names_of(package: str, module: str) -> set[str]:
    path = PACKAGES / package / "src" / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


@pytest.mark.parametrize(
    "module",
    ["horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.keras.elastic",
     "horovod.tensorflow.elastic", "horovod.spark", "horovod.spark.keras", "horovod.spark.lightning",
     "horovod.tensorflow.data.compute_service"],
)  # fmt: skip
def test_names_that_migrate_keeps_are_there(module: str) -> None:
    ours = tables.MODULES[module]
    told = {*tables.LACKS, *tables.MOVED, *tables.ANSWERS, *tables.RENAMED, *tables.MODULES}
    theirs = {name for name in names_of("horovod", module) if not {name, f"{module}.{name}"} & told}
    assert theirs
    missing = theirs - names_of(ours.split(".")[0].removeprefix("ringcore_"), ours)
    assert not missing, f"{ours} has no {sorted(missing)}"


def test_migrate_tells_what_is_left_to_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(
        b"import horovod.torch as hvd\r\nimport horovod.tensorflow as tf\r\nimport horovod.ray\r\n"
        b"print(hvd.mpi_built(), tf.broadcast_global_variables(0))\r\nhvd.init(comm)\r\n"
    )
    command = [sys.executable, "-m", "ringcore", "migrate", str(script)]
    done = start(*command)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"{script}:5: init: takes no ranks" in done.stderr
    assert f"{script}:4: broadcast_global_variables: of TensorFlow 1" in done.stderr
    assert f"{script}:3: horovod.ray has no counterpart in this version of ringcore" in done.stderr
    assert f"{script}:4: mpi_built: ringcore is not compiled for anything; delete the check" in done.stderr
    assert f"{script}: stays as it is; it runs with pip install ringcore-horovod" in done.stderr
    before = script.read_bytes()
    start(*command, "--write")
    assert script.read_bytes() == before
    script.write_bytes(b"import horovod.torch as hvd\r\n")
    assert "-import horovod.torch as hvd\n+import ringcore_torch as hvd\n" in start(*command, "--write").stdout
    assert script.read_bytes() == b"import ringcore_torch as hvd\r\n"
    script.write_text("from horovod.torch import *\n")
    assert "from horovod.torch import *: import what is used by its name" in start(*command).stderr
    script.write_text("def\n")
    assert start(*command).returncode == 2


def test_a_function_is_run_on_several_ranks(tmp_path: Path) -> None:
    module = tmp_path / "functions.py"
    module.write_text("import horovod.torch as hvd\ndef total(x):\n    hvd.init()\n    return hvd.size() * x\n")
    code = "import horovod, functions; print(horovod.run(functions.total, (3,), np=2, use_gloo=True, verbose=0))"
    assert python(code, PYTHONPATH=str(tmp_path)).stdout.endswith("[6, 6]\n")
    refused = python("import horovod; horovod.run(print, np=2, min_np=1, use_mpi=True)")
    assert "ValueError: run(use_mpi=True): mpirun starts no elastic job" in refused.stderr
    failed = python("import horovod, os; horovod.run(os.listdir, ('/nowhere',), np=2, min_np=2, hosts='localhost:2')")
    assert "Horovod detected that one or more processes exited with non-zero status: rank" in failed.stderr


def test_a_function_goes_on_without_a_rank_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(
        "import os, signal\n"
        "import horovod.torch as hvd\n"
        "import torch\n"
        "@hvd.elastic.run\n"
        "def steps(state):\n"
        "    while state.batch < 10:\n"
        "        if (hvd.rank(), hvd.size(), state.batch) == (0, 2, 5):\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        state.total += hvd.allreduce(torch.ones(2), op=hvd.Sum)[0].item()\n"
        "        state.batch += 1\n"
        "        state.commit()\n"
        "    return hvd.rank(), hvd.size(), state.total\n"
        "def train():\n"
        "    hvd.init()\n"
        "    return steps(hvd.elastic.TorchState(batch=0, total=0.0))\n"
    )
    limits = "min_np=1, max_np=2, cooldown_range=[60, 60], elastic_timeout=60, reset_limit=2"
    code = f"import horovod, functions; print(horovod.run(functions.train, np=2, {limits}))"
    done = python(code, PYTHONPATH=str(tmp_path))
    assert done.stdout.endswith("[(0, 1, 15.0)]\n"), done.stdout + done.stderr


def test_the_launcher_of_scripts_that_start_jobs_themselves() -> None:
    code = (
        "import sys\n"
        "from horovod.runner import _HorovodArgs\n"
        "from horovod.runner.launch import _run\n"
        "from horovod.runner.common.util.env import get_env_rank_and_size\n"
        "args = _HorovodArgs()\n"
        "args.num_proc = args.min_num_proc = 3\n"
        "args.hosts, args.nics, args.verbose = 'localhost:2,127.0.0.1:2', ['lo'], 2\n"
        "args.run_func = get_env_rank_and_size\n"
        "assert _run(args) == [(0, 3), (1, 3), (2, 3)]\n"
        "args.use_mpi, args.mpi_args = True, '--oversubscribe'\n"
        "assert sorted(_run(args)) == [(0, 3), (1, 3), (2, 3)]\n"
        "args.use_mpi = args.mpi_args = args.hosts = None\n"
        "args.host_discovery_script, args.slots = 'echo localhost; echo 127.0.0.1:1', 2\n"
        "assert _run(args) == [(0, 3), (1, 3), (2, 3)]\n"
        "args.host_discovery_script = 'echo why >&2; exit 3'\n"
        "try:\n"
        "    _run(args)\n"
        "except RuntimeError as error:\n"
        "    assert str(error) == args.host_discovery_script + ' returned 3: why', error\n"
        "args.host_discovery_script = args.slots = None\n"
        "args.run_func, args.command = None, [sys.executable, '-V']\n"
        "assert _run(args) is None\n"
        "args.command = ['false']\n"
        "_run(args)\n"
    )
    done = python(code)
    assert done.stdout.count("Python 3") == 3, done.stdout + done.stderr
    assert done.stdout.count("All hosts are local") == 5 and "Local interface found lo\n" in done.stdout
    told = "RuntimeError: Horovod detected that one or more processes exited with non-zero status: ringrun returned 1"
    assert told in done.stderr


def test_mpirun_starts_the_ranks_of_those_who_ask_for_it() -> None:
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    ask = (
        "import sys, horovod.torch as hvd\n"
        "hvd.init()\n"
        "sys.stdout.write(f'PLACE {hvd.rank()} {hvd.size()} {hvd.mpi_enabled()}\\n')\n"  # at once: mpirun mixes lines
    )
    done = start(horovodrun, "--mpi", "-np", "2", "--mpi-args=--oversubscribe", sys.executable, "-c", ask)
    assert sorted(line.partition("PLACE")[2] for line in done.stdout.splitlines()) == [" 0 2 True", " 1 2 True"], done
    # The word is the script's where it stands behind the command.
    assert "--mpi\n" in start(horovodrun, "-np", "1", "echo", "--mpi").stdout


def test_a_function_fails_under_mpirun() -> None:
    failed = python("import horovod, os; horovod.run(os.listdir, ('/nowhere',), np=1, use_mpi=True)")
    assert "FileNotFoundError" in failed.stderr
    assert "RuntimeError: mpirun failed with exit code 1" in failed.stderr
    refused = python("import horovod; horovod.run(print, np=1, use_mpi=True, ssh_port=22)")
    assert "ValueError: run(use_mpi=True, ssh_port=...): mpirun is not told this" in refused.stderr
    nowhere = python("import horovod; horovod.run(print, np=1, use_mpi=True)", PATH="/nowhere")
    assert "RuntimeError: no mpirun of Open MPI, MPICH or Intel MPI is in PATH" in nowhere.stderr


def test_commands_of_a_shell_leave_nothing_behind() -> None:
    done = python(
        "import io, os, signal, tempfile\n"
        "from horovod.runner.common.util.safe_shell_exec import execute\n"
        "out, err = io.StringIO(), io.StringIO()\n"
        "assert execute('echo $A; printf b >&2; exit 3', {'A': 'a'}, out, err) == 3\n"
        "assert (out.getvalue(), err.getvalue()) == ('a\\n', 'b')\n"
        "assert execute('kill -TERM $$') == 143\n"
        "class Interrupts(io.StringIO):\n"
        "    def write(self, text):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    os.mkfifo(folder + '/alive')\n"
        "    alive = os.open(folder + '/alive', os.O_RDONLY | os.O_NONBLOCK)\n"
        "    try:\n"
        "        execute('exec 3> ' + folder + '/alive; sleep 1000 & echo; wait', stdout=Interrupts())\n"
        "    except KeyboardInterrupt:\n"
        "        os.set_blocking(alive, True)\n"
        "        print(os.read(alive, 1))\n"  # nothing: all that could write have ended
    )
    assert done.stdout == "b''\n", done.stderr


def test_elastic_states_work_with_a_fixed_number_of_ranks(tmp_path: Path) -> None:
    done = on_two_ranks("horovodrun", SCRIPT.with_name("script_elastic.py"), str(tmp_path))
    assert "no rank was lost" not in done.stdout
    assert json.loads((tmp_path / "0").read_text()) == {
        "synced": [[1.0, 1.0], 20, {"a": 0}, 0.1],
        "restored": [[1.0, 1.0], 20],
        "twice": True,
        "left": [4, True],
        "lost": ["PeerLostError", True],
    }, done.stdout + done.stderr


@pytest.mark.parametrize("launcher", ["horovodrun", pytest.param("ringrun", marks=pytest.mark.long)])
def test_an_elastic_script_goes_on_without_a_rank_that_is_killed_and_takes_another_in(
    tmp_path: Path, launcher: str
) -> None:
    words = ["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "0.01", "0.01"]
    program = [sys.executable, str(SCRIPT.with_name("script_elastic_lost.py")), str(tmp_path)]
    done = start(str(Path(sys.executable).with_name(launcher)), *words, *program)
    assert done.returncode == 0, done.stdout + done.stderr

    def told(event: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / event).read_text().splitlines()]

    begun, ended = told("begin"), told("end")
    # Both, the one that is left, and both again: it and who has come.
    assert [(line["size"], line["rate"]) for line in begun] == [(2, 0.02)] * 2 + [(1, 0.01)] + [(2, 0.02)] * 2
    alone, both = begun[2], begun[3:]
    assert (alone["epoch"], alone["batch"], alone["steps"]) == (1, 5, 12 + 5), "no step was lost but the one under way"
    first = {line["pid"] for line in begun[:2]}
    assert alone["pid"] in first & {line["pid"] for line in both}, "its process goes on"
    assert len({line["pid"] for line in both} - first) == 1, "another has come"
    assert begun[0]["weights"] == begun[1]["weights"] and both[0]["weights"] == both[1]["weights"]
    assert len({line["steps"] for line in both}) == 1
    # The two have done a part of the second epoch, and nothing of it is left out.
    assert sorted({number for line in told("samples.1") for number in line["numbers"]}) == list(range(48))
    assert sum(len(line["numbers"]) for line in told("samples.1") if line["size"] == 2) >= 5 * 2 * 2
    assert len({json.dumps([line["weights"], line["steps"], line["epoch"]]) for line in ended}) == 1
    assert sorted((line["rank"], line["size"]) for line in ended) == [(0, 2), (1, 2)]


def test_variables_of_horovod_are_heeded(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import horovod.torch as hvd\n"
        "from ringcore.job.state import context\n"
        "hvd.init(process_sets='dynamic')\n"
        "settings = context().settings\n"
        "print(settings.fusion_threshold_bytes, settings.stall_warning_s, settings.timeout_s, settings.log_level)\n"
    )
    done = on_two_ranks(
        "horovodrun", script, HOROVOD_FUSION_THRESHOLD="1048576", HOROVOD_STALL_CHECK_TIME_SECONDS="7",
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="0", HOROVOD_LOG_LEVEL="INFO", HOROVOD_CYCLE_TIME="5",
    )  # fmt: skip
    assert done.stdout.count("1048576 7.0 300.0 info") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("launcher", ["horovodrun", "ringrun"])
def test_variables_of_horovod_without_effect_are_told_in_a_line(tmp_path: Path, launcher: str) -> None:
    script = tmp_path / "script.py"
    script.write_text("import horovod.torch as hvd\nhvd.init()\nhvd.shutdown()\nhvd.init()\n")
    done = on_two_ranks(
        launcher, script, HOROVOD_CYCLE_TIME="5", HOROVOD_CACHE_CAPACITY="0", HOROVOD_GLOO_TIMEOUT_SECONDS="30",
        HOROVOD_WITH_PYTORCH="1", HOROVOD_TIMELINE_MARK_CYCLES="1", HOROVOD_HIERARCHICAL_ALLREDUCE="",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "HOROVOD_" in line)
    told = "HOROVOD_CACHE_CAPACITY, HOROVOD_CYCLE_TIME are set, but ringcore has no counterpart: they have no effect"
    assert told in line
    assert line.startswith("horovodrun: " if launcher == "horovodrun" else "[0]<stderr> ")


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "lots", "RINGCORE_FUSION_THRESHOLD_BYTES"),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "abc", "RINGCORE_TIMEOUT_S"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "-1", "RINGCORE_STALL_WARNING_S"),
    ],
)
def test_a_wrong_value_is_told_by_the_variable_that_was_set(name: str, value: str, ours: str) -> None:
    told = f"{name} (here {ours}) is '{value}', but accepted is a"
    done = start(str(Path(sys.executable).with_name("horovodrun")), "-np", "2", "true", **{name: value})
    assert (done.returncode, done.stderr.startswith(f"horovodrun: {told}")) == (2, True), done.stderr
    alone = python("import horovod.torch as hvd\nhvd.init()", **{name: value})
    assert alone.returncode == 1 and f"InvalidArgument: {told}" in alone.stderr, alone.stderr
    own = python("import horovod.torch as hvd\nhvd.init()", **{name: value, ours: "7"})
    assert own.returncode == 0, own.stderr


def test_a_timeline_that_the_environment_asks_for_is_horovods(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    script = tmp_path / "script.py"
    script.write_text("import torch, horovod.torch as hvd\nhvd.init()\nhvd.broadcast(torch.ones(1), 0, 'b')\n")
    done = on_two_ranks("horovodrun", script, HOROVOD_TIMELINE=str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"NEGOTIATE_BROADCAST", "BROADCAST"} <= {event["name"] for event in json.loads(path.read_text())}


def test_a_loader_reads_ahead_and_stops() -> None:
    done = python(
        "import threading\n"
        "from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader\n"
        "third = threading.Event()\n"
        "class Loader(AsyncDataLoaderMixin, BaseDataLoader):\n"
        "    def __init__(self, last, **options):\n"
        "        self.last = last\n"
        "        super().__init__(**options)\n"
        "    def __len__(self):\n"
        "        return 1000\n"
        "    def _iterate(self):\n"
        "        for batch in range(1000):\n"
        "            if batch == self.last:\n"
        "                raise OSError('no more')\n"
        "            if batch == 3:\n"
        "                third.set()\n"
        "            yield batch\n"
        "    def _process_batch(self, batch):\n"
        "        return 10 * batch\n"
        "for size in (0, 2):\n"
        "    assert [*Loader(None, async_loader_queue_size=size)] == [*range(0, 10000, 10)]\n"
        "    found = []\n"
        "    try:\n"
        "        found.extend(Loader(4, async_loader_queue_size=size))\n"
        "    except OSError as error:\n"
        "        found.append(str(error))\n"
        "    assert found == [0, 10, 20, 30, 'no more'], found\n"
        "third.clear()\n"
        "ahead = Loader(None, async_loader_queue_size=4)\n"
        "assert next(iter(ahead)) == 0 and third.wait(60)\n"
        "ahead.close_async_loader()\n"
        "assert next(iter(ahead)) == 0\n"
        "ahead.close_async_loader()\n"
        "assert [thread for thread in threading.enumerate() if thread.name == 'horovod-data'] == []\n"
    )
    assert done.returncode == 0, done.stderr


def test_modules_that_scripts_import_from() -> None:
    done = python(
        "from horovod.common.process_sets import ProcessSet, global_process_set\n"
        "from horovod.common.util import check_extension, gpu_available, split_list\n"
        "from horovod.common.exceptions import HostsUpdatedInterrupt, HorovodVersionMismatchError\n"
        "from horovod.runner import run\n"
        "from horovod.runner.util.threads import in_thread\n"
        "from horovod.torch.functions import broadcast_object\n"
        "from horovod.torch.optimizer import DistributedOptimizer\n"
        "from horovod.torch.sync_batch_norm import SyncBatchNorm\n"
        "import horovod.torch as hvd\n"
        "assert [list(part) for part in split_list([1, 2, 3], 2)] == [[1, 2], [3]]\n"
        "assert all(hasattr(hvd, name) for name in hvd.__all__)\n"
        "found = []\n"
        "in_thread(found.append, (1,)).join()\n"
        "assert found == [1] and hvd.gloo_built() and hvd.mpi_built() and hvd.nccl_built() == 0\n"
    )
    assert done.returncode == 0, done.stderr


def test_check_build_is_the_doctor() -> None:
    done = start(str(Path(sys.executable).with_name("horovodrun")), "--check-build")
    assert "transports, tried between two processes" in done.stdout, done.stdout + done.stderr


def test_what_is_built_is_what_can_be_opened() -> None:
    ask = "import horovod.torch as hvd\nprint(hvd.cuda_built(), hvd.nccl_built())"
    nothing = {f"RINGCORE_{name}_LIBRARY": "/nowhere/lib.so" for name in ("CUDA", "NCCL")}
    assert python(ask, **nothing).stdout == "False 0\n"
    # The double of NVIDIA's libraries has the versions that it is told.
    built = python(ask, **double_environ()).stdout.split()
    assert built[0] == "True" and int(built[1]) >= 22_000, built
