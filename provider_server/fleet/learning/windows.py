"""The counts of each release beside what a model predicts for its leases in its window, and what is watched of them.

Windows are disjoint, and the noise of each is its own: releases are independent, and what several say adds up.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from federation.protocol.causes import Domain
from federation.protocol.life_table import Floats, LifeTable
from federation.protocol.plan import Plan
from provider_server.fleet.analysis.drift import Watched
from provider_server.fleet.analysis.prediction import Prediction, mean_risk, predict
from provider_server.fleet.exposure import OF_FAILURE, Slices
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release


def infrastructure(plan: Plan, tables: Sequence[LifeTable]) -> tuple[LifeTable, ...]:
    """Of `tables`, in the order of the plan, those that count infrastructure failures by lease; of these alone."""
    found = []
    for marginal, table in zip(plan.marginals, tables, strict=True):
        if "domain" in table.names and not marginal.domains:
            found.append(table.at("domain", Domain.INFRASTRUCTURE))
        elif marginal.domains == (Domain.INFRASTRUCTURE,) and not set(OF_FAILURE) & set(table.names):
            found.append(table)
    return tuple(found)


def predict_window(
    rates: Mapping[tuple[str, str], float],
    risks: Mapping[tuple[str, str], float],
    release: Release,
    leases: Sequence[Lease],
    mix: Mapping[str, float] | None = None,
) -> Prediction:
    """The counts that `rates` and `risks` predict for a release's units; see `analysis.prediction.predict`."""
    return predict(rates, risks, _slices(release, leases), release.plan.failures_per_unit, mix or {})


def mean_risks(
    risks: Mapping[tuple[str, str], float], releases: Sequence[Release], leases: Sequence[Lease]
) -> dict[str, float]:
    """The mean risk, by node-hours, of what ran at each context level in the windows of `releases`: their `mix`."""
    return mean_risk(risks, [_slices(made, leases) for made in releases])


def _slices(release: Release, leases: Sequence[Lease]) -> Slices:
    first = release.first_hour
    return release.slices([lease for lease in leases if lease.start_h < release.plan.end_hour and lease.end_h > first])


# ---- what is watched -------------------------------------------------------------------------------------------------


def watched(releases: Sequence[Release], predictions: Sequence[Prediction], log_sd: float = 0.0) -> tuple[Watched, ...]:
    """Counts window by window beside what was predicted: in total, by context, and by workload row.

    `releases` are all so far, oldest first, and `predictions` holds one for each, by the model in force at that time;
    `log_sd` is by how much its log rates may have been off all along. Contexts and the total are counted in the hazard
    table, whose rows are fewer than those of the pairs.
    """
    windows = [dict(_named(made)) for made in releases]
    labels = [lease.labels for one in predictions for lease in one.leases]
    context_of = {own["context_level"]: f"context {own['context']}" for own in labels}
    rows = {level for window in windows for level in window["pairs"].levels("workload")}
    found: list[Watched] = []
    for name, dimension, groups in (
        ("hazard", "context_level", dict.fromkeys(context_of, "total")),
        ("hazard", "context_level", context_of),
        ("pairs", "workload", {level: f"workload {level}" for level in rows}),
    ):
        tables = [window[name] for window in windows]
        sums = [_by_group(table, one, dimension, groups) for table, one in zip(tables, predictions, strict=True)]
        for group in sorted(set(groups.values())):
            counted, predicted, variance, noise = np.array([window.get(group, np.zeros(4)) for window in sums]).T
            hours = tuple(made.plan.start_hour for made in releases)
            found.append(Watched(group, hours, counted, predicted, variance, noise, log_sd))
    return tuple(found)


def _by_group(table: LifeTable, predicted: Prediction, dimension: str, groups: Mapping[str, str]) -> dict[str, Floats]:
    """By group of levels: failures counted, failures predicted, the variance of these, and that of the noise."""
    counted, expected = table.marginal(dimension), predicted.along(table, dimension)
    columns = np.stack([counted.events, expected.mean, expected.variance, counted.noise_variance], axis=1)
    sums: dict[str, Floats] = {}
    for level, numbers in zip(table.levels(dimension), columns, strict=True):
        if level in groups:
            sums[groups[level]] = sums.get(groups[level], np.zeros(4)) + numbers
    return sums


def _named(made: Release) -> Iterable[tuple[str, LifeTable]]:
    for marginal, table in zip(made.plan.marginals, made.tables, strict=True):
        yield marginal.name, table.at("domain", Domain.INFRASTRUCTURE) if "domain" in table.names else table
