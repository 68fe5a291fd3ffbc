"""Plays a scenario week by week: the cloud runs, the federation holds its round, and the outcome is kept for the judge.

The seed fixes the cloud (who runs what, what fails). Keys and noise come from the system's generator unless a seed of
their own is given, so two runs of one seed differ only in noise.
"""

import hashlib
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

import numpy as np

from crypto.ids import LeaseId
from federation.protocol.bundle import Bundle, CatalogueEntry
from federation.protocol.noise import Integers
from federation.protocol.plan import HOURS_PER_WEEK, Plan
from federation.protocol.queries import Query
from provider_server.fleet.learning.hardware import keep
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release
from provider_server.rounds.network.grid_tenants import GridTenants
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.week import Stage, Tenants, federated_week
from simulation.cloud import cloud as world
from simulation.cloud.hardware import context_names, fleet, label
from simulation.cloud.profiles import WorkloadProfile
from simulation.cloud.scenario import Scenario
from simulation.run.federation import Federation, found
from simulation.run.insecure import InsecureRepeatable
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.doctor.records.journal import Failure
from tenant_client.doctor.workload.descriptor import Descriptor, own_sketch
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.tenant import StartedLease

DEADLINE_S = 600.0
FOREVER_H = 1e5


@dataclass(frozen=True)
class Played:
    """The results of a run for its judge: releases, the truth, and the cost.

    `bundles` are those in force after each week. Leases and releases are dated in hours since 1970, of which the first
    week began at `start_hour`; the cloud counts from there.
    """

    cloud: world.Cloud
    federation: Federation
    releases: tuple[Release, ...]
    bundles: tuple[Bundle, ...]
    exact: tuple[tuple[Integers, ...], ...]
    leases: Mapping[str, Lease]
    workload_of: Mapping[str, int]
    place_of: Mapping[str, tuple[int, int]]
    job_weeks: int
    seconds_by_stage: Mapping[str, float]
    bytes_by_stage: Mapping[str, int]
    bytes_per_tenant_round: float
    start_hour: int = 0

    @property
    def end_hour(self) -> int:
        """When the last week was over, in hours since 1970."""
        return self.releases[-1].plan.end_hour


def settings_of(scenario: Scenario, start_week: int = 0) -> PlanSettings:
    """The provider's settings for a scenario: noise is complete with all but the colluders of a minimal cohort.

    An epoch is as long as it must be, that a scenario meets no more of them than if it had begun with one; windows are
    as many weeks after the scenario's start as they would be after an epoch's.
    """
    at_least = scenario.windows[-1]
    epochs = -(-scenario.weeks // at_least)
    weeks = next(weeks for weeks in count(at_least) if start_week % weeks + scenario.weeks <= epochs * weeks)
    ends = {start_week % weeks + end for end in (0, *scenario.windows)}
    return PlanSettings(
        epsilon=scenario.epsilon,
        delta=scenario.delta,
        cohort_minimum=scenario.cohort_minimum,
        noise_shares=max(1, int(scenario.cohort_minimum * (1 - scenario.colluding_share))),
        owners_minimum=scenario.owners_minimum,
        failures_per_unit=scenario.failures_per_unit,
        mechanism=scenario.mechanism,
        windows=(*sorted(end for end in ends if 0 < end < weeks), weeks),
        weeks_per_epoch=weeks,
        groups=scenario.groups,
        band_edges_hours=(*scenario.age_band_edges_h, FOREVER_H),
    )


class Player:
    """One run of a scenario below `root`; iterate over `weeks`, then ask for what was `played`.

    `start_week`, counted from 1970, dates it and changes nothing of what happens. `insecure` makes keys and noise that
    repeat.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        root: Path,
        start_week: int = 0,
        insecure: InsecureRepeatable | None = None,
    ) -> None:
        self.scenario = scenario
        self.cloud = world.build_cloud(scenario, np.random.default_rng(seed))
        self._start_hour = start_week * HOURS_PER_WEEK
        settings = settings_of(scenario, start_week)
        drawn = insecure.random_bytes if insecure else os.urandom
        hardware = {label(place): name for place, name in enumerate(context_names(scenario.contexts))}
        self._federation = found(root, scenario.tenants, settings, _policy(scenario), insecure, drawn, hardware)
        keep(root / "provider", fleet(self.cloud, self._start_hour))
        self._workloads = [_descriptor(profile) for profile in self.cloud.workloads]
        self._leases: dict[str, Lease] = {}
        self._facts: dict[str, world.Lease] = {}
        self._tally = Tally()
        self._releases: list[Release] = []
        self._bundles: list[Bundle] = []
        self._exact: list[tuple[Integers, ...]] = []
        self._job_weeks = 0

    def weeks(self) -> Iterator[int]:
        """Plays week after week and yields the number of each one that is over."""
        of = self._federation
        grid = LocalGrid({n: client_app(tenant.answer) for n, tenant in enumerate(of.tenants)})
        with local_task():
            tenants = MeteredTenants(GridTenants(grid, DEADLINE_S, poll_s=0.0), self._tally)
            for _receipt in tenants.ask(Query.BUNDLE, of.publisher.publish_catalogue(self._catalogue())):
                pass
            for number in range(self.scenario.weeks):
                self._happen(number)
                if (window := self._window(number))[1] == self._start_hour + (number + 1) * HOURS_PER_WEEK:
                    made = federated_week(of.provider, of.publisher, tenants, of.trustees, window, self._tally.begin)
                    self._releases.append(made)
                    self._bundles.append(self._in_force())
                    self._exact.append(exact_sum(self._federation, made.plan))
                yield number

    def played(self) -> Played:
        """The record of the weeks so far."""
        end_hour = self._start_hour + self.scenario.weeks * HOURS_PER_WEEK
        known = self._federation.provider.store.leases(self._start_hour, end_hour)
        registered = {lease.lease: lease for lease in known}
        return Played(
            self.cloud,
            self._federation,
            tuple(self._releases),
            tuple(self._bundles),
            tuple(self._exact),
            {name: registered[lease.lease] for name, lease in self._leases.items()},
            {name: lease.workload for name, lease in self._facts.items()},
            {name: (lease.context, lease.level) for name, lease in self._facts.items()},
            self._job_weeks,
            self._tally.seconds,
            self._tally.bytes,
            self._tally.bytes[Stage.CONTRIBUTE] / max(1, len(self._releases) * self.scenario.tenants),
            self._start_hour,
        )

    def close(self) -> None:
        """Closes every database."""
        self._federation.close()

    def _happen(self, number: int) -> None:
        """The week's new leases are granted and journalled, and its failures are journalled where they occurred."""
        week = self.cloud.week(number)
        epoch = self._federation.provider.epoch(self._start_hour + number * HOURS_PER_WEEK)
        self._job_weeks += len(week.leases)
        began = [lease for lease in week.leases if lease.lease_id not in self._leases]
        granted = {lease.lease_id: self._grant(lease) for lease in began}
        self._leases |= granted
        self._facts |= {lease.lease_id: lease for lease in began}
        self._federation.provider.record_leases(granted.values())
        started, failed = defaultdict(list), defaultdict(list)
        for began_lease in began:
            given = granted[began_lease.lease_id]
            started[began_lease.tenant].append(
                StartedLease(
                    given.lease, given.start_h, given.labels, self._workloads[began_lease.workload], given.nodes
                )
            )
        for failure in week.failures:
            lease = self._leases[failure.lease_id]
            at_h = self._start_hour + failure.at_h
            failed[lease.tenant].append(Failure(str(lease.lease), at_h, failure.age_h, failure.reason))
        for position, tenant in enumerate(self._federation.tenants):
            tenant.start_leases(started[position], epoch)
            tenant.record(failed[tenant.id])

    def _window(self, week: int) -> tuple[int, int]:
        """The one that holds a week."""
        settings, hour = self._federation.provider.settings, self._start_hour + week * HOURS_PER_WEEK
        edges = settings.edges(hour // (settings.weeks_per_epoch * HOURS_PER_WEEK))
        return next(window for window in pairwise(edges) if hour < window[1])

    def _in_force(self) -> Bundle:
        """What tenants have, as one of them checks it."""
        bundle = self._federation.tenants[0].bundle()
        if bundle is None:
            raise LookupError("no tenant has the catalogue that was published before the first week")
        return bundle

    def _grant(self, lease: world.Lease) -> Lease:
        """The provider's record of a lease; its context tokens are all that tenant and provider will call it by."""
        start_h, end_h = self._start_hour + lease.start_h, self._start_hour + lease.end_h
        labels = self._federation.provider.context_labels(start_h, label(lease.context), lease.level)
        owner = self._federation.tenants[lease.tenant].id
        named = LeaseId(hashlib.sha256(lease.lease_id.encode()).digest()[: LeaseId.length])
        return Lease(named, owner, lease.nodes, start_h, end_h, labels)

    def _catalogue(self) -> list[CatalogueEntry]:
        """The provider benchmarks the first version of every other archetype; the rest it must learn to tell apart."""
        benchmarked = self._workloads[:: 2 * self.scenario.versions_per_archetype]
        return [
            CatalogueEntry(f"benchmark {number}", own_sketch(workload).to_bytes())
            for number, workload in enumerate(benchmarked)
        ]


class Tally:
    """Seconds and bytes by stage."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.bytes: Counter[str] = Counter()
        self._stage = Stage.DONE
        self._since = time.monotonic()

    def begin(self, stage: Stage) -> None:
        """Ends the stage before and begins this one."""
        now = time.monotonic()
        if self._stage is not Stage.DONE:
            self.seconds[self._stage] += now - self._since
        self._stage, self._since = stage, now

    def count(self, size: int) -> None:
        """Adds bytes to the stage that runs."""
        self.bytes[self._stage] += size


class MeteredTenants:
    """Counts what passes through another `Tenants`; a question counts once for each tenant that answers it."""

    def __init__(self, inner: Tenants, tally: Tally) -> None:
        self._inner = inner
        self._tally = tally

    def ask(self, query: Query, payload: bytes) -> Iterator[bytes]:
        """As the tenants within."""
        for answer in self._inner.ask(query, payload):
            self._tally.count(len(payload) + len(answer))
            yield answer


def exact_sum(federation: Federation, plan: Plan) -> tuple[Integers, ...]:
    """The sum of the tenants' exact tables: the answer without privacy, which only a simulation can compute."""
    columns = zip(*(tenant.counts(plan) for tenant in federation.tenants), strict=True)
    return tuple(np.sum(column, axis=0) for column in columns)


def _policy(scenario: Scenario) -> dict[str, object]:
    return {
        "epsilon_per_window": scenario.epsilon,
        "delta": scenario.delta,
        "owners_minimum": scenario.owners_minimum,
        "cohort_minimum": scenario.cohort_minimum,
        "failures_per_unit_maximum": scenario.failures_per_unit,
        "colluding_share": scenario.colluding_share,
    }


def _descriptor(profile: WorkloadProfile) -> Descriptor:
    return Descriptor(
        profile.operators,
        frozenset((name, ()) for name, _ in profile.operators),
        profile.collectives,
        profile.precision,
        profile.parallelism,
        profile.versions,
        profile.kernel_families,
    )
