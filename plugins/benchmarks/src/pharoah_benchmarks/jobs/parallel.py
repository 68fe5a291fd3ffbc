"""A job over several ranks, each way: what one rank has of the model, and how a step's gradients come about.

data      each rank has all weights, and averages their gradients (DDP)
sharded   each has a shard of each layer's weights, and gathers them when the layer runs (FSDP2)
tensor    each has a part of the feed-forward layers, and adds up what they give (Megatron-LM, §3)
pipeline  each has some layers, and passes on what they give, one sequence of a batch after the other (1F1B)
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from pharoah_benchmarks.catalogue import Parallel
from pharoah_benchmarks.jobs.task import Task

EVERYTHING = ("",)  # how each name begins


@dataclass(frozen=True)
class Share:
    """A task on this rank: `backward(precision, *batch)` leaves gradients in the model, and returns the loss.

    Ranks with one number `replica` are to draw one batch. Parameters whose names begin with one of `own` are of this
    rank alone.
    """

    backward: Callable[..., Any]
    replica: int = 0
    own: tuple[str, ...] = ()


def shared(task: Task, parallel: Parallel, device: torch.device) -> Share:
    """Over all ranks there are, or none; the model is changed in place."""
    if not dist.is_initialized():
        return Share(_backward(task, task.model))
    return {
        Parallel.DATA: _data,
        Parallel.SHARDED: _sharded,
        Parallel.TENSOR: _tensor,
        Parallel.PIPELINE: _pipeline,
    }[parallel](task, device)


def local(tensor: Any) -> Any:
    """What of a tensor is on this rank."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _backward(task: Task, model: Any) -> Callable[..., Any]:
    def backward(precision: AbstractContextManager[Any], *batch: Any) -> Any:
        with precision:
            loss = task.loss(model, *batch)
        loss.backward()
        return loss.detach()

    return backward


def _data(task: Task, device: torch.device) -> Share:
    own = [name for name, _ in task.model.named_parameters() if name.startswith(task.own or ("-",))]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(task.model, own)
    return Share(_backward(task, DistributedDataParallel(task.model)), dist.get_rank(), task.own)


def _sharded(task: Task, device: torch.device) -> Share:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in task.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(task.model, mesh=mesh)
    return Share(_backward(task, task.model), dist.get_rank(), EVERYTHING)


def _tensor(task: Task, device: torch.device) -> Share:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    split = {"feed.gate": ColwiseParallel(), "feed.up": ColwiseParallel(), "feed.down": RowwiseParallel()}
    for layer in task.model.layers:
        parallelize_module(layer, mesh, dict(split))
    return Share(_backward(task, task.model), own=EVERYTHING)


def _pipeline(task: Task, device: torch.device) -> Share:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    task.model.stage(rank, last + 1)
    stage = PipelineStage(task.model, rank, last + 1, device)

    def loss_of(scores: Any, sequence: Any) -> Any:
        return task.loss(lambda _: scores, sequence)

    @cache
    def schedule(parts: int) -> Any:
        return Schedule1F1B(stage, parts, loss_fn=loss_of)

    def backward(precision: AbstractContextManager[Any], sequence: Any) -> Any:
        losses: list[Any] = []
        first = () if rank else (sequence[:, :-1],)
        with precision:
            schedule(len(sequence)).step(*first, **{"target": sequence, "losses": losses} if rank == last else {})
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros((), device=device)
        dist.broadcast(loss, last)
        return loss

    return Share(backward, own=EVERYTHING)
