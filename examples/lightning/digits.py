"""Scanned digits with a LightningModule: python examples/lightning/digits.py, or under ringrun, torchrun, mpirun.

Only `strategy` differs from a script for one process.
"""

import argparse

import lightning as L  # noqa: N812 - as its own documentation writes it
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GLOBAL_BATCH = 64  # images a step, of all ranks together


class Digits(L.LightningModule):
    """A small convolutional net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
        ).double()

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        images, labels = batch
        right = (self.net(images).argmax(1) == labels).double().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Images(L.LightningDataModule):
    """The images that scikit-learn brings along; each step sees the same ones with any number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        digits = load_digits()
        images, labels = torch.tensor(digits.images[:, None] / 16), torch.tensor(digits.target)
        self.train, self.test = TensorDataset(images[:1408], labels[:1408]), TensorDataset(images[1408:], labels[1408:])

    def train_dataloader(self) -> DataLoader:
        ranks = self.trainer.world_size
        sampler = DistributedSampler(self.train, ranks, self.trainer.global_rank, seed=0)
        return DataLoader(self.train, batch_size=GLOBAL_BATCH // ranks, sampler=sampler)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.test, batch_size=len(self.test))  # all of it on every rank


parser = argparse.ArgumentParser()
parser.add_argument("--devices", type=int, default=2)
devices = parser.parse_args().devices

L.seed_everything(0)
trainer = L.Trainer(
    max_epochs=8, accelerator="cpu", devices=devices, strategy="ring", use_distributed_sampler=False, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Digits(), datamodule=Images())
if trainer.is_global_zero:
    print(f"accuracy {trainer.callback_metrics['accuracy']:.4f} on {trainer.world_size} ranks")
