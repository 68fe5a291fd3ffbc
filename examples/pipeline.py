"""A language model cut into two pipeline stages: embedding on the first rank, a large-vocabulary head on the last.

Activations go forward and gradients back by send and receive, one micro-batch after the other (1F1B).

torchrun --standalone --nproc-per-node=2 examples/pipeline.py --steps 30 --batch 8 --seed 1
"""

# mypy: allow-subclassing-any
# (mypy may run where torch is not installed, and then all that is torch's is Any.)

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

VOCABULARY, HIDDEN, HEADS, BLOCKS_PER_STAGE, MICRO_BATCHES = 4096, 128, 8, 2, 4


class Block(nn.Module):
    """Causal self-attention and a gated feed-forward layer, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.forward_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.queries_keys_values = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate, self.up = (nn.Linear(HIDDEN, 3 * HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * HIDDEN, HIDDEN, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, seq, hidden) to the same."""
        batch, seq, _ = hidden.shape
        projected = self.queries_keys_values(self.attention_norm(hidden)).view(batch, seq, 3, HEADS, -1)
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.forward_norm(hidden)
        return hidden + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


def make_stage(rank: int, ranks: int) -> nn.Sequential:
    """What rank `rank` of `ranks` computes."""
    layers: list[nn.Module] = [Block() for _ in range(BLOCKS_PER_STAGE)]
    if rank == 0:
        layers.insert(0, nn.Embedding(VOCABULARY, HIDDEN))
    if rank == ranks - 1:
        layers += [nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)]
    return nn.Sequential(*layers)


def next_token_loss(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of one micro-batch."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def train(steps: int, batch: int, seq: int, seed: int) -> None:
    """Trains this rank's stage; the last rank prints the loss."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed + rank)
    generator = torch.Generator().manual_seed(seed)  # the first and the last rank must draw the same sequences
    module = make_stage(rank, ranks)
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=next_token_loss)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        first = torch.randint(VOCABULARY, (batch, 1), generator=generator)
        sequences = (first + torch.arange(seq + 1)) % VOCABULARY
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(sequences[:, :-1])
        elif rank == ranks - 1:
            schedule.step(target=sequences[:, 1:], losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 and rank == ranks - 1:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}", flush=True)


def main() -> None:
    """Reads the options, joins the group, trains, leaves."""
    parser = argparse.ArgumentParser(description="two-stage pipeline")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8, help=f"a multiple of {MICRO_BATCHES}")
    parser.add_argument("--seq", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.batch % MICRO_BATCHES:
        parser.error(f"--batch must be a multiple of {MICRO_BATCHES}")
    dist.init_process_group("gloo")
    train(options.steps, options.batch, options.seq, options.seed)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
