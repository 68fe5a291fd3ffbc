"""What a job is made of: a model, batches, and a loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """`batch` draws tensors by a generator; `loss` is that of a model, which may be wrapped, on such tensors.

    Names of parameters that begin with one of `own` belong to one rank each: nothing averages them.
    """

    model: Any
    batch: Callable[[Any], tuple[Any, ...]]
    loss: Callable[..., Any]
    own: tuple[str, ...] = ()


def tokens(generator: Any, vocabulary: int, batch: int, length: int) -> Any:
    """Sequences (batch, length) that can be learnt: each token is its predecessor plus a step of the sequence's own."""
    import torch

    start = torch.randint(vocabulary, (batch, 1), generator=generator)
    step = torch.randint(1, 4, (batch, 1), generator=generator)
    return (start + step * torch.arange(length)) % vocabulary
