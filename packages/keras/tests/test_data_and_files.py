"""What ranks read and write: shares of data, models in files."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import ringcore_keras as ring
from support.on_keras import BATCH, INSTALLED, TWO, compiled, data, difference, digest, model, same_everywhere
from support.on_ranks import on


@on(*TWO)
def test_files_load_with_and_without_ringcore(shared_folder: Path) -> None:
    """A file of a wrapped optimizer is that of the optimizer; training goes on from it."""
    path, best = shared_folder / "model.keras", shared_folder / "best.keras"
    x, y = ring.shard(data(4 * BATCH * ring.size()))
    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    checkpoint = ring.callbacks.BestModelCheckpoint(best, monitor="loss")
    net.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False, callbacks=[checkpoint])
    if ring.rank() == 0:
        net.save(path)
    ring.barrier()
    assert sorted(shared_folder.iterdir()) == [best, path]
    plain = keras.saving.load_model(path)
    assert type(plain.optimizer) is type(keras.optimizers.Adam())
    assert not ring.is_distributed(plain.optimizer)
    assert int(plain.optimizer.iterations) == 4
    again = ring.load_model(path)
    assert ring.is_distributed(again.optimizer)
    for trained_on in (net, again):
        trained_on.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    assert difference(net, again) == 0.0


@on(*TWO)
def test_wrapped_optimizers_are_made_of_their_configuration_and_copied() -> None:
    wrapped = ring.DistributedOptimizer(keras.optimizers.Adam(0.03, beta_1=0.8))
    config = wrapped.get_config()
    assert keras.optimizers.Adam.from_config(config).beta_1 == 0.8
    assert type(type(wrapped).from_config(config)) is type(keras.optimizers.Adam())
    assert ring.is_distributed(copy.deepcopy(ring.DistributedOptimizer(keras.optimizers.SGD(0.1))))


@on(*TWO)
def test_what_becomes_of_the_remainder() -> None:
    rows = np.arange(4 * ring.size() + 1)
    expected = {"drop": [*rows[:-1]], "repeat": sorted([*rows, *range(ring.size() - 1)]), "keep": [*rows]}
    for remainder, wanted in expected.items():
        shares = ring.allgather_object(ring.shard(rows, remainder=remainder).tolist())
        assert sorted(itertools.chain(*shares)) == wanted
        assert len({len(share) for share in shares}) == (2 if remainder == "keep" else 1)


class Batches(keras.utils.PyDataset):
    """Eight of eight samples."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        x, y = data(64)
        return x[index * 8 : index * 8 + 8], y[index * 8 : index * 8 + 8]


@pytest.fixture
def net() -> Any:
    return compiled(model(), ring.DistributedOptimizer(keras.optimizers.SGD(0.1)))


@on(*TWO)
def test_shares_of_a_dataset_of_keras(net: Any) -> None:
    net.fit(ring.shard(Batches()), verbose=0, callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert same_everywhere(digest(net.weights))
    assert int(net.optimizer.iterations) == 8 // ring.size()


if "tensorflow" in INSTALLED:

    @on(*TWO)
    @pytest.mark.parametrize("is_length_known", [True, False])
    def test_shares_of_a_dataset_of_tensorflow(net: Any, is_length_known: bool) -> None:
        import tensorflow as tf

        source = tf.data.Dataset.from_tensor_slices(data(65))
        share = ring.shard(source if is_length_known else source.filter(lambda *_: True))
        assert ring.allgather_object(len(list(share))) == [65 // ring.size()] * ring.size()
        net.fit(share.batch(8), verbose=0)
        assert same_everywhere(digest(net.weights))


if "torch" in INSTALLED:

    @on(*TWO)
    def test_shares_of_a_data_loader_of_pytorch(net: Any) -> None:
        import torch

        samples = torch.utils.data.TensorDataset(*map(torch.tensor, data(65)))
        share = ring.shard(torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True))
        net.fit(share, verbose=0)
        assert len(share.dataset) == 65 // ring.size()
        assert same_everywhere(digest(net.weights))
