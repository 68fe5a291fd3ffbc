"""Checks a new model before it is published, and watches for drift.

- *Gate.* The newest window is held out. The candidate is learnt from all before it; the model in force is the newest
  bundle, published before that window. Both predict its counts from its leases, and their log scores are
  compared (`analysis.prediction`). A candidate worse by more than two standard errors is held back: the learner, its
  settings or its input changed, and a person should look. A candidate that passes is learnt again from all windows and
  published.
- *Drift.* Counts of windows are compared with what the bundles predicted (`analysis.drift`). An alarm holds nothing
  back, since the newest model already includes the change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crypto.errors import Refusal
from federation.protocol.bundle import Bundle
from federation.protocol.causes import Domain
from federation.protocol.life_table import PER_NODE_HOURS, Floats, LifeTable
from federation.protocol.plan import Plan
from provider_server.fleet.analysis.calibration import Calibration, calibrate
from provider_server.fleet.analysis.drift import Alarm, Watched, alarms, windows_between
from provider_server.fleet.analysis.prediction import (
    Comparison,
    Prediction,
    compare,
    is_no_worse,
    mean_risk,
    predict,
    score,
)
from provider_server.fleet.exposure import OF_FAILURE, Slices
from provider_server.fleet.learning.findings import Findings
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release

Rates = Mapping[tuple[str, str], float]


class HeldBack(Refusal):
    """A bundle that would predict worse than the one in force."""

    default_hint = (
        "find the reason with `pharoah-provider findings learn`;"
        " then publish with `pharoah-provider findings publish --accept`"
    )


@dataclass(frozen=True)
class Model:
    """What a prediction needs: rates per node-hour by (context level, band), risks by (workload row, context)."""

    rates: Rates
    risks: Rates

    @classmethod
    def of_findings(cls, findings: Findings) -> "Model":
        """The model of findings."""
        return cls(
            {(one.context_level, one.band): one.rate for one in findings.rates},
            {(one.workload, one.context): one.risk_ratio for one in findings.pairs},
        )

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> "Model":
        """The model of a bundle."""
        return cls(
            {(str(one.context_level), one.band): one.rate / PER_NODE_HOURS for one in bundle.hazards},
            {(str(one.workload), str(one.context)): one.risk_ratio for one in bundle.mismatches},
        )

    def predict(self, window: Release, before: Sequence[Release], leases: Sequence[Lease]) -> Prediction:
        """The counts predicted for a window; the rates were learnt from those `before`."""
        return predict_window(self.rates, self.risks, window, leases, mean_risks(self.risks, before, leases))


def review(
    releases: Sequence[Release],
    leases: Sequence[Lease],
    in_force: Bundle,
    learn: Callable[[Sequence[Release]], Findings],
) -> Comparison | None:
    """Compares how `learn` of all but the newest window and the bundle predict that one; None where they cannot be."""
    *before, newest = releases
    if not before or not in_force.hazards or in_force.until_hour > newest.plan.start_hour:
        return None  # the bundle was learnt from the window itself
    tables = infrastructure(newest.plan, newest.tables)
    candidate, incumbent = Model.of_findings(learn(before)), Model.of_bundle(in_force)
    scores = (score([model.predict(newest, before, leases)], tables) for model in (candidate, incumbent))
    return compare(*scores)


def check(comparison: Comparison | None) -> None:
    """HeldBack where a comparison speaks against publishing."""
    if comparison is not None and not is_no_worse(comparison):
        raise HeldBack(
            f"the model predicts the newest window worse than the bundle in force: {comparison.difference:+.4f} of log"
            f" score per cell, standard error {comparison.standard_error:.4f}, {comparison.cells} cells"
        )


@dataclass(frozen=True)
class Outlook:
    """How well bundles predicted the windows after them; `calibration` is None before the first such window."""

    alarms: tuple[Alarm, ...]
    calibration: Calibration | None


def outlook(releases: Sequence[Release], leases: Sequence[Lease], bundles: Sequence[Bundle]) -> Outlook:
    """Alarms and calibration over all windows for which a bundle was in force; `bundles` oldest first."""
    said = [one for one in bundles if one.hazards]
    if not said:
        return Outlook((), None)
    predictions, tables = [], []
    for place, made in enumerate(releases):
        in_force = _in_force(said, made)
        predicted = Model.of_bundle(in_force or said[0]).predict(made, releases[:place], leases)
        predictions.append(predicted if in_force else predicted.times(np.zeros((1, 1))))  # passed over
        if in_force and _predicts(predicted, _hazards(made)):
            tables.append((predicted, _hazards(made)))
    if not tables:
        return Outlook((), None)
    hours = float(np.mean([made.plan.end_hour - made.plan.start_hour for made in releases]))
    raised = alarms(watched(releases, predictions), windows_between(hours))
    return Outlook(raised, calibrate([one for one, _ in tables], [table for _, table in tables]))


def _predicts(prediction: Prediction, table: LifeTable) -> bool:
    """Whether a failure is predicted at all; a model of few noisy counts may predict none, and is not calibrated."""
    return float(prediction.expected(table).mean[table.exposure_node_hours > 0].sum()) > 0


def _in_force(bundles: Sequence[Bundle], window: Release) -> Bundle | None:
    """The newest bundle published before the window, if it belongs to the same epoch of tokens."""
    before = [one for one in bundles if one.until_hour <= window.plan.start_hour and one.epoch == window.plan.epoch]
    return before[-1] if before else None


def _hazards(made: Release) -> LifeTable:
    """Infrastructure failures of a window, by context level and band."""
    return made.table("hazard").at("domain", Domain.INFRASTRUCTURE)


# ---- windows beside what was predicted -------------------------------------------------------------------------------
#
# Windows are disjoint, and the noise of each is its own: releases are independent, and what several say adds up.


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
