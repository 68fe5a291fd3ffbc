"""What each metric of `buildup.toml` is worth: levels without it, failures that it alone foretold, a fit without it.

    scores by metric ─ Scores.levels(some metrics) ─▶ levels ─┬─ Evidence.beyond ─▶ failures where only more was raised
    hours at risk, failures ──────────────────────────────────┴─ judge ─▶ held-out likelihood, concordance, caught

A score is kept as the number of thresholds (`DOWN`, `UP`) that it reached, which is all that latches look at: levels of
any choice of metrics come out as `BuildUp` would make them from these metrics alone. What one choice has *beyond*
another are the node-hours at risk at which its level is the higher one: failures there against the number to expect at
the lower level, by cause. `choose` leaves out one metric after the other while what all levels had beyond what is left
stays small, and never one that has a cause to itself.

Guarantees. Levels are those of the hour before, as in `fleet_events`. A metric that is not asked for is no silence: it
neither raises a level nor holds one up.

Not promised: worth of a metric in what never happened in these hours. Where failures are few, little is left out: an
upper bound of 3 failures is above any small share of 100.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, poisson

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.buildup import CALM_H, DOWN, LEVELS, UP
from provider_server.fleet.analysis.fleet_events import fit_levels

Bools = NDArray[np.bool_]
Bytes = NDArray[np.int8]
Ints = NDArray[np.intp]

CHANCE = 0.05  # of one cause among all with so many failures where nothing is foretold: below, the metric stays
FLAGGED = 0.05  # of node-hours at risk, those with the highest hazard
THRESHOLDS = np.sort(np.array([*DOWN, *UP]))


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of M metrics over T hours of N nodes: thresholds reached (M, T, N), and hours with a silent stream."""

    metrics: tuple[str, ...]
    reached: NDArray[np.uint8]
    stale: Bools

    @cached_property
    def _lively(self) -> Ints:
        """Nodes that any metric raised; the others stay at level 0."""
        return np.flatnonzero((self.reached >= 2).any(axis=(0, 1)))

    def levels(self, metrics: Iterable[str]) -> Bytes:
        """The level (T, N) that these metrics alone give."""
        rows = [self.metrics.index(metric) for metric in metrics]
        levels = np.zeros(self.reached.shape[1:], np.int8)
        if not rows or not len(self._lively):
            return levels
        reached = self.reached[rows][:, :, self._lively].max(axis=0)
        fresh: Bools = np.asarray(~self.stale[rows][:, :, self._lively].any(axis=0), np.bool_)
        places = np.arange(1, LEVELS)[:, None]
        quiet = np.full((LEVELS - 1, len(self._lively)), CALM_H)
        for hour in range(len(levels)):
            closed = np.where(reached[hour] >= 2 * places - 1, 0, quiet + fresh[hour])
            kept = np.where(quiet >= CALM_H, CALM_H, closed)
            quiet = np.where(reached[hour] >= 2 * places, 0, kept)
            levels[hour, self._lively] = (quiet < CALM_H).sum(axis=0)
        return levels


def thresholds_reached(scores: Floats) -> NDArray[np.uint8]:
    """How many thresholds each score reached; 0 for one that is not known."""
    reached = np.searchsorted(THRESHOLDS, np.nan_to_num(scores, nan=-np.inf), side="right")
    return reached.astype(np.uint8)


@dataclass(frozen=True)
class Beyond:
    """Node-hours, failures in them and the number to expect, of all causes; `telling`: one cause has too many."""

    node_hours: int
    failures: int
    expected: float
    telling: bool

    @property
    def excess_high(self) -> float:
        """Upper 95% bound of the failures that are more than chance."""
        return float(chi2.ppf(0.95, 2 * (self.failures + 1)) / 2) - self.expected


@dataclass(frozen=True, eq=False)
class Evidence:
    """Scores, and for each hour and node (T, N): whether it is at risk, and the number of its failure's cause, or -1.

    `context` (N,) numbers the contexts from 0. An hour's level is that of the hour before: hour 0 is never at risk.
    """

    scores: Scores
    at_risk: Bools
    cause: NDArray[np.int16]
    context: Ints

    def __post_init__(self) -> None:
        if self.at_risk[0].any() or (~self.at_risk & (self.cause >= 0)).any():
            raise ValueError("the first hour, and failures that are not at risk, have no level before them")

    @property
    def failures(self) -> int:
        """Failures at risk, of all causes."""
        return int((self.cause >= 0).sum())

    def before(self, metrics: Iterable[str]) -> Bytes:
        """The level of the hour before (T, N), by these metrics alone."""
        levels = self.scores.levels(metrics)
        return np.concatenate([np.zeros_like(levels[:1]), levels[:-1]])

    def between(self, begin: int, end: int) -> "Evidence":
        """The same with these hours alone at risk; levels still come from all hours before."""
        inside: Bools = np.zeros((len(self.at_risk), 1), np.bool_)
        inside[begin:end] = True
        return Evidence(self.scores, self.at_risk & inside, np.where(inside, self.cause, np.int16(-1)), self.context)

    def beyond(self, more: Bytes, less: Bytes, within: Bools | None = None) -> Beyond:
        """What levels have where they are above others; what to expect there is learnt where both are the same.

        `within` (N,) counts some nodes only.
        """
        causes = int(self.cause.max(initial=-1)) + 1
        above = self.at_risk & (more > less)
        same = self.at_risk & (more <= less)
        rates = _rates(*self._counts(less, same, causes))
        hours, failures = self._counts(less, above if within is None else above & within, causes)
        expected = np.einsum("cl,kl->k", self._context_effects(less, same, rates)[:, None] * hours, rates)
        seen = failures.sum(axis=(1, 2))
        chances = poisson.sf(seen - 1, np.maximum(expected, 1e-12))
        telling = bool(((seen > 0) & (chances * causes < CHANCE)).any())
        return Beyond(int(hours.sum()), int(seen.sum()), float(expected.sum()), telling)

    def table(self, levels: Bytes) -> LifeTable:
        """Node-hours and failures over (context, level), with a third dimension of one band."""
        hours, failures = self._counts(levels, self.at_risk, int(self.cause.max(initial=-1)) + 1)
        names = [str(number) for number in range(hours.shape[0])]
        dimensions = (
            Dimension("context", tuple(names)),
            Dimension("level", tuple(map(str, range(LEVELS)))),
            Dimension("band", ("all",)),
        )
        arrays = (failures.sum(axis=0), hours, (hours > 0).astype(np.float64), np.zeros_like(hours))
        return LifeTable(dimensions, *(array[:, :, None] for array in arrays))

    def by_node(self, levels: Bytes) -> tuple[Floats, Floats]:
        """Hours at risk and failures (N, LEVELS)."""
        found = [
            np.stack([(mask & (levels == level)).sum(axis=0) for level in range(LEVELS)], axis=1)
            for mask in (self.at_risk, self.cause >= 0)
        ]
        return found[0].astype(np.float64), found[1].astype(np.float64)

    def _counts(self, levels: Bytes, mask: Bools, causes: int) -> tuple[Floats, Floats]:
        """Hours (contexts, LEVELS) and failures (causes, contexts, LEVELS) where the mask is set."""
        contexts = int(self.context.max(initial=0)) + 1
        hour, node = np.nonzero(mask)
        cell = self.context[node] * LEVELS + levels[hour, node]
        hours = np.bincount(cell, minlength=contexts * LEVELS).reshape(contexts, LEVELS)
        cause = self.cause[hour, node]
        failed = cause >= 0
        at = cause[failed].astype(np.intp) * contexts * LEVELS + cell[failed]
        failures = np.bincount(at, minlength=causes * contexts * LEVELS).reshape(causes, contexts, LEVELS)
        return hours.astype(np.float64), failures.astype(np.float64)

    def _context_effects(self, levels: Bytes, mask: Bools, rates: Floats) -> Floats:
        """Ratio of each context to the fleet (contexts,), drawn to 1 by one failure."""
        hours, failures = self._counts(levels, mask, len(rates))
        return np.asarray(
            (failures.sum(axis=(0, 2)) + 1.0) / ((hours * rates.sum(axis=0)).sum(axis=1) + 1.0), np.float64
        )


def _rates(hours: Floats, failures: Floats) -> Floats:
    """Rates (causes, LEVELS) of each level over all contexts, drawn to the mean of all levels by one failure."""
    by_level, by_cause = hours.sum(axis=0), failures.sum(axis=1)
    total = max(float(by_cause.sum()), 1.0)
    weight = hours.sum() / total
    mean = by_cause.sum(axis=1, keepdims=True) / max(hours.sum(), 1.0)
    return np.asarray((by_cause + weight * mean) / np.maximum(by_level + weight, 1e-12), np.float64)


# ---- the choice ------------------------------------------------------------------------------------------------------


def choose(
    evidence: Evidence, samples: Mapping[str, float], tolerance: float, kept: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Metrics that may be left out, in that order; `kept` never are.

    Left out is what costs least: while all levels together have at most `tolerance` of the failures beyond what is left
    (upper 95% bound), and unless a metric has more failures of some cause to itself than chance gives. Of equals, the
    one with most `samples` goes first.
    """
    everything = evidence.before(evidence.scores.metrics)
    out: list[str] = []
    while True:
        left = [metric for metric in evidence.scores.metrics if metric not in out]
        now = evidence.before(left)
        found = []
        for metric in left:
            if metric not in kept:
                less = evidence.before([one for one in left if one != metric])
                lost = evidence.beyond(everything, less)
                if lost.excess_high <= tolerance * evidence.failures and not evidence.beyond(now, less).telling:
                    found.append((round(lost.excess_high, 6), -samples.get(metric, 0.0), metric))
        if not found:
            return tuple(out)
        out.append(min(found)[2])


# ---- the judgement ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """Of hours that the fit has not seen: log-likelihood per failure, concordance, share of failures caught."""

    log_likelihood: float
    concordance: float
    caught: float


@dataclass(frozen=True, eq=False)
class Fitted:
    """Rates (contexts, LEVELS) from earlier hours, and hours and failures (N, contexts · LEVELS) of later ones."""

    rates: Floats
    hours: Floats
    failures: Floats

    @classmethod
    def of(cls, fitted: Evidence, judged: Evidence, metrics: Sequence[str]) -> "Fitted":
        """Fits the hazard by context and level, as `nodes hazard` does, on the levels of these metrics."""
        levels = fitted.before(metrics)
        rates = fit_levels(fitted.table(levels)).rates.value
        hours, failures = judged.by_node(levels)
        place = judged.context[:, None] * LEVELS + np.arange(LEVELS)
        wide = [np.zeros((len(hours), rates.size)) for _ in range(2)]
        for array, values in zip(wide, (hours, failures), strict=True):
            np.put_along_axis(array, place, values, axis=1)
        return cls(rates.ravel(), *wide)

    def judge(self, weights: Floats | None = None) -> Judged:
        """All nodes, or each as often as `weights` (N,) say; not a number where nothing failed."""
        weights = np.ones(len(self.hours)) if weights is None else weights
        hours, failures = weights @ self.hours, weights @ self.failures
        total, failed = float(hours.sum()), float(failures.sum())
        if not failed:
            return Judged(np.nan, np.nan, np.nan)
        likelihood = float(failures @ np.log(self.rates) - hours @ self.rates) / failed
        rates, group = np.unique(self.rates, return_inverse=True)
        at, lost = (np.bincount(group, values, len(rates)) for values in (hours, failures))
        below = np.cumsum(at) - at
        concordance = float(lost @ (below + at / 2)) / (failed * total)
        above = total - below - at
        taken = np.clip((FLAGGED * total - above) / np.maximum(at, 1e-12), 0.0, 1.0)
        return Judged(likelihood, concordance, float(lost @ taken) / failed)


@dataclass(frozen=True)
class Change:
    """A difference, with a 95% interval by resampling nodes."""

    value: float
    low: float
    high: float


def changes(before: Fitted, after: Fitted, rng: np.random.Generator, draws: int = 400) -> tuple[Change, Change, Change]:
    """What another fit has more, of the three figures of `Judged`; the same nodes are drawn for both."""
    nodes = len(before.hours)
    drawn = [np.bincount(rng.integers(0, nodes, nodes), minlength=nodes).astype(np.float64) for _ in range(draws)]
    found = np.array([_difference(before, after, weights) for weights in drawn])
    low, high = np.nanquantile(found, [0.025, 0.975], axis=0)
    values = _difference(before, after, None)
    first, second, third = (Change(*map(float, parts)) for parts in zip(values, low, high, strict=True))
    return first, second, third


def _difference(before: Fitted, after: Fitted, weights: Floats | None) -> tuple[float, float, float]:
    old, new = before.judge(weights), after.judge(weights)
    return (
        new.log_likelihood - old.log_likelihood,
        new.concordance - old.concordance,
        new.caught - old.caught,
    )
