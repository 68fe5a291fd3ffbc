"""A mixture of experts: each token goes to one expert, on whichever rank has it, by all-to-all and back."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pharoah_benchmarks.catalogue import Size
from pharoah_benchmarks.jobs.decoder import VOCABULARY, Decoder, Gated, Layer, next_token
from pharoah_benchmarks.jobs.task import Task, tokens

EXPERTS = 8  # over all ranks


class Exchanged(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Equal parts of a tensor to each rank, and theirs; backwards the same."""

    @staticmethod
    def forward(context: Any, inputs: Any) -> Any:
        """Rank r's part n becomes rank n's part r."""
        if not dist.is_initialized():
            return inputs
        outputs = torch.empty_like(inputs)
        dist.all_to_all_single(outputs, inputs.contiguous())
        return outputs

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        """The exchange is its own inverse."""
        return Exchanged.forward(context, gradient)


class Experts(nn.Module):  # type: ignore[misc, unused-ignore]
    """A router over all experts, of which each rank has some; each takes so many tokens at most, the rest pass by."""

    def __init__(self, width: int, ranks: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList([Gated(width) for _ in range(max(1, EXPERTS // ranks))])
        self.ranks = ranks

    def forward(self, inputs: Any) -> Any:
        """(batch, length, width), as it came."""
        flat = inputs.reshape(-1, inputs.shape[-1])
        weight, chosen = self.router(flat).softmax(-1).max(-1)
        everywhere = self.ranks * len(self.experts)
        room = -(-2 * len(flat) // everywhere)
        best = torch.where(chosen % everywhere == torch.arange(everywhere, device=flat.device)[:, None], weight, -1.0)
        taken = best.topk(room, dim=1)
        slots, used = taken.indices.flatten(), (taken.values > 0).flatten()[:, None]
        sent = (flat[slots] * used).view(self.ranks, len(self.experts), room, -1)
        own = Exchanged.apply(sent).transpose(0, 1).flatten(1, 2)
        done = torch.stack([expert(part) for expert, part in zip(self.experts, own, strict=True)])
        back = Exchanged.apply(done.unflatten(1, (self.ranks, room)).transpose(0, 1).contiguous())
        weighed = back.flatten(0, 2) * used * weight[slots][:, None]
        return torch.zeros_like(flat, dtype=weighed.dtype).index_add(0, slots, weighed).view(inputs.shape)


def make(size: Size) -> Task:
    """The job."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    layers: list[nn.Module] = [Layer(size.width, Experts(size.width, ranks)) for _ in range(size.depth)]
    names = tuple(f"layers.{place}.feed.experts." for place in range(size.depth))

    def batch(chance: Any) -> tuple[Any, ...]:
        return (tokens(chance, VOCABULARY, size.batch, size.length + 1),)

    return Task(Decoder(size, layers), batch, next_token, names if ranks > 1 else ())
