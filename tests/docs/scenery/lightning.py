"""Nothing but the name that a script has anyway."""

from lightning.pytorch import Trainer

assert Trainer
