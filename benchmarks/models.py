"""The models that training is measured with. Data is synthetic: only time counts here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class _Block(nn.Module):
    """A residual block: two 3x3 convolutions, or with `bottleneck` 1x1, 3x3 and 1x1."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = width * 4 if bottleneck else width
        shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        if not bottleneck:
            shapes = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        layers: list[nn.Module] = []
        for source, target, kernel, step in shapes:
            layers += [nn.Conv2d(source, target, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(target)]
            layers.append(nn.ReLU(inplace=True))
        self.layers = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both ways."""
        return torch.relu(self.layers(x) + self.shortcut(x))


def resnet(depths: list[int], *, bottleneck: bool) -> nn.Sequential:
    """A residual network of the shape of ResNet (He et al. 2015), for 1000 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    inputs = 64
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            layers.append(_Block(inputs, 64 << stage, stride, bottleneck=bottleneck))
            inputs = (64 << stage) * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class ManyTensors(nn.Module):
    """1000 tensors of 256 parameters: all cost lies in the number of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([torch.ones(256) for _ in range(1000)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all scaled inputs."""
        return torch.stack([x * scale for scale in self.scales]).sum(0)


def mlp() -> nn.Sequential:
    """25 million parameters in 60 tensors."""
    return nn.Sequential(*[layer for _ in range(30) for layer in (nn.Linear(912, 912), nn.ReLU())])


# Name -> the model, the shape of one sample.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (912,)),
    "resnet18": (lambda: resnet([2, 2, 2, 2], bottleneck=False), (3, 64, 64)),
    "resnet50": (lambda: resnet([3, 4, 6, 3], bottleneck=True), (3, 64, 64)),
    "tensors": (ManyTensors, (256,)),
}
