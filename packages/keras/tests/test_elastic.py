"""Elastic training of Keras: a rank is killed in `fit`, the other goes on with its model, and takes another in."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import pytest
from support.processes import Ringrun

SCRIPT = """
import json, os, signal
import keras
import numpy as np
import ringcore_keras as ring
from ringcore_keras import elastic

is_new = os.path.exists("killed")
started_as = int(os.environ["RANK"])
ring.init()
keras.utils.set_random_seed(os.getpid() % 1000)
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))
model.compile(optimizer, loss="mse")
x, y = np.random.rand(16, 2), np.random.rand(16, 1)
EPOCHS = 6


class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if started_as == 1 and not is_new and state.epoch == 1 and batch == 1:
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


class OnceTwoAreThere(keras.callbacks.Callback):
    # The last epochs are for both.
    def on_epoch_begin(self, epoch, logs=None):
        while state.epoch == EPOCHS - 2 and ring.size() < 2:
            state.commit()


@elastic.run
def train(state):
    tell("begin", state)
    callbacks = [
        Kill(), OnceTwoAreThere(), elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state),
        elastic.CommitStateCallback(state),
    ]
    model.fit(x, y, batch_size=4, epochs=EPOCHS - state.epoch, callbacks=callbacks, verbose=0)
    tell("end", state)


def tell(event, state):
    line = {"pid": os.getpid(), "size": ring.size(), "epoch": state.epoch,
            "weights": [np.array(w).tolist() for w in model.weights]}
    with open(event, "a") as file:
        file.write(json.dumps(line) + "\\n")


state = elastic.KerasState(model, epoch=0, batch=0)
train(state)
"""


LAYERS = "keras.layers.Dense(1)"
LARGE = "keras.layers.Dense(300), keras.layers.Dense(300), keras.layers.Dense(1)"
TELLS = """
from ringcore.job.handover import Handover

submit = Handover._submit

def submit_and_tell(collective, name, source, *others):
    if source.shape[0] > 10000:
        with open("sent", "a") as file:
            file.write(json.dumps({"pid": os.getpid(), "bytes": source.shape[0]}) + "\\n")
    return submit(collective, name, source, *others)

Handover._submit = staticmethod(submit_and_tell)
"""
AVERAGES = "ring.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))"
STEPS_ALONE = "keras.optimizers.SGD(0.01, momentum=0.9)"
MEETS = "ring.callbacks.DiLoCoCallback(outer, every=5)"
OUTER = "outer = keras.optimizers.SGD(0.7, momentum=0.9)  # it stays the same when ranks come and go\n"


# The second: of two that are left the other one has come somewhere else when somebody joins them. The third: each of
# them is a host of its own, and sends its share of a layer.
@pytest.mark.parametrize(
    ("ranks", "meets", "shares"),
    [
        pytest.param(2, False, False, id="averaged"),
        pytest.param(3, True, False, id="outer steps", marks=pytest.mark.long),
        pytest.param(3, False, True, id="shares", marks=pytest.mark.long),
    ],
)
def test_fit_goes_on_without_a_rank_and_takes_another_in(ranks: int, meets: bool, shares: bool, tmp_path: Path) -> None:
    script = SCRIPT.replace("ring.size() < 2", f"ring.size() < {ranks}")
    if shares:
        script = script.replace(LAYERS, LARGE).replace("ring.init()\n", f"{TELLS}ring.init()\n")
        assert LARGE in script and TELLS in script
    if meets:
        script = script.replace(AVERAGES, STEPS_ALONE).replace("OnceTwoAreThere(),", f"OnceTwoAreThere(), {MEETS},")
        script = script.replace("EPOCHS = 6\n", f"EPOCHS = 6\n{OUTER}")
        assert AVERAGES not in script and MEETS in script and OUTER in script
    (tmp_path / "train.py").write_text(script)
    ringrun = Ringrun(tmp_path)
    ringrun.environ.update(OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND=keras.backend.backend())
    if shares:
        ringrun.environ["RINGCORE_TRANSPORT"] = "tcp"
    done = ringrun("-np", str(ranks), "--min-np", str(ranks - 1), "train.py")
    assert done.returncode == 0, done.stderr

    def told(event: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in (tmp_path / event).read_text().splitlines()]

    begun, ended = told("begin"), told("end")
    left = ranks - 1
    assert [line["size"] for line in begun] == [ranks] * ranks + [left] * left + [ranks] * ranks
    assert begun[ranks]["epoch"] == 1 and begun[ranks]["pid"] in {line["pid"] for line in begun[:ranks]}
    assert [(line["size"], line["epoch"]) for line in ended] == [(ranks, 6)] * ranks
    assert all(line["weights"] == ended[0]["weights"] for line in ended)
    # Whoever comes has those of rank 0.
    newcomer = next(line for line in begun[-ranks:] if line["pid"] not in {line["pid"] for line in begun[:ranks]})
    assert any(line is not newcomer and line["weights"] == newcomer["weights"] for line in begun[-ranks:])
    if shares:  # Halves, up to a cache line, of the weights of a layer, and of what the optimizer keeps of them.
        givers = {line["pid"] for line in begun[ranks:-ranks]}
        sent = [line["bytes"] for line in told("sent") if line["pid"] in givers]
        assert sorted(sent) == [300 * 300 * 2 - 32] * 2 + [300 * 300 * 2 + 32] * 2
