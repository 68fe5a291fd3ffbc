"""A small language model, data-parallel: every rank holds the whole model, gradients are averaged by all-reduce.

torchrun --standalone --nproc-per-node=2 examples/ddp.py --steps 30 --batch 8 --seed 1
"""

# mypy: allow-subclassing-any
# (mypy may run where torch is not installed, and then all that is torch's is Any.)

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, HIDDEN, HEADS, LAYERS = 512, 96, 4, 2


class LanguageModel(nn.Module):
    """Token and position embeddings, causal transformer blocks, a linear head."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(longest, HIDDEN)
        block = nn.TransformerEncoderLayer(
            HIDDEN, HEADS, 4 * HIDDEN, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, seq, vocabulary) for `tokens` (batch, seq)."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.tokens(tokens) + self.positions(torch.arange(length))
        return self.head(self.norm(self.blocks(hidden, mask=mask, is_causal=True)))


def make_batch(batch: int, seq: int, generator: torch.Generator) -> torch.Tensor:
    """Sequences (batch, seq + 1) that count upwards from a random token, so that there is something to learn."""
    first = torch.randint(VOCABULARY, (batch, 1), generator=generator)
    return (first + torch.arange(seq + 1)) % VOCABULARY


def train(steps: int, batch: int, seq: int, seed: int) -> None:
    """Trains on this rank; rank 0 prints the loss."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    model = DistributedDataParallel(LanguageModel(seq))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        sequences = make_batch(batch, seq, generator)
        logits = model(sequences[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    """Reads the options, joins the group, trains, leaves."""
    parser = argparse.ArgumentParser(description="data-parallel language model")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(options.steps, options.batch, options.seq, options.seed)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
