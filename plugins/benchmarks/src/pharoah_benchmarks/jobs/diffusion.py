"""A diffusion model: a U-Net that tells the noise in images of stripes."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pharoah_benchmarks.catalogue import Size
from pharoah_benchmarks.jobs.task import Task


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    """A convolution on what is normed."""
    return nn.Sequential(nn.GroupNorm(min(8, inputs), inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, stride, 1))


class UNet(nn.Module):  # type: ignore[misc, unused-ignore]
    """Down `depth` times, and up again with what was on the same level."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        widths = [size.width << level for level in range(size.depth + 1)]
        self.first, self.last = nn.Conv2d(3, size.width, 3, 1, 1), block(size.width, 3)
        self.time = nn.Sequential(nn.Linear(2, size.width), nn.SiLU(), nn.Linear(size.width, size.width))
        self.down = nn.ModuleList([block(one, other, 2) for one, other in pairwise(widths)])
        self.up = nn.ModuleList([block(one + other, one) for one, other in pairwise(widths)])
        self.middle = nn.Sequential(block(widths[-1], widths[-1]), block(widths[-1], widths[-1]))

    def forward(self, images: Any, time: Any) -> Any:
        """(batch, 3, side, side) and (batch,) give the noise in them."""
        angles = time[:, None] * torch.pi / 2
        at = self.first(images) + self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        seen = []
        for down in self.down:
            seen.append(at)
            at = down(at)
        at = self.middle(at)
        for up in reversed(self.up):
            at = up(torch.cat([seen.pop(), functional.interpolate(at, scale_factor=2)], 1))
        return self.last(at)


def make(size: Size) -> Task:
    """The job."""

    def batch(chance: Any) -> tuple[Any, ...]:
        waves = torch.rand(size.batch, 3, 1, 1, generator=chance) * torch.arange(size.length)
        images = torch.sin(waves).expand(-1, -1, size.length, -1)
        return images, torch.randn(images.shape, generator=chance), torch.rand(size.batch, generator=chance)

    def loss(model: Any, images: Any, noise: Any, time: Any) -> Any:
        share = (time * torch.pi / 2).sin()[:, None, None, None]
        return (model((1 - share**2).sqrt() * images + share * noise, time).float() - noise).square().mean()

    return Task(UNet(size), batch, loss)
