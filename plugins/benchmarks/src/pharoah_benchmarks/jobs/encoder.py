"""A masked language model: attention both ways, with dropout, over sequences of which some tokens are hidden."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pharoah_benchmarks.catalogue import Size
from pharoah_benchmarks.jobs.task import Task, tokens

VOCABULARY = 512
MASK, COMMON = 0, 128  # only these tokens come, which is learnt first
HIDDEN = 0.15


class Encoder(nn.Module):  # type: ignore[misc, unused-ignore]
    """Scores of each place's token."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, size.width), nn.Embedding(size.length, size.width)
        layer = nn.TransformerEncoderLayer(
            size.width, max(1, size.width // 32), 4 * size.width, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, size.depth, enable_nested_tensor=False)
        self.score = nn.Linear(size.width, VOCABULARY)

    def forward(self, sequence: Any) -> Any:
        """(batch, length) tokens give (batch, length, vocabulary)."""
        places = torch.arange(sequence.shape[1], device=sequence.device)
        return self.score(self.layers(self.embed(sequence) + self.places(places)))


def make(size: Size) -> Task:
    """The job."""

    def batch(chance: Any) -> tuple[Any, ...]:
        sequence = 1 + tokens(chance, COMMON, size.batch, size.length)
        return sequence, torch.rand(sequence.shape, generator=chance) < HIDDEN

    def loss(model: Any, sequence: Any, hidden: Any) -> Any:
        scores = model(sequence.masked_fill(hidden, MASK))
        of_each = functional.cross_entropy(scores.flatten(0, 1).float(), sequence.flatten(), reduction="none")
        return (of_each * hidden.flatten()).sum() / hidden.sum().clamp(min=1)

    return Task(Encoder(size), batch, loss)
