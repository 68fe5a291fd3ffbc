"""A residual network that tells in which of ten directions an image gets brighter."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pharoah_benchmarks.catalogue import Size
from pharoah_benchmarks.jobs.task import Task

CLASSES = 10


class Residual(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two convolutions, added to what came."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(inputs, outputs, 3, stride, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.past = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, images: Any) -> Any:
        """(batch, inputs, side, side) give (batch, outputs, side / stride, side / stride)."""
        found = self.norms[1](self.other(functional.relu(self.norms[0](self.one(images)))))
        return functional.relu(found + self.past(images))


def make(size: Size) -> Task:
    """The job: every other block halves the side and doubles the width, up to eight times the first."""
    widths = [min(8 * size.width, size.width << (place + 1) // 2) for place in range(size.depth + 1)]
    blocks = [Residual(one, other, 2 if other > one else 1) for one, other in pairwise(widths)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES)]
    stem = [nn.Conv2d(3, size.width, 7, 2, 3), nn.BatchNorm2d(size.width), nn.ReLU(), nn.MaxPool2d(2)]

    def batch(chance: Any) -> tuple[Any, ...]:
        kinds = torch.randint(CLASSES, (size.batch,), generator=chance)
        angle = (kinds * 2 * torch.pi / CLASSES)[:, None, None, None]
        along = torch.linspace(-2, 2, size.length)
        images = angle.cos() * along + angle.sin() * along[:, None]
        return images + 0.3 * torch.randn(size.batch, 3, size.length, size.length, generator=chance), kinds

    def loss(model: Any, images: Any, kinds: Any) -> Any:
        return functional.cross_entropy(model(images).float(), kinds)

    return Task(nn.Sequential(*stem, *blocks, *head), batch, loss)
