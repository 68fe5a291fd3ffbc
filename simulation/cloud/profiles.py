"""Workloads with their descriptors, and tenants composed of client profiles.

Tenants follow the principle of ServeGen (Xiang et al., NSDI 2026): a realistic load is not drawn from one distribution
but added up from clients, a few heavy and many light, each with its own rate, sizes, durations and choice of workloads.
With `measured_clients`, rates and bursts follow ServeGen's published clients (`client_laws`), else Zipf's law.
Workloads are versions of archetypes. Descriptors obey what was measured on real traces: versions of one archetype share
nearly all pairs of operator and log2 shape, different archetypes hardly any (Jaccard below 0.2), and kernel names tell
the software stack. Nothing here is a real customer or model.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from simulation.cloud.scenario import Scenario

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Operator = tuple[str, tuple[int, ...]]

_OPERATORS_PER_ARCHETYPE, _SHAPES_PER_OPERATOR = 24, 2
_OPERATORS_CHANGED_BY_VERSION = 2
_COLLECTIVES_PER_ITERATION = 12
_TENANT_ZIPF = 1.1  # exponent of tenants' arrival rates: of 48, the five heaviest send about half of the jobs
_FIRST_PINNED = 3  # the heaviest tenants are on all contexts
_WORKLOAD_ZIPF = 0.7  # exponent of the popularity of shared workloads among tenants

# fmt: off
_OPERATORS = (
    "aten::addmm", "aten::mm", "aten::bmm", "aten::linear", "aten::matmul", "aten::embedding",
    "aten::native_layer_norm", "aten::gelu", "aten::silu", "aten::_softmax", "aten::native_dropout", "aten::add",
    "aten::mul", "aten::div", "aten::cat", "aten::split", "aten::transpose", "aten::permute", "aten::convolution",
    "aten::native_batch_norm", "aten::max_pool2d", "aten::relu", "aten::sigmoid", "aten::topk", "aten::index_select",
    "aten::scatter_add", "aten::gather", "aten::embedding_bag", "aten::cumsum", "aten::rsqrt", "aten::pow",
    "aten::mean", "aten::sum", "aten::where", "aten::masked_fill", "aten::upsample_nearest2d", "aten::group_norm",
    "aten::scaled_dot_product_attention", "aten::layer_norm", "aten::nll_loss_forward", "aten::log_softmax",
    "aten::clamp", "aten::copy_", "aten::_to_copy", "aten::baddbmm", "aten::exp", "aten::tanh", "aten::rms_norm",
    "aten::conv1d", "aten::fft_rfft",
)
# fmt: on
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
_PRECISIONS = ("bf16", "fp16", "fp8", "fp32")
_PARALLELISM = ("dp", "fsdp", "tp8-dp", "tp4-pp2-dp", "tp8-pp4-dp", "ep8-dp", "pp8-dp", "zero3")
_STACKS = (  # releases that shipped together, oldest first
    (("cuda", "11.8"), ("nccl", "2.14.3"), ("torch", "2.0.1")),
    (("cuda", "12.1"), ("nccl", "2.18.1"), ("torch", "2.1.2")),
    (("cuda", "12.1"), ("nccl", "2.19.3"), ("torch", "2.2.2")),
    (("cuda", "12.4"), ("nccl", "2.20.5"), ("torch", "2.4.1")),
    (("cuda", "12.4"), ("nccl", "2.21.5"), ("torch", "2.5.1")),
    (("cuda", "12.6"), ("nccl", "2.26.2"), ("torch", "2.7.0")),
)
# fmt: off
_KINDS = (  # names of archetypes, for people; what an archetype does is drawn and has nothing to do with its name
    "LLM pre-training", "LLM fine-tuning", "Mixture of experts", "Diffusion", "Recommendation", "Speech recognition",
    "Vision transformer", "Protein folding", "Reward model", "Code model", "Video generation", "Embeddings",
    "Weather model", "Robot policy", "Graph network",
)
# fmt: on
_KERNEL_FAMILIES = ("cutlass_gemm", "cublaslt_gemm", "flash_attention", "triton_fused", "cudnn_conv", "nccl_ring")


@dataclass(frozen=True)
class WorkloadProfile:
    """What a tenant could describe of a workload; `name` is the simulation's own and reaches nobody.

    `operators`: (operator, log2 of its dimensions without the batch). `collectives`: the skeleton of one iteration as
    (type, log2 of group size, log2 of bytes). `versions`: (library, version), sorted by library.
    """

    name: str
    operators: frozenset[Operator]
    collectives: tuple[tuple[str, int, int], ...]
    precision: str
    parallelism: str
    versions: tuple[tuple[str, str], ...]
    kernel_families: frozenset[str]


@dataclass(frozen=True)
class ClientProfile:
    """One tenant: its share of all jobs, and how it runs them.

    Jobs take 2^k nodes with probability proportional to exp(-`size_decay` k), and a log-normal time of `median_h` hours
    and `duration_sigma`. `workloads` and `workload_shares` are its own mix, `context_shares` where its jobs land.
    `bugs` is its tendency to send jobs that fail by its own fault, `burstiness` the sigma of its weekly load.
    """

    share: float
    size_decay: float
    median_h: float
    duration_sigma: float
    burstiness: float
    bugs: float
    workloads: tuple[int, ...]
    workload_shares: tuple[float, ...]
    context_shares: tuple[float, ...]


def draw_workloads(scenario: Scenario, rng: Generator) -> tuple[WorkloadProfile, ...]:
    """Every version of every archetype, versions of one archetype together."""
    return tuple(
        profile
        for archetype in range(scenario.archetypes)
        for profile in _versions(_archetype(archetype, rng), scenario.versions_per_archetype, rng)
    )


def _archetype(number: int, rng: Generator) -> WorkloadProfile:
    picked = rng.choice(len(_OPERATORS), _OPERATORS_PER_ARCHETYPE, replace=False)
    return WorkloadProfile(
        name=_kind(number),
        operators=frozenset(_operator(_OPERATORS[index], rng) for index in np.repeat(picked, _SHAPES_PER_OPERATOR)),
        collectives=tuple(_collective(rng) for _ in range(_COLLECTIVES_PER_ITERATION)),
        precision=_PRECISIONS[rng.integers(len(_PRECISIONS))],
        parallelism=_PARALLELISM[rng.integers(len(_PARALLELISM))],
        versions=(),
        kernel_families=frozenset(),
    )


def _kind(number: int) -> str:
    """The name of an archetype; of more archetypes than names, the second with a name is its 2."""
    turn, place = divmod(number, len(_KINDS))
    return _KINDS[place] + (f" {turn + 1}" if turn else "")


def _operator(name: str, rng: Generator) -> Operator:
    """An operator with two or three dimensions between 4 and 32,768: rarely the same for two archetypes."""
    return name, tuple(int(size) for size in rng.integers(2, 16, size=rng.integers(2, 4)))


def _collective(rng: Generator) -> tuple[str, int, int]:
    return _COLLECTIVES[rng.integers(len(_COLLECTIVES))], int(rng.integers(1, 8)), int(rng.integers(10, 30))


def _versions(base: WorkloadProfile, versions: int, rng: Generator) -> list[WorkloadProfile]:
    first = rng.integers(len(_STACKS))
    return [
        WorkloadProfile(
            name=f"{base.name}, v{version + 1}",
            operators=_evolved(base.operators, rng),
            collectives=base.collectives,
            precision=base.precision,
            parallelism=base.parallelism,
            versions=(*_STACKS[(first + version) % len(_STACKS)], ("trainer", f"{version + 1}.0")),
            kernel_families=frozenset(rng.choice(_KERNEL_FAMILIES, 4, replace=False).tolist()),
        )
        for version in range(versions)
    ]


def _evolved(operators: frozenset[Operator], rng: Generator) -> frozenset[Operator]:
    gone = rng.choice(len(operators), _OPERATORS_CHANGED_BY_VERSION, replace=False)
    ordered = sorted(operators)
    return operators - {ordered[index] for index in gone} | {_operator(ordered[index][0], rng) for index in gone}


def draw_clients(scenario: Scenario, rng: Generator) -> tuple[ClientProfile, ...]:
    """Tenants one by one, the heaviest first; heavier tenants tend to larger jobs. Every workload has an owner."""
    clients = _clients(scenario, rng)
    return _as_published(clients, rng) if scenario.measured_clients else clients


def _as_published(clients: Sequence[ClientProfile], rng: Generator) -> tuple[ClientProfile, ...]:
    laws = published()
    loads = zip(laws.shares(len(clients), rng), laws.burstiness(len(clients), rng), strict=True)
    return tuple(
        replace(client, share=float(share), burstiness=float(burstiness))
        for client, (share, burstiness) in zip(clients, loads, strict=True)
    )


def _clients(scenario: Scenario, rng: Generator) -> tuple[ClientProfile, ...]:
    shares = _zipf(scenario.tenants, _TENANT_ZIPF)
    fleet = rng.dirichlet(np.full(scenario.contexts, 6.0))
    mixes = _workloads_by_tenant(scenario, rng)
    pinned = range(_FIRST_PINNED, _FIRST_PINNED + scenario.pinned_tenants)
    return tuple(
        ClientProfile(
            share=float(shares[tenant]),
            size_decay=float(rng.uniform(0.8, 1.1) + 0.3 * tenant / scenario.tenants),
            median_h=float(rng.lognormal(np.log(30.0), 0.25)),
            duration_sigma=float(rng.uniform(0.4, 0.8)),
            burstiness=float(rng.uniform(0.1, 0.3)),
            bugs=float(rng.lognormal(0.0, 0.4)),
            workloads=mix,
            workload_shares=tuple(_zipf(len(mix), 1.0).tolist()),
            context_shares=_contexts(rng.dirichlet(12.0 * scenario.contexts * fleet), pinned=tenant in pinned),
        )
        for tenant, mix in enumerate(mixes)
    )


def _contexts(shares: Floats, *, pinned: bool) -> tuple[float, ...]:
    """Where a tenant's jobs land: on the context with its largest share alone, if it is pinned there."""
    if pinned:
        shares = (np.arange(len(shares)) == np.argmax(shares)).astype(np.float64)
    return tuple(shares.tolist())


def _workloads_by_tenant(scenario: Scenario, rng: Generator) -> list[tuple[int, ...]]:
    """Each tenant's workloads in its own order of use: some shared ones, popular ones more often, and private ones."""
    order = rng.permutation(scenario.workloads)
    private = order[: int(scenario.private_share * scenario.workloads)]
    shared = order[len(private) :]
    popularity = _zipf(len(shared), _WORKLOAD_ZIPF)
    mixes = [
        rng.choice(shared, min(int(rng.integers(3, 9)), len(shared)), replace=False, p=popularity).tolist()
        for _ in range(scenario.tenants)
    ]
    owned = {workload for mix in mixes for workload in mix}
    for workload in [*private.tolist(), *(left for left in shared.tolist() if left not in owned)]:
        mixes[rng.integers(scenario.tenants)].append(workload)
    return [tuple(rng.permutation(mix).tolist()) for mix in mixes]


def _zipf(count: int, exponent: float) -> Floats:
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    shares: Floats = weights / weights.sum()
    return shares


# ---- how much each tenant sends, and how unsteadily, by laws fitted to published clients (`client_laws.toml`) --------


TABLE = Path(__file__).with_name("client_laws.toml")


class ClientLaws(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Log-normal laws; see the table for what each number is."""

    rate_sigma: float
    week_median: float
    week_sigma: float

    def shares(self, clients: int, rng: Generator) -> NDArray[np.float64]:
        """Each client's share of all jobs, the heaviest first: shape (clients,)."""
        rates = np.sort(rng.lognormal(0.0, self.rate_sigma, clients))[::-1]
        return np.asarray(rates / rates.sum())

    def burstiness(self, clients: int, rng: Generator) -> NDArray[np.float64]:
        """The standard deviation of the logarithm of each client's weekly load: shape (clients,)."""
        return np.asarray(rng.lognormal(np.log(self.week_median), self.week_sigma, clients))


def published() -> ClientLaws:
    """The numbers of `client_laws.toml`."""
    return msgspec.convert(tomllib.loads(TABLE.read_text(encoding="utf-8")), ClientLaws)
