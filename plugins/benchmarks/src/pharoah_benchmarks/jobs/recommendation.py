"""Recommendation: embeddings of what a user did, their products with each other, and a click or none."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pharoah_benchmarks.catalogue import Size
from pharoah_benchmarks.jobs.task import Task

FIELDS, DENSE, EACH = 8, 13, 4


class Ranker(nn.Module):  # type: ignore[misc, unused-ignore]
    """DLRM in small: `length` rows an embedding."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(size.length, size.width, mode="mean") for _ in range(FIELDS)])
        self.dense = nn.Sequential(nn.Linear(DENSE, 4 * size.width), nn.ReLU(), nn.Linear(4 * size.width, size.width))
        pairs = FIELDS * (FIELDS + 1) // 2
        layers: list[nn.Module] = [nn.Linear(pairs + size.width, 8 * size.width), nn.ReLU()]
        for _ in range(size.depth - 1):
            layers += [nn.Linear(8 * size.width, 8 * size.width), nn.ReLU()]
        self.top = nn.Sequential(*layers, nn.Linear(8 * size.width, 1))
        self.register_buffer("pair", torch.tril_indices(FIELDS + 1, FIELDS + 1, -1), persistent=False)

    def forward(self, numbers: Any, rows: Any) -> Any:
        """(batch, dense) and (batch, fields, each) give (batch,)."""
        dense = self.dense(numbers)
        all_of = torch.stack([dense, *(bag(rows[:, place]) for place, bag in enumerate(self.bags))], 1)
        products = torch.bmm(all_of, all_of.transpose(1, 2))[:, self.pair[0], self.pair[1]]
        return self.top(torch.cat([dense, products], 1))[:, 0]


def make(size: Size) -> Task:
    """The job."""

    def batch(chance: Any) -> tuple[Any, ...]:
        numbers = torch.randn(size.batch, DENSE, generator=chance)
        rows = torch.randint(size.length, (size.batch, FIELDS, EACH), generator=chance)
        return numbers, rows, (numbers[:, 0] + numbers[:, 1] > 0).float()

    def loss(model: Any, numbers: Any, rows: Any, clicked: Any) -> Any:
        return functional.binary_cross_entropy_with_logits(model(numbers, rows).float(), clicked)

    return Task(Ranker(size), batch, loss)
