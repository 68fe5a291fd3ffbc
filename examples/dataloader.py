"""A small convolutional network that waits for its data: items are slow to make, and the workers are too few.

Every rank trains a model of its own (as in a parameter sweep), so there are no collectives.

torchrun --standalone --nproc-per-node=2 examples/dataloader.py --steps 30 --batch 8 --seed 1
"""

# mypy: allow-subclassing-any
# (mypy may run where torch is not installed, and then all that is torch's is Any.)

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, CLASSES, WORKERS, ITEM_S = 24, 10, 2, 0.004
Item = tuple[torch.Tensor, int]


class SlowImages(Dataset[Item]):
    """Noise images whose brightness tells the class; each takes `ITEM_S` seconds, as if read from a far disk."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Item:
        time.sleep(ITEM_S)
        label = index % CLASSES
        noise = torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(self.seed * 100_003 + index))
        return noise + label / CLASSES, label


def make_model() -> nn.Sequential:
    """Three convolutions with batch norm, pooled to a linear head."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def train(steps: int, batch: int, seed: int, rank: int) -> None:
    """Trains on this rank; rank 0 prints the loss."""
    torch.manual_seed(seed + rank)
    model, images = make_model(), SlowImages(steps * batch, seed + rank)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    loader = DataLoader(images, batch, shuffle=True, num_workers=WORKERS)
    for step, (pixels, labels) in enumerate(loader, start=1):
        loss = nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    """Reads the options and trains."""
    parser = argparse.ArgumentParser(description="small convolutional network, bound by its data loader")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    train(options.steps, options.batch, options.seed, int(os.environ.get("RANK", "0")))


if __name__ == "__main__":
    main()
