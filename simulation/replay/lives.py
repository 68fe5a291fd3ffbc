"""Real data through the real federation: lives are dealt out to tenants, counted, noised, masked, summed and released.

A life has an owner, a duration that the provider could see (a lease that ended), labels that are public in the replay,
and a failure that only its owner knows. Nothing of the data reaches the provider's side but durations and the release.

Two things differ from a real federation, and only these. Every contributor is honest and present, so the noise is
exactly that of the stated epsilon. And in a replay with several seeds the same lives are lived again and again, once in
each window of one epoch.
"""

import hashlib
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np

from crypto.errors import PharoahError
from crypto.ids import LeaseId
from federation.protocol.life_table import LifeTable
from federation.protocol.noise import Integers, NoiseSampler, SystemSampler
from federation.protocol.plan import HOURS_PER_WEEK, Mechanism
from provider_server.fleet.exposure import Slices
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release
from provider_server.rounds.network.grid_tenants import GridTenants
from provider_server.rounds.planning import MarginalSpec, PlanSettings, make_plan
from provider_server.rounds.week import federated_round
from simulation.run.federation import Federation, found
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.doctor.records.journal import Failure, Unit
from tenant_client.rounds.network.flower_app import client_app

Finished = TypeVar("Finished")  # the result of a replay

DEADLINE_S = 600.0
DELTA = 1e-8
NO_PRIVACY_EPSILON = 1.0  # stands in the plan when noise is switched off; nothing depends on it


class DataError(PharoahError):
    """A data file is missing or is not what it should be."""

    default_hint = "the file's columns and source are described in docs/simulation.md"


@dataclass(frozen=True)
class Life:
    """One unit under observation for `hours`; `reason` is why it failed at their end, None if it did not.

    `hours` are the provider's knowledge. `secret_hours` is the age at the failure where that is not their end.
    """

    owner: str
    unit: str
    hours: float
    reason: str | None
    labels: Mapping[str, str]
    secret_hours: float | None = None

    @property
    def lease(self) -> LeaseId:
        """The name under which the provider knows it."""
        return LeaseId(hashlib.sha256(self.unit.encode()).digest()[: LeaseId.length])

    @property
    def failure(self) -> Failure | None:
        """What its owner journals."""
        return self.failure_from(0)

    def failure_from(self, start_hour: int) -> Failure | None:
        """The same of a life that begins then."""
        age_h = self.hours if self.secret_hours is None else self.secret_hours
        return None if self.reason is None else Failure(str(self.lease), start_hour + age_h, age_h, self.reason)


def passed_on(steps: Iterator[Finished | None]) -> Generator[None, None, Finished]:
    """Yields None for each round of another replay, and returns its result."""
    for step in steps:
        if step is not None:
            return step
        yield None
    raise ValueError("a replay ends with its result")


class InsecureSilence:
    """No noise at all: for the answer without privacy, which only a replay may ask for."""

    def gaussian(self, scale: float, size: int) -> Integers:
        """Zeros."""
        return np.zeros(size, np.int64)

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        """Zeros."""
        return np.zeros(size, np.int64)


def settings_of(
    epsilon: float | None, mechanism: Mechanism, edges: Iterable[float], marginals: Iterable[MarginalSpec]
) -> PlanSettings:
    """What a replay counts in a round; no `epsilon` where it is without privacy."""
    return PlanSettings(
        epsilon=NO_PRIVACY_EPSILON if epsilon is None else epsilon,
        delta=DELTA,
        cohort_minimum=1,
        noise_shares=1,
        mechanism=mechanism,
        band_edges_hours=tuple(map(float, edges)),
        marginals=tuple(marginals),
    )


@contextmanager
def replaying(
    lives: Sequence["Life"],
    settings: PlanSettings,
    levels: Mapping[str, tuple[str, ...]],
    *,
    private: bool,
    rounds: int,
) -> Iterator["Replay"]:
    """A `Replay` in a folder that goes with it."""
    with (
        tempfile.TemporaryDirectory() as root,
        closing(Replay(Path(root), lives, settings, levels, private=private, rounds=rounds)) as replay,
    ):
        yield replay


class Replay:
    """A federation whose tenants own `lives`, ready for so many `rounds`, each with a window of its own."""

    def __init__(
        self,
        root: Path,
        lives: Sequence[Life],
        settings: PlanSettings,
        public_levels: Mapping[str, tuple[str, ...]],
        *,
        private: bool,
        rounds: int,
    ) -> None:
        owners = sorted({life.owner for life in lives})
        self._hours = int(np.ceil(max(life.hours for life in lives))) + 1
        weeks = -(-rounds * self._hours // HOURS_PER_WEEK)
        everybody = replace(settings, cohort_minimum=len(owners), noise_shares=len(owners))
        everybody = replace(everybody, windows=(weeks,), weeks_per_epoch=weeks)
        self._public_levels = public_levels
        self._private = private
        sampler = SystemSampler() if private else InsecureSilence()
        self._starts = [number * self._hours for number in range(rounds + 1)]
        self._federation = _found(root, len(owners), everybody, sampler, float(self._starts[-1] + HOURS_PER_WEEK))
        self._grid = LocalGrid({n: client_app(tenant.answer) for n, tenant in enumerate(self._federation.tenants)})
        self._settings = everybody
        self._windows = pairwise(self._starts)
        self.leases = _deal_out(self._federation, owners, lives, 0)
        self.slices = Slices.of(self.leases, 0, self._hours, settings.band_edges_hours)
        self._federation.provider.record_leases(self.leases)
        for number, start_hour in enumerate(self._starts[1:-1], 1):
            again = [replace(life, unit=f"{life.unit} once more {number}") for life in lives]
            self._federation.provider.record_leases(_deal_out(self._federation, owners, again, start_hour))

    def close(self) -> None:
        """Closes every database."""
        self._federation.close()

    def round(self) -> Release:
        """One whole round over all lives; without privacy, its tables say that they have no noise."""
        provider = self._federation.provider
        plan = make_plan(
            self._settings,
            provider.new_round_id(),
            next(self._windows),
            self.leases,
            provider.mask_trustees(),
            self._public_levels,
            windows=tuple(self._starts),
            directory=provider.directory.head,
        )
        with local_task():
            tenants = GridTenants(self._grid, DEADLINE_S, poll_s=0.0)
            released = federated_round(provider, tenants, self._federation.trustees, provider.open_round(plan))
        if self._private:
            return released
        return replace(released, tables=tuple(_without_noise(table) for table in released.tables))


def _without_noise(table: LifeTable) -> LifeTable:
    return table.without_privacy(table.events)


def _found(root: Path, tenants: int, settings: PlanSettings, sampler: NoiseSampler, now_h: float) -> Federation:
    names = {name for spec in settings.marginals for name in spec.dimensions}
    policy = {
        "epsilon_per_window": settings.epsilon * (1 + 1e-6),
        "delta": settings.delta,
        "cohort_minimum": settings.cohort_minimum,
        "colluding_share": 0.0,
        "window_hours_minimum": 1,
        "dimensions": tuple(sorted(names)),
    }
    return found(root, tenants, settings, policy, sampler, clock=lambda: now_h)


def _deal_out(federation: Federation, owners: Sequence[str], lives: Sequence[Life], start_hour: int) -> list[Lease]:
    """Journals every life with its owner and returns what the provider knows of it; all begin at that hour."""
    leases = []
    for owner, tenant in zip(owners, federation.tenants, strict=True):
        own = [life for life in lives if life.owner == owner]
        units = [Unit(str(life.lease), float(start_hour), life.labels) for life in own]
        failures = [failure for life in own if (failure := life.failure_from(start_hour)) is not None]
        tenant.journal.add(units, failures)
        leases += [
            Lease(life.lease, tenant.id, 1, float(start_hour), start_hour + life.hours, life.labels) for life in own
        ]
    return leases
