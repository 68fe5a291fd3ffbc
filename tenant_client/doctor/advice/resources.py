"""What a job is expected to use of a host, by the tenant's own earlier runs of the same workload, and what it used.

Runs are alike if their descriptors agree in all but software (`exact`), else in the structure of the model
(`structure`), each with as many ranks on a host. Of each quantity the geometric mean is expected, with a 95% prediction
interval: logarithms of runs spread by a standard deviation that is learnt from these runs and from a prior worth
`PRIOR_RUNS` of them. Nothing is sent.

What a rank wanted of its GPU before it ran out of memory comes from the message (`gpu_memory`).

Not promised: runs whose batch, data or number of workers are others, which no descriptor tells.

    >>> low, high = expect([100.0, 104.0], 0.05).low, expect([100.0, 104.0], 0.05).high
    >>> 85 < low < 100 and 104 < high < 122
    True
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tenant_client.doctor.advice.distributions import t_quantile
from tenant_client.doctor.advice.gpu_memory import GpuWanted
from tenant_client.doctor.records.usages import Usage
from tenant_client.doctor.workload.descriptor import Descriptor, rungs

PRIOR_RUNS = 4.0
_GPU = "gpu_bytes"
SPREADS: Mapping[str, float] = {
    "rank_bytes": 0.05,
    "workers_bytes": 0.05,
    "sent_bytes": 0.05,
    "cpu_s": 0.1,
    _GPU: 0.05,
}
UNITS: Mapping[str, str] = {
    "rank_bytes": "memory of a rank",
    "workers_bytes": "memory of a rank's workers",
    "sent_bytes": "sent over the network in a step",
    "cpu_s": "processor time of all ranks in a step",
    _GPU: "allocated by torch on a rank's GPU",
}
Alike = Literal["exact", "structure"]
Verdict = Literal["as expected", "more", "less", "unknown"]


@dataclass(frozen=True)
class Expected:
    """A quantity of a run to come; 95% of runs lie between `low` and `high`."""

    value: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Demand:
    """One quantity, before and after; null where nothing alike ran before, or where nothing was measured."""

    quantity: str
    expected: Expected | None
    measured: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Earlier:
    """A run that is over, or goes on: its workload and what it used."""

    descriptor: Descriptor
    usage: Usage


@dataclass(frozen=True)
class Resources:
    """Every quantity of a workload; `alike` says of what runs, null where there is none.

    `host_bytes` is what all ranks and workers on a host may need (the upper ends), `available_bytes` what this host has
    left for them; `wants_memory` says that it is not enough, or that more was used than was to be expected. `gpu` is
    what the run wanted that ran out of GPU memory.
    """

    ranks: int
    alike: Alike | None
    demands: tuple[Demand, ...]
    host_bytes: float | None
    available_bytes: float
    wants_memory: bool
    gpu: GpuWanted | None = None


def quantities(usage: Usage) -> dict[str, float]:
    """What a run used, bytes and seconds; those of a step only where steps were seen."""
    found = {"rank_bytes": usage.rank_bytes, "workers_bytes": usage.workers_bytes}
    if usage.steps:
        found |= {"sent_bytes": usage.sent_bytes / usage.steps, "cpu_s": usage.cpu_s / usage.steps}
    return found | ({_GPU: usage.gpu_bytes} if usage.gpu_bytes else {})


def expect(earlier: Sequence[float], spread: float) -> Expected:
    """From what earlier runs used, at least one; nothing at all, where none of them used any."""
    values = np.array(earlier, np.float64)
    if (values <= 0).any():
        return Expected(float(values.mean()), 0.0, float(values.max()), len(values))
    logs = np.log(values)
    freedom = PRIOR_RUNS + len(logs) - 1
    variance = (PRIOR_RUNS * spread**2 + float(((logs - logs.mean()) ** 2).sum())) / freedom
    half = t_quantile(freedom, 0.975) * float(np.sqrt(variance * (1.0 + 1.0 / len(logs))))
    middle = float(logs.mean())
    low, value, high = (float(np.exp(middle + part)) for part in (-half, 0.0, half))
    return Expected(value, low, high, len(logs))


def resources(
    workload: Descriptor, earlier: Sequence[Earlier], measured: Usage | None, ranks: int, available_bytes: float
) -> Resources:
    """Before and after. `ranks` on a host: of the run itself, or as asked."""
    alike, runs = _alike(workload, [one for one in earlier if one.usage.ranks == ranks])
    after = quantities(measured) if measured else {}
    names = [
        name for name in SPREADS if name != "gpu_bytes" or any(name in one for one in (after, *map(quantities, runs)))
    ]
    demands = tuple(_demand(name, runs, after.get(name)) for name in names)
    host = _host_bytes(demands, ranks)
    more = any(one.verdict == "more" for one in demands if one.quantity in ("rank_bytes", "workers_bytes"))
    short = measured is None and host is not None and host > available_bytes
    return Resources(ranks, alike, demands, host, available_bytes, more or short)


def _alike(workload: Descriptor, earlier: Sequence[Earlier]) -> tuple[Alike | None, list[Usage]]:
    exact = [one.usage for one in earlier if _exact(one.descriptor) == _exact(workload)]
    if exact:
        return "exact", exact
    same = [one.usage for one in earlier if one.descriptor.structure == workload.structure]
    return ("structure", same) if same else (None, [])


def _exact(descriptor: Descriptor) -> bytes:
    return rungs(descriptor, ()).exact


def _demand(name: str, runs: Sequence[Usage], measured: float | None) -> Demand:
    values = [found[name] for found in map(quantities, runs) if name in found]
    expected = expect(values, SPREADS[name]) if values else None
    if expected is None or measured is None:
        return Demand(name, expected, measured, "unknown")
    verdict: Verdict = "more" if measured > expected.high else "less" if measured < expected.low else "as expected"
    return Demand(name, expected, measured, verdict)


def _host_bytes(demands: Sequence[Demand], ranks: int) -> float | None:
    known = {one.quantity: one.expected for one in demands}
    rank, workers = known["rank_bytes"], known["workers_bytes"]
    return ranks * (rank.high + (workers.high if workers else 0.0)) if rank else None
