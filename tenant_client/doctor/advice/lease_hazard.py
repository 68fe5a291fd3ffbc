"""How often a lease fails, by what its tenant knows itself: the newest bundle, its grant, and the hints about it.

    failures per hour = nodes × the bundle's rate of its context at its build-up level and age × what its workload adds

- The last factor is the bundle's ratio of the workload on this context where that is called worse or suspected, else 1.
- While a hint stands, its probability within its hours says the rate of the whole lease instead, times the same factor.
- `upper` is the same by the upper bounds of the bundle's intervals.
- While the bundle has no rate of the hardware, other fleets and the tenant's own leases say one (`first_experience`).

Nothing is sent. Not promised: failures that are not the infrastructure's, which bundles do not count.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from federation.protocol.bundle import Bundle, PairJudgement
from federation.protocol.check import check
from federation.protocol.known_rates import Experience, experience
from federation.protocol.life_table import PER_NODE_HOURS
from tenant_client.doctor.records.own_leases import OwnLease

_GRAVE = (PairJudgement.WORSE, PairJudgement.SUSPECTED)


@dataclass(frozen=True)
class LeaseHazard:
    """Failures per hour of a lease from each of `from_h` (hours of age) on, with the upper bound of their interval.

    `factor` is what its workload adds, already part of both.
    """

    from_h: tuple[float, ...]
    per_hour: tuple[float, ...]
    upper_per_hour: tuple[float, ...]
    factor: float

    def at(self, age_h: float) -> float:
        """Failures per hour at an age."""
        return self.per_hour[max(0, bisect_right(self.from_h, age_h) - 1)]


def lease_hazard(bundle: Bundle, labels: Mapping[str, str], nodes: int) -> LeaseHazard | None:
    """The hazard of a lease with these labels, on so many nodes; None where the bundle has no rate of its hardware."""
    found = check(bundle, labels)
    rates = {one.band: one for one in found.hazards}
    bands = [
        (edge, rates[str(number)]) for number, edge in enumerate(bundle.band_edges_hours[:-1]) if str(number) in rates
    ]
    if not bands:
        return None
    factor = found.evidence.risk_ratio if found.evidence and found.evidence.judgement in _GRAVE else 1.0
    times = factor * nodes / PER_NODE_HOURS
    return LeaseHazard(
        tuple(edge for edge, _ in bands),
        tuple(times * one.rate for _, one in bands),
        tuple(times * one.rate_high for _, one in bands),
        factor,
    )


def first_experience(leases: Iterable[OwnLease]) -> Experience:
    """Failures per node-hour by the experience of other fleets and by these own leases, whatever their hardware."""
    own = [(one.failures, one.nodes * (one.end_h - one.start_h)) for one in leases]
    return experience().after(sum(failures for failures, _ in own), sum(node_hours for _, node_hours in own))


def first_hazard(known: Experience, nodes: int) -> LeaseHazard:
    """The hazard of a lease on so many nodes by that alone, the same at any age."""
    return LeaseHazard((0.0,), (nodes * known.rate,), (nodes * known.interval()[1],), 1.0)


def hinted_per_hour(probability: float, within_hours: float) -> float:
    """Failures per hour of a lease that fails with this probability within so many hours; 0 for no hours.

    >>> round(hinted_per_hour(0.5, 24.0), 4)
    0.0289
    """
    return -math.log1p(-min(probability, 0.999)) / within_hours if within_hours > 0 else 0.0
