"""What the tenants of a cloud know themselves until some hour, their own leases and failures, and what that tells them.

`with_bundle` is what the program does (`tenant_client.doctor.advice.own_history`). `alone` is a tenant without
federation: it expects of each of its leases the rate of all of them, and has the provider's prior, which is generous.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from crypto.ids import Token
from federation.protocol.bundle import Bundle, HazardEntry
from federation.protocol.causes import CAUSES, Domain
from federation.protocol.evidence import Evidence
from federation.protocol.life_table import PER_NODE_HOURS
from simulation.cloud.profiles import Floats
from simulation.judge.user_loop import Trial
from tenant_client.doctor.advice.own_history import Joined, Joiner, join
from tenant_client.doctor.records.own_leases import OwnLease

FOREVER_H = 1e6


class Histories:
    """Of all tenants of a trial."""

    def __init__(self, trial: Trial) -> None:
        cloud = trial.cloud
        self._trial = trial
        order = np.argsort(cloud.leases.tenant, kind="stable")
        bounds = np.searchsorted(cloud.leases.tenant[order], np.arange(cloud.scenario.tenants + 1))
        self._rows = [order[first:last] for first, last in pairwise(bounds)]
        infrastructure = np.array([cause.domain is Domain.INFRASTRUCTURE for cause in CAUSES.values()])
        own = infrastructure[cloud.failures.reason]
        self._failed_lease, self._failed_h = cloud.failures.lease[own], cloud.failures.at_h[own]  # by time

    def failures(self, hour: float) -> Floats:
        """Failures of the infrastructure by lease until an hour (L,)."""
        before = int(np.searchsorted(self._failed_h, hour))
        counts = np.bincount(self._failed_lease[:before], minlength=len(self._trial.cloud.leases.tenant))
        return counts.astype(np.float64)

    def until(self, tenant: int, hour: float, failures: Floats) -> list[OwnLease]:
        """The leases of a tenant that began before; `failures` are those until that hour."""
        leases, rows = self._trial.cloud.leases, self._rows[tenant]
        return [
            OwnLease(
                self._trial.labels(row),
                int(leases.nodes[row]),
                float(leases.start_h[row]),
                float(min(leases.end_h[row], hour)),
                int(failures[row]),
            )
            for row in rows[leases.start_h[rows] < hour].tolist()
        ]


def with_bundle(bundle: Bundle) -> Callable[[Sequence[OwnLease]], Joined]:
    """Joins the bundle with own leases of tenants that have answered all rounds behind it."""
    joiner = Joiner(bundle)
    return lambda leases: joiner.join(leases, [(0.0, float(bundle.until_hour))])


def alone(bundle: Bundle) -> Callable[[Sequence[OwnLease]], Joined]:
    """Makes findings of own leases, and of nothing of the bundle but its prior."""
    return lambda leases: _alone(bundle, leases)


def _alone(bundle: Bundle, leases: Sequence[OwnLease]) -> Joined:
    hours = sum(lease.nodes * (lease.end_h - lease.start_h) for lease in leases)
    rate = PER_NODE_HOURS * (sum(lease.failures for lease in leases) + 0.5) / max(hours, 1.0)
    level = HazardEntry(Token(bytes(Token.length)), "0", rate, rate, rate)
    known = bundle.evidence
    evidence = known and Evidence((), known.log_prior, 0.0, (rate,), ())
    bare = Bundle(bundle.number, 0, bundle.until_hour, (), (), (level,), None, (0.0, FOREVER_H), evidence=evidence)
    return join(bare, leases, [])
