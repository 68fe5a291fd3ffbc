"""Two models and three ways to run a training step, on a card or on the processor."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from simulation.studies.gpu.notes import Skipped

VOCABULARY = 4096
Step = Callable[[int, int], Any]


@dataclass(frozen=True)
class Size:
    """How large a model and a batch are."""

    width: int
    layers: int
    batch: int
    length: int


def transformer(size: Size) -> Any:
    """From tokens (batch, length) to logits (batch, length, vocabulary)."""
    layer = nn.TransformerEncoderLayer(
        size.width, size.width // 64, 4 * size.width, 0.0, "gelu", batch_first=True, norm_first=True
    )
    blocks = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(VOCABULARY, size.width), blocks, nn.Linear(size.width, VOCABULARY))


def convolutions(size: Size) -> Any:
    """From tokens, which colour images, to as many logits."""
    layers = [nn.Unflatten(1, (1, -1, 1)), nn.Conv2d(1, size.width, 3, padding=1)]
    for _ in range(size.layers):
        layers += [nn.Conv2d(size.width, size.width, 3, padding=1), nn.BatchNorm2d(size.width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size.width, VOCABULARY))


def stepper(kind: str, mode: str, device: str, size: Size) -> Step:
    """A function that takes one training step of (batch, length) and returns the loss, on the device."""
    if mode == "compiled" and not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        raise Skipped("torch.compile needs a C compiler, and there is none")
    torch.manual_seed(1)
    tells_tokens = kind == "transformer"
    model = (transformer if tells_tokens else convolutions)(size).to(device)
    graphs = mode == "graphs"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=graphs)
    run = torch.compile(model) if mode == "compiled" else model

    def train(tokens: Any) -> Any:
        optimizer.zero_grad(set_to_none=not graphs)
        with torch.autocast(device.partition(":")[0], torch.bfloat16):
            logits = run(tokens if tells_tokens else tokens / VOCABULARY)
            wanted = tokens.flatten() if tells_tokens else tokens[:, 0]
            loss = nn.functional.cross_entropy(logits.view(-1, VOCABULARY), wanted)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if graphs:
        return _captured(train, torch.randint(VOCABULARY, (size.batch, size.length), device=device))
    return lambda batch, length: train(torch.randint(VOCABULARY, (batch, length), device=device))


def _captured(train: Callable[[Any], Any], tokens: Any) -> Step:
    """The whole step as one CUDA graph, as torch's documents do it: warmed up beside, captured, replayed."""
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
