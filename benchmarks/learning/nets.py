"""Small nets that learn something real, for comparisons of ways to send gradients."""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits

DOCS = Path(__file__).parents[2] / "docs"


class Digits(torch.nn.Module):
    """A net of three layers, and its loss on images of one batch."""

    def __init__(self) -> None:
        super().__init__()
        scanned = load_digits()
        self.images = torch.tensor(scanned.data, dtype=torch.float32) / 16
        self.labels = torch.tensor(scanned.target)
        hidden = [torch.nn.Linear(64, 160), torch.nn.ReLU(), torch.nn.Linear(160, 80), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*hidden, torch.nn.Linear(80, 10))

    def forward(self, generator: torch.Generator | None) -> torch.Tensor:
        """The loss on a batch; on everything, where there is no generator to choose one."""
        chosen = slice(None) if generator is None else torch.randint(len(self.images), (32,), generator=generator)
        return torch.nn.functional.cross_entropy(self.layers(self.images[chosen]), self.labels[chosen])


class Characters(torch.nn.Module):
    """A transformer of two layers, and its loss on pieces of a text."""

    LENGTH = 32

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        text = "".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
        known = sorted(set(text))
        self.text = torch.tensor([known.index(character) for character in text[:100_000]])
        self.characters = torch.nn.Embedding(len(known), width)
        self.places = torch.nn.Embedding(self.LENGTH, width)
        layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2)
        self.last = torch.nn.Linear(width, len(known))

    def forward(self, generator: torch.Generator | None) -> torch.Tensor:
        """The loss on some pieces; on many that are always the same, where there is no generator to choose them."""
        count, chooser = (16, generator) if generator else (256, torch.Generator().manual_seed(1))
        begins = torch.randint(len(self.text) - self.LENGTH - 1, (count, 1), generator=chooser)
        pieces = self.text[begins + torch.arange(self.LENGTH + 1)]
        before, after = pieces[:, :-1], pieces[:, 1:]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(self.LENGTH)
        seen = self.layers(self.characters(before) + self.places.weight, mask=mask, is_causal=True)
        return torch.nn.functional.cross_entropy(self.last(seen).flatten(0, 1), after.flatten())
