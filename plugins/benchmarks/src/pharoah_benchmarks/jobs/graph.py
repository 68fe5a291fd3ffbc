"""A graph network: nodes hear their neighbours by scatter-adds, and tell what these have on average."""

from typing import Any

import torch
from torch import nn

from pharoah_benchmarks.catalogue import Size
from pharoah_benchmarks.jobs.task import Task

FEATURES = 16


class Hear(nn.Module):  # type: ignore[misc, unused-ignore]
    """One round of messages."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.own = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, nodes: Any, edges: Any, degree: Any) -> Any:
        """(nodes, width), (2, edges) and (nodes, 1) give (nodes, width)."""
        messages = self.message(nodes)[edges[0]]
        heard = torch.zeros_like(nodes, dtype=messages.dtype).index_add(0, edges[1], messages)
        return nodes + torch.relu(self.own(nodes) + heard / degree)


class Graph(nn.Module):  # type: ignore[misc, unused-ignore]
    """`depth` rounds."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, size.width), nn.Linear(size.width, 1)
        self.rounds = nn.ModuleList([Hear(size.width) for _ in range(size.depth)])

    def forward(self, nodes: Any, edges: Any, degree: Any) -> Any:
        """(nodes, features) give (nodes, 1)."""
        at = self.first(nodes)
        for hear in self.rounds:
            at = hear(at, edges, degree)
        return self.last(at)


def make(size: Size) -> Task:
    """The job: `batch` nodes with `length` edges each."""

    def batch(chance: Any) -> tuple[Any, ...]:
        nodes = torch.randn(size.batch, FEATURES, generator=chance)
        edges = torch.randint(size.batch, (2, size.batch * size.length), generator=chance)
        ones = torch.ones(edges.shape[1], 1)
        degree = torch.ones(size.batch, 1).index_add(0, edges[1], ones)
        total = torch.zeros(size.batch, 1).index_add(0, edges[1], nodes[edges[0], :1])
        return nodes, edges, degree, nodes[:, :1] + total / degree

    def loss(model: Any, nodes: Any, edges: Any, degree: Any, wanted: Any) -> Any:
        return (model(nodes, edges, degree).float() - wanted).square().mean()

    return Task(Graph(size), batch, loss)
