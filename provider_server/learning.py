"""What the releases say together: mismatches and hazards, from noisy counts and the provider's own exposure.

Releases add up cell by cell, and so do the variances of their noise. A job-week counts at most F failures, so the exposure
behind the counts is corrected for the cap (`analysis.effective`): the rates are fitted, the exposure is scaled by what
the rates say, and the rates are fitted again.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeVar

import numpy as np

from crypto.causes import Domain
from crypto.life_table import Floats, LifeTable
from crypto.messages import finest_row
from provider_server.analysis.effective import cap_factor
from provider_server.analysis.hazard import Cells, Model, fit_hazard, predict
from provider_server.analysis.mismatch import Mismatches, find_mismatches
from provider_server.leases import Lease, Slices, expose
from provider_server.release import Release

Fitted = TypeVar("Fitted")

CAP_ROUNDS = 2


@dataclass(frozen=True)
class PairFinding:
    """A workload row on a context, both as tokens; see `analysis.mismatch`."""

    workload: str
    context: str
    probability_worse: float
    risk_ratio: float
    low: float
    high: float
    expected_failures: float


@dataclass(frozen=True)
class RateFinding:
    """Infrastructure failures per node-hour of a context at a build-up level in an age band, with its 95% interval."""

    context_level: str
    band: str
    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class Findings:
    """Everything learnt from a set of releases."""

    pairs: tuple[PairFinding, ...]
    rates: tuple[RateFinding, ...]


def learn(releases: Sequence[Release], leases: Sequence[Lease]) -> Findings:
    """Findings from all `releases` so far; `leases` are those of their windows."""
    weeks = [_Week(made, _slices(made, leases)) for made in releases]
    return Findings(_pairs(weeks), _rates(weeks))


@dataclass(frozen=True)
class _Week:
    """A release beside the exposure of its window, lease by lease."""

    release: Release
    slices: Slices

    def table(self, marginal: str, discount: Floats) -> LifeTable:
        """The released table over exposure that is scaled, lease by lease, by `discount` (leases,)."""
        names = [candidate.name for candidate in self.release.plan.marginals]
        exposed = expose(self.release.plan, self.slices, discount)[names.index(marginal)]
        made = self.release.table(marginal)
        return replace(made, exposure_node_hours=exposed.exposure_node_hours)


def _slices(made: Release, leases: Sequence[Lease]) -> Slices:
    return Slices.of(leases, made.plan.start_hour, made.plan.end_hour, made.plan.band_edges_hours)


def _pairs(weeks: Sequence[_Week]) -> tuple[PairFinding, ...]:
    total, found = _with_cap(weeks, "pairs", find_mismatches, _expected_of_pairs)
    workloads, contexts = total.levels("workload"), total.levels("context")
    return tuple(
        PairFinding(workloads[a], contexts[c], *(float(number) for number in numbers))
        for a, c, *numbers in zip(
            found.workload,
            found.context,
            found.probability_worse,
            found.ratio,
            found.ratio_low,
            found.ratio_high,
            found.expected,
            strict=True,
        )
    )


def _rates(weeks: Sequence[_Week]) -> tuple[RateFinding, ...]:
    total, fitted = _with_cap(weeks, "hazard", _fit_domains, _expected_of_domains)
    infrastructure = total.at("domain", Domain.INFRASTRUCTURE)
    low, rates, high = fitted[Domain.INFRASTRUCTURE]
    levels, bands = infrastructure.levels("context_level"), infrastructure.levels("band")
    return tuple(
        RateFinding(levels[c], bands[b], float(rates[c, b]), float(low[c, b]), float(high[c, b]))
        for c, b in np.argwhere(infrastructure.exposure_node_hours > 0)
    )


def _fit_domains(total: LifeTable) -> dict[Domain, Floats]:
    """Rates per node-hour between their 95% bounds for each domain by itself (cause-specific hazards).

    Each has shape (3, context levels, bands): lower bound, rate, upper bound; zero where there is no exposure.
    """
    return {domain: _fit_rates(total.at("domain", domain)) for domain in Domain}


def _fit_rates(table: LifeTable) -> Floats:
    cells = Cells.from_table(table)
    estimate = predict(fit_hazard(cells, [table], Model((("context_level",), ("band",)))), cells)
    low, high = estimate.interval()
    rates = np.zeros((3, *table.shape))
    rates[:, cells.index[0], cells.index[1]] = low, estimate.value, high
    return rates


def _expected_of_domains(week: _Week, total: LifeTable, rates: dict[Domain, Floats]) -> Floats:
    """Failures of any cause that each lease of a week should have had; shape (leases,)."""
    by_level = np.sum([middle for _, middle, _ in rates.values()], axis=0)
    places = {level: place for place, level in enumerate(total.levels("context_level"))}
    rows = np.array([places.get(lease.labels["context_level"], -1) for lease in week.slices.leases], np.intp)
    return np.where(rows < 0, 0.0, (by_level[rows] * week.slices.node_hours).sum(axis=1))


def _expected_of_pairs(week: _Week, total: LifeTable, found: Mismatches) -> Floats:
    """Infrastructure failures that each lease of a week should have had, mismatch included; shape (leases,)."""
    exposure = total.exposure_node_hours[found.workload, found.context]
    rates = dict(
        zip(
            zip(found.workload.tolist(), found.context.tolist(), strict=True),
            found.expected * found.ratio / exposure,
            strict=True,
        )
    )
    workloads = {token: row for row, token in enumerate(total.levels("workload"))}
    contexts = {token: column for column, token in enumerate(total.levels("context"))}
    hours = week.slices.node_hours.sum(axis=1)
    places = [
        (workloads.get(finest_row(lease.labels, workloads)), contexts.get(lease.labels["context"]))
        for lease in week.slices.leases
    ]
    return hours * np.array([rates.get(place, 0.0) for place in places])


def _with_cap(
    weeks: Sequence[_Week],
    marginal: str,
    fit: Callable[[LifeTable], Fitted],
    expected: Callable[[_Week, LifeTable, Fitted], Floats],
) -> tuple[LifeTable, Fitted]:
    """The sum of the weeks' tables over corrected exposure, and what was fitted to it."""
    total = _sum(week.table(marginal, np.ones(len(week.slices.leases))) for week in weeks)
    fitted = fit(total)
    for _ in range(CAP_ROUNDS):
        corrected = []
        for week in weeks:
            factor = cap_factor(expected(week, total, fitted), week.release.plan.failures_per_unit)
            corrected.append(week.table(marginal, factor))
        total = _sum(corrected)
        fitted = fit(total)
    return total, fitted


def _sum(tables: Iterable[LifeTable]) -> LifeTable:
    return reduce(operator.add, tables)
