"""A training script with a data service, as users write it: everything here is Horovod's interface and TensorFlow's."""

import json
import sys

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)
hvd.init()
dataset = tf.data.Dataset.range(200).map(lambda element: 3 * element).batch(8)


def elements(dataset):
    # All ranks read from the beginning on: a rank that comes late would find that the others have read everything.
    hvd.barrier()
    return [element for batch in dataset.as_numpy_iterator() for element in batch.tolist()]


if config.dispatcher_side == "compute":
    endless = dataset.repeat().send_to_data_service(config, hvd.rank())
    found = elements(dataset.send_to_data_service(config, hvd.rank(), hvd.size(), reuse_dataset=True))
    first = next(iter(endless))
else:
    with tf_data_service(config, hvd.rank()) as address:
        alone = tf.data.experimental.service.distribute(service=address, processing_mode="distributed_epoch")
        shared = tf.data.experimental.service.distribute(
            service=address, processing_mode="distributed_epoch", job_name="job"
        )
        found = elements(dataset.apply(shared))
        first = next(iter(dataset.repeat().apply(alone)))

# The compute job is still at the endless datasets when it is told to end.
assert first.shape == 8
gathered = hvd.allgather_object(found)
if hvd.rank() == 0:
    with open(sys.argv[2], "w") as file:
        json.dump(gathered, file)
    config.compute_client(verbose=2).shutdown()
