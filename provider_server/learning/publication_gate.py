"""From one release to the next: is the new model fit to be published, and has anything changed?

The newest week is held out. The candidate is what the learner of today makes of everything before that week; the model
in force is the newest bundle, which was published before it. Both predict what the week's leases let one expect to be
counted, and their log scores on the week's own counts are compared (`analysis.held_out`). A candidate that is worse by
more than two standard errors is held back: what changed is then the learner, its settings, or which releases it is
shown, and a person should look. What passes is published as learnt from all weeks, the newest among them.

Drift is the other question: whether the counts differ from what the bundles said in advance, week after week
(`analysis.drift`). An alarm holds nothing back, for the newest model is the first to know of the change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crypto.errors import Refusal
from federation.protocol.bundle import Bundle
from federation.protocol.causes import Domain
from federation.protocol.life_table import PER_NODE_HOURS, LifeTable
from provider_server.analysis.calibration import Calibration, calibrate
from provider_server.analysis.drift import Alarm, alarms
from provider_server.analysis.prediction import Comparison, Prediction, compare, is_no_worse, score
from provider_server.fleet.leases import Lease
from provider_server.learning.findings import Findings
from provider_server.learning.weekly import infrastructure, mean_risks, predict_week, watched, week_tables
from provider_server.rounds.release import Release

Rates = Mapping[tuple[str, str], float]


class HeldBack(Refusal):
    """A bundle that would predict worse than the one in force."""

    default_hint = "see `pharoah-provider learn`; once the reason is known, `pharoah-provider publish --accept`"


@dataclass(frozen=True)
class Model:
    """What a prediction needs: rates per node-hour by (context level, band), risks by (workload row, context)."""

    rates: Rates
    risks: Rates

    @classmethod
    def of_findings(cls, findings: Findings) -> "Model":
        """That of what was learnt."""
        return cls(
            {(one.context_level, one.band): one.rate for one in findings.rates},
            {(one.workload, one.context): one.risk_ratio for one in findings.pairs},
        )

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> "Model":
        """That of a bundle."""
        return cls(
            {(str(one.context_level), one.band): one.rate / PER_NODE_HOURS for one in bundle.hazards},
            {(str(one.workload), str(one.context)): one.risk_ratio for one in bundle.mismatches},
        )

    def predict(self, week: Release, before: Sequence[Release], leases: Sequence[Lease]) -> Prediction:
        """What is expected of a week's job-weeks; `before` are the weeks that the rates were learnt from."""
        return predict_week(self.rates, self.risks, week, leases, mean_risks(self.risks, before, leases))


def review(
    releases: Sequence[Release],
    leases: Sequence[Lease],
    in_force: Bundle,
    learn: Callable[[Sequence[Release]], Findings],
) -> Comparison | None:
    """How what `learn` makes of all but the newest week predicts it beside the bundle; None where nothing compares."""
    *before, newest = releases
    if not before or not in_force.hazards or in_force.until_hour > newest.plan.start_hour:
        return None  # the bundle was learnt from the week itself
    tables = infrastructure(newest.plan, week_tables(newest, before))
    candidate, incumbent = Model.of_findings(learn(before)), Model.of_bundle(in_force)
    scores = (score([model.predict(newest, before, leases)], tables) for model in (candidate, incumbent))
    return compare(*scores)


def check(comparison: Comparison | None) -> None:
    """HeldBack where a comparison speaks against publishing."""
    if comparison is not None and not is_no_worse(comparison):
        raise HeldBack(
            f"the model predicts the newest week worse than the bundle in force: {comparison.difference:+.4f} of log"
            f" score per cell, standard error {comparison.standard_error:.4f}, {comparison.cells} cells"
        )


@dataclass(frozen=True)
class Outlook:
    """How the bundles in force predicted each week before it happened; `calibration` is None before the first."""

    alarms: tuple[Alarm, ...]
    calibration: Calibration | None


def outlook(releases: Sequence[Release], leases: Sequence[Lease], bundles: Sequence[Bundle]) -> Outlook:
    """Alarms and calibration over all weeks that a bundle had been published for; `bundles` oldest first."""
    said = [one for one in bundles if one.hazards]
    if not said:
        return Outlook((), None)
    predictions, tables = [], []
    for place, made in enumerate(releases):
        in_force = _in_force(said, made)
        predicted = Model.of_bundle(in_force or said[0]).predict(made, releases[:place], leases)
        predictions.append(predicted if in_force else predicted.times(np.zeros((1, 1))))  # passed over
        if in_force:
            tables.append((predicted, _hazards(made, releases[:place])))
    if not tables:
        return Outlook((), None)
    raised = alarms(watched(releases, predictions))
    return Outlook(raised, calibrate([one for one, _ in tables], [table for _, table in tables]))


def _in_force(bundles: Sequence[Bundle], week: Release) -> Bundle | None:
    """The newest bundle that was there before the week, if tokens have not changed since."""
    before = [one for one in bundles if one.until_hour <= week.plan.start_hour and one.epoch == week.plan.epoch]
    return before[-1] if before else None


def _hazards(made: Release, before: Sequence[Release]) -> LifeTable:
    """Infrastructure failures of a week alone, by context level and band."""
    names = [marginal.name for marginal in made.plan.marginals]
    return week_tables(made, before)[names.index("hazard")].at("domain", Domain.INFRASTRUCTURE)
