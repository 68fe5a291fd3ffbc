"""A dense language model: causal attention and feed-forward layers, weights shared by embedding and output."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pharoah_benchmarks.catalogue import Size
from pharoah_benchmarks.jobs.task import Task, tokens

VOCABULARY = 1024
HEAD = 32


class Attention(nn.Module):  # type: ignore[misc, unused-ignore]
    """Causal attention in heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.mixed, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, inputs: Any) -> Any:
        """(batch, length, width), as it came."""
        batch, length, width = inputs.shape
        parts = self.mixed(inputs).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Gated(nn.Module):  # type: ignore[misc, unused-ignore]
    """The gated feed-forward layer of LLaMA."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, inputs: Any) -> Any:
        """(…, width), as it came."""
        return self.down(functional.silu(self.gate(inputs)) * self.up(inputs))


class Layer(nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention, then `feed`, each on what is normed and added to what came."""

    def __init__(self, width: int, feed: nn.Module) -> None:
        super().__init__()
        self.attention, self.feed = Attention(width), feed
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])

    def forward(self, inputs: Any) -> Any:
        """(batch, length, width), as it came."""
        inputs = inputs + self.attention(self.norms[0](inputs))
        return inputs + self.feed(self.norms[1](inputs))


class Decoder(nn.Module):  # type: ignore[misc, unused-ignore]
    """Scores of the next token, of these layers."""

    def __init__(self, size: Size, layers: list[nn.Module]) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, size.width), nn.Embedding(size.length, size.width)
        self.layers, self.norm = nn.Sequential(*layers), nn.RMSNorm(size.width)
        self.score = nn.Linear(size.width, VOCABULARY, bias=False)

    def stage(self, place: int, stages: int) -> None:
        """Keeps what one of so many stages of a pipeline has; what passes between stages is what layers give."""
        first, last = (len(self.layers) * at // stages for at in (place, place + 1))
        self.layers = self.layers[first:last]
        if place > 0:
            self.embed = self.places = None
        if place < stages - 1:
            self.norm = self.score = None

    def forward(self, inputs: Any) -> Any:
        """(batch, length) tokens give (batch, length, vocabulary)."""
        if self.embed is not None:
            inputs = self.embed(inputs) + self.places(torch.arange(inputs.shape[1], device=inputs.device))
        inputs = self.layers(inputs)
        return inputs if self.score is None else self.score(self.norm(inputs))


def next_token(model: Any, sequence: Any) -> Any:
    """The loss of the next token."""
    scores = model(sequence[:, :-1])
    return functional.cross_entropy(scores.flatten(0, 1).float(), sequence[:, 1:].flatten())


def make(size: Size) -> Task:
    """The job."""
    model = Decoder(size, [Layer(size.width, Gated(size.width)) for _ in range(size.depth)])
    return Task(model, lambda chance: (tokens(chance, VOCABULARY, size.batch, size.length + 1),), next_token)
