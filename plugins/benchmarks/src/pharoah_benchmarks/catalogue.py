"""The jobs that ship: what each is, how large it is on which machine, and where its loss has to be.

A band is what the loss after `CHECKED` steps may be, over that of the first step: a loss outside of it was computed
wrong. Bands were recorded on CPUs with one to four ranks in both precisions, which differ by a tenth of their width at
most; they find training that does not learn, and no single wrong bit. Sizes for GPUs have none: there the loss has to
be finite and to have fallen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

CHECKED = 40  # steps


class SizeName(StrEnum):
    """What a job is sized for."""

    CPU = "cpu"
    GPU = "gpu"
    GPUS = "gpus"


class Precision(StrEnum):
    """Of products; weights are fp32."""

    FP32 = "fp32"
    BF16 = "bf16"


class Parallel(StrEnum):
    """What ranks share of a job: its batches, or its model too."""

    DATA = "data"
    SHARDED = "sharded"
    TENSOR = "tensor"
    PIPELINE = "pipeline"


@dataclass(frozen=True)
class Size:
    """`width` of layers, `depth` in layers, `batch` of each rank, `length` of a sequence or side of an image."""

    width: int
    depth: int
    batch: int
    length: int


@dataclass(frozen=True)
class Job:
    """A training loop of `module`; `ranks` is how many it has unless another number is asked for."""

    name: str
    module: str
    family: str
    ranks: int
    exercises: str
    sizes: Mapping[SizeName, Size]
    band: tuple[float, float]  # at size cpu
    parallel: Parallel = Parallel.DATA


def _job(
    name: str, family: str, exercises: str, sizes: tuple[Size, Size, Size], band: tuple[float, float], ranks: int = 1
) -> Job:
    return Job(name, name, family, ranks, exercises, dict(zip(SizeName, sizes, strict=True)), band)


_ALONE = (
    _job(
        "decoder",
        "dense language model",
        "matrix products, causal attention, a large softmax",
        (Size(128, 2, 4, 64), Size(1024, 12, 8, 1024), Size(1024, 24, 16, 2048)),
        (0.15, 0.9),
    ),
    _job(
        "experts",
        "mixture of experts",
        "routing, gathers and scatters, all-to-all between ranks",
        (Size(96, 2, 4, 64), Size(512, 8, 8, 1024), Size(768, 8, 8, 2048)),
        (0.3, 0.94),
        ranks=2,
    ),
    _job(
        "encoder",
        "masked language model",
        "attention both ways, dropout, layer norms",
        (Size(128, 2, 8, 48), Size(1024, 24, 32, 512), Size(1024, 24, 64, 512)),
        (0.3, 0.9),
    ),
    _job(
        "diffusion",
        "diffusion U-Net",
        "convolutions, group norms, upsampling, skip connections",
        (Size(16, 2, 4, 16), Size(192, 3, 32, 64), Size(256, 3, 32, 64)),
        (0.08, 0.4),
    ),
    _job(
        "convolution",
        "residual network",
        "convolutions, batch norms, pooling",
        (Size(16, 2, 8, 32), Size(64, 8, 256, 224), Size(64, 8, 256, 224)),
        (0.05, 0.6),
    ),
    _job(
        "recommendation",
        "recommendation",
        "large embeddings, sparse reads and writes of memory",
        (Size(16, 2, 256, 10_000), Size(128, 3, 65_536, 200_000), Size(128, 3, 65_536, 200_000)),
        (0.02, 0.3),
    ),
    _job(
        "graph",
        "graph network",
        "scatter-adds, random access, small products",
        (Size(32, 2, 512, 8), Size(256, 4, 200_000, 16), Size(256, 6, 200_000, 16)),
        (0.002, 0.1),
    ),
)


def _spread(job: Job, parallel: Parallel, exercises: str) -> Job:
    return replace(job, name=f"{job.name}-{parallel}", parallel=parallel, exercises=exercises, ranks=2)


_DECODER = next(job for job in _ALONE if job.name == "decoder")
_SPREAD = (
    _spread(_DECODER, Parallel.SHARDED, "weights in shards (FSDP2): all-gathers and reduce-scatters of each layer"),
    _spread(_DECODER, Parallel.TENSOR, "split feed-forward layers: an all-reduce within each layer"),
    _spread(_DECODER, Parallel.PIPELINE, "stages of layers (1F1B): sends and receives between ranks"),
)
JOBS: Mapping[str, Job] = MappingProxyType({job.name: job for job in (*_ALONE, *_SPREAD)})
