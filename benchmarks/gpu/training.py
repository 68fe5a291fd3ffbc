"""Models of four kinds and three ways to run a step of them, on a card or on the processor."""

# mypy: allow-subclassing-any
# (mypy may run where torch is not installed, and then all that is torch's is Any.)

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu.notes import Skipped

VOCABULARY = 4096
Step = Callable[[int, int], Any]


@dataclass(frozen=True)
class Size:
    """How large a model and a batch are."""

    width: int
    layers: int
    batch: int
    length: int


class Block(nn.Module):
    """Attention and a feed-forward network, each added to what comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.forward_part = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, length, width), and the same again."""
        batch, length, width = hidden.shape
        heads = self.mixed(self.norms[0](hidden)).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.forward_part(self.norms[1](hidden))


class Transformer(nn.Module):
    """Tokens to the loss of the next ones."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, size.width)
        self.blocks = nn.Sequential(*(Block(size.width) for _ in range(size.layers)))
        self.head = nn.Linear(size.width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss."""
        logits = self.head(self.blocks(self.tokens(tokens[:, :-1])))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Convolutions(nn.Module):
    """Images to a loss."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        widths = [3, *(size.width for _ in range(size.layers))]
        pairs = pairwise(widths)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(one, two, 3, padding=1, bias=False), nn.BatchNorm2d(two), nn.ReLU())
                for one, two in pairs
            )
        )
        self.head = nn.Linear(size.width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss; the first token colours the image."""
        pixels = tokens[:, :1, None, None].expand(-1, 3, 16, 16) / VOCABULARY
        return self.head(self.layers(pixels).mean((2, 3))).square().mean()


class Recurrent(nn.Module):
    """Tokens through an LSTM."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens, self.cells = nn.Embedding(VOCABULARY, size.width), nn.LSTM(size.width, size.width, size.layers)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.cells(self.tokens(tokens))[0].square().mean()


class Recommender(nn.Module):
    """Bags of tokens through a small network."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(VOCABULARY, size.width)
        self.top = nn.Sequential(nn.Linear(size.width, size.width), nn.ReLU(), nn.Linear(size.width, 1), nn.Sigmoid())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.top(self.bags(tokens)).square().mean()


MODELS: dict[str, Callable[[Size], Any]] = {
    "transformer": Transformer,
    "convolutions": Convolutions,
    "recurrent": Recurrent,
    "recommender": Recommender,
}


def stepper(kind: str, mode: str, device: str, size: Size) -> Step:
    """A function that takes one training step of (batch, length) and returns the loss, on the device."""
    if mode == "compiled" and not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        raise Skipped("torch.compile needs a C compiler, and there is none")
    torch.manual_seed(1)
    model = MODELS[kind](size).to(device)
    graphs = mode == "graphs"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=graphs)
    run = torch.compile(model) if mode == "compiled" else model

    def train(tokens: Any) -> Any:
        optimizer.zero_grad(set_to_none=not graphs)
        with torch.autocast(device.partition(":")[0], torch.bfloat16):
            loss = run(tokens)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def step(batch: int, length: int) -> Any:
        return train(torch.randint(VOCABULARY, (batch, length + 1), device=device))

    return _captured(train, device, size) if graphs else step


def _captured(train: Callable[[Any], Any], device: str, size: Size) -> Step:
    """The whole step as one CUDA graph, as torch's documents do it: warmed up beside, captured, replayed."""
    tokens = torch.randint(VOCABULARY, (size.batch, size.length + 1), device=device)
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            train(tokens)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train(tokens)

    def step(_batch: int, _length: int) -> Any:
        tokens.random_(VOCABULARY)
        graph.replay()
        return loss

    return step
