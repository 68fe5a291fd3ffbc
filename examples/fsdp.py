"""An MLP-Mixer on images, fully sharded: parameters are gathered before use, gradients reduce-scattered after it.

torchrun --standalone --nproc-per-node=2 examples/fsdp.py --steps 30 --batch 8 --seed 1
"""

# mypy: allow-subclassing-any
# (mypy may run where torch is not installed, and then all that is torch's is Any.)

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SIDE, PATCH, CHANNELS, CLASSES, LAYERS = 32, 4, 192, 10, 3
PATCHES = (SIDE // PATCH) ** 2


class MixerBlock(nn.Module):
    """Mixes over patches, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.over_patches = nn.Sequential(nn.Linear(PATCHES, 128), nn.SiLU(), nn.Linear(128, PATCHES))
        self.over_channels = nn.Sequential(nn.Linear(CHANNELS, 384), nn.SiLU(), nn.Linear(384, CHANNELS))
        self.first_norm = nn.GroupNorm(1, PATCHES)
        self.second_norm = nn.GroupNorm(1, PATCHES)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """(batch, patches, channels) to the same."""
        mixed = self.over_patches(self.first_norm(patches).transpose(1, 2)).transpose(1, 2)
        patches = patches + mixed
        return patches + self.over_channels(self.second_norm(patches))


class Mixer(nn.Module):
    """Patches by `unfold`, mixer blocks, mean over patches, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Unfold(PATCH, stride=PATCH)
        self.stem = nn.Linear(3 * PATCH * PATCH, CHANNELS)
        self.blocks = nn.ModuleList(MixerBlock() for _ in range(LAYERS))
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (batch, classes) for `images` (batch, 3, side, side)."""
        hidden = self.stem(self.cut(images).transpose(1, 2))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean(dim=1))


def make_batch(batch: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise whose brightness tells the class."""
    labels = torch.randint(CLASSES, (batch,), generator=generator)
    images = torch.randn(batch, 3, SIDE, SIDE, generator=generator) + labels.view(-1, 1, 1, 1) / CLASSES
    return images, labels


def train(steps: int, batch: int, seed: int) -> None:
    """Trains on this rank; rank 0 prints the loss."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    mesh, model = init_device_mesh("cpu", (dist.get_world_size(),)), Mixer()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(1, steps + 1):
        images, labels = make_batch(batch, generator)
        loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    """Reads the options, joins the group, trains, leaves."""
    parser = argparse.ArgumentParser(description="fully sharded MLP-Mixer")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(options.steps, options.batch, options.seed)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
