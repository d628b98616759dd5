"""Elastic training of Keras: a rank is killed in `fit`, the other goes on with its model, and takes another in."""

from __future__ import annotations

import json
from pathlib import Path

import keras
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


def test_fit_goes_on_without_a_rank_and_takes_another_in(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ringrun = Ringrun(tmp_path)
    ringrun.environ.update(OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND=keras.backend.backend())
    done = ringrun("-np", "2", "--min-np", "1", "train.py")
    assert done.returncode == 0, done.stderr

    def told(event: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in (tmp_path / event).read_text().splitlines()]

    begun, ended = told("begin"), told("end")
    assert [line["size"] for line in begun] == [2, 2, 1, 2, 2]
    assert begun[2]["epoch"] == 1 and begun[2]["pid"] in {line["pid"] for line in begun[:2]}
    assert [(line["size"], line["epoch"]) for line in ended] == [(2, 6), (2, 6)]
    assert ended[0]["weights"] == ended[1]["weights"] and begun[3]["weights"] == begun[4]["weights"]
