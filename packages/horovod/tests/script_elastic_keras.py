"""An elastic script that fits a step before its state is given out: a rank is killed, another comes.

Who comes does that step, too; those who are there do it in a reset callback, where it is one of all ranks.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import horovod.tensorflow.keras as hvd
import tensorflow as tf

is_new = Path("killed").exists()
started_as = int(os.environ["HOROVOD_RANK"])
hvd.init()
EPOCHS = 4

tf.random.set_seed(os.getpid() % 1000)
data = tf.data.Dataset.from_tensor_slices((tf.random.uniform([32, 2]), tf.random.uniform([32, 1]))).repeat().batch(4)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(tf.optimizers.SGD(0.01 * hvd.size(), momentum=0.9))
model.compile(loss="mse", optimizer=optimizer, experimental_run_tf_function=False)
model.fit(data, steps_per_epoch=1, epochs=1, verbose=0)
state = hvd.elastic.KerasState(model, batch=0, epoch=0)


def fit_in_with_others() -> None:
    tf.keras.backend.set_value(state.model.optimizer.lr, 0.01 * hvd.size())
    state.model.fit(data, steps_per_epoch=1, epochs=1, verbose=0)


state.register_reset_callbacks([fit_in_with_others])


def tell(event: str) -> None:
    weights = [weight.tolist() for weight in model.get_weights()]
    rate = round(float(tf.keras.backend.get_value(model.optimizer.lr)), 6)
    line = {"pid": os.getpid(), "size": hvd.size(), "epoch": state.epoch, "rate": rate, "weights": weights}
    with Path(event).open("a") as file:
        file.write(json.dumps(line) + "\n")


class Kill(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if started_as == 1 and not is_new and state.epoch == 1 and batch == 1:
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class OnceTwoAreThere(tf.keras.callbacks.Callback):
    """The last epochs are for both."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        while state.epoch == EPOCHS - 1 and hvd.size() < 2:
            state.commit()


@hvd.elastic.run
def train(state: Any) -> None:
    tell("begin")
    callbacks = [
        Kill(), OnceTwoAreThere(), hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.CommitStateCallback(state),
    ]  # fmt: skip
    state.model.fit(data, steps_per_epoch=4, epochs=EPOCHS - state.epoch, callbacks=callbacks, verbose=0)
    tell("end")


train(state)
