"""How well a model predicts a held-out week, and whether another model predicts it better.

A model says how often a job fails per node-hour: a rate by context level and age band, times the risk of its pair. From
the leases of the week follow the failures expected of each unit, from these what counts under the cap, cell by
cell, and from the released counts a log score: the log density of what was released. Its law is that of the true count
convolved with the noise, so that a cell that is mostly noise decides little. Log scores are strictly proper: the true
model has the best expectation (Gneiting & Raftery, JASA 2007).

Two models are compared by the paired differences of their cells' scores. Cells of a table are taken as independent.
Tables are not, for they count the same failures, under noise of their own: the errors of two tables are taken to agree
as far as any of their cells is not noise, which is more than they do.

Guarantee, up to the normal approximation of a sum over many cells: of two models that are equally good in expectation,
the gate refuses one in at most 2.3% of cases. Passing does not prove a model better: one that is worse by less than two
standard errors passes, which is a wide margin where noise dominates.

Not promised: predictions that integrate over a rate's posterior; they use its median.

    >>> import numpy as np
    >>> seen, noise = np.array([3.0, 9.0]), np.zeros(2)
    >>> float(log_score(seen, noise, Expected(np.array([3.0, 9.0]), np.array([3.0, 9.0]))).sum().round(2))
    -3.52
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, pdtrc

from federation.protocol.life_table import Floats, LifeTable
from federation.protocol.round_messages import finest_row
from provider_server.fleet.exposure import OF_FAILURE, Slices, rows_of
from provider_server.fleet.leases import Lease

Places = NDArray[np.intp]
Rows = tuple[Places, NDArray[np.bool_], tuple[int, ...]]

FAINTEST = 1e-3  # failures expected of a cell at least: a model that excludes what happens is wrong, not infinitely so
PLAIN_SHARE = 0.02  # of Poisson in the law of a capped count: what the cap excludes, only nearly so
MOST_COUNTS = 200.0  # expected of a cell: beyond, its count is taken as normal
TAIL_SD = 9.0  # as far as a count's law is summed
LAWS_AT_ONCE = 2**20  # terms of such sums that are held in memory
TWO_STANDARD_ERRORS = 2.0


@dataclass(frozen=True, eq=False)
class Expected:
    """Failures that a model expects to be counted in each cell of a table, and their variance without noise."""

    mean: Floats
    variance: Floats


@dataclass(frozen=True, eq=False)
class Prediction:
    """A model's prediction for the J units of a release.

    `node_hours` and `rates` (infrastructure failures per node-hour) have shape (J, bands); `leases` are the units'.
    A unit counts at most `most` failures.
    """

    leases: tuple[Lease, ...]
    node_hours: Floats
    rates: Floats
    most: int

    @cached_property
    def failures(self) -> Floats:
        """Failures expected of each unit by age band, before the cap, (J, bands)."""
        return np.asarray(self.rates * self.node_hours, np.float64)

    @cached_property
    def shares(self) -> Floats:
        """Of each unit's failures, by age band (J, bands)."""
        total = np.maximum(self.failures.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        return np.asarray(self.failures / total, np.float64)

    @cached_property
    def counted(self) -> Expected:
        """Failures of each unit (J,) that count: min(N, F) with N Poisson."""
        expected = self.failures.sum(axis=1)
        tails = [np.asarray(pdtrc(k, expected), np.float64) for k in range(self.most)]
        mean = np.sum(tails, axis=0)
        squares = np.sum([(2 * k + 1) * tail for k, tail in enumerate(tails)], axis=0)
        return Expected(mean, squares - mean**2)

    def expected(self, table: LifeTable, rows: Rows | None = None) -> Expected:
        """What is counted in each cell of a table over dimensions of the lease and perhaps the band.

        Which of a unit's failures counts is a fair draw, so its counts are thinned by the share of the cell. `rows`
        are `rows_of(table, leases)`, for whoever asks often.
        """
        row, known, lengths = rows or rows_of(table, self.leases)
        shares = self.shares if "band" in table.names else np.ones((len(self.leases), 1))
        own = self.counted.mean[:, None]
        thinned = own * shares + (self.counted.variance[:, None] - own) * shares**2
        found = []
        for values in (own * shares, thinned):
            sums = [np.bincount(row[known], column, int(np.prod(lengths))) for column in values[known].T]
            found.append(_placed(table, lengths, np.stack(sums, axis=1).astype(np.float64)))
        return Expected(*found)

    def along(self, table: LifeTable, dimension: str) -> Expected:
        """What is counted in all cells of each level of one dimension of the lease: (levels,)."""
        row, known, lengths = rows_of(table, self.leases)
        of_lease = [name for name in table.names if name not in ("band", *OF_FAILURE)]
        level = np.unravel_index(row[known], lengths)[of_lease.index(dimension)]
        levels = len(table.levels(dimension))
        both = (np.bincount(level, of[known], levels) for of in (self.counted.mean, self.counted.variance))
        return Expected(*(np.asarray(sums, np.float64) for sums in both))

    def times(self, factor: Floats) -> "Prediction":
        """The same with rates multiplied by `factor`, which is broadcast to (J, bands)."""
        return replace(self, rates=self.rates * factor)

    def flat(self) -> "Prediction":
        """The same failures a node-hour, but at one rate everywhere: what is known without a model."""
        rate = self.failures.sum() / max(self.node_hours.sum(), np.finfo(float).tiny)
        return replace(self, rates=np.full(self.rates.shape, rate))


def _placed(table: LifeTable, lengths: tuple[int, ...], values: Floats) -> Floats:
    """Values (rows, bands) as cells of the table, whose dimensions of the lease keep their order."""
    if "band" not in table.names:
        return values.reshape(lengths)
    return np.moveaxis(values.reshape(*lengths, values.shape[1]), -1, table.axis("band"))


def predict(
    rates: Mapping[tuple[str, str], float],
    risks: Mapping[tuple[str, str], float],
    slices: Slices,
    most: int,
    mix: Mapping[str, float],
) -> Prediction:
    """What is expected of the units `slices`, each of which counts at most `most` failures.

    `rates` are failures per node-hour by (context level, band), `risks` factors by (workload row, context), one where
    there is none; `mix` says by context level which mean risk is in its rates already (`mean_risk`; one where it is
    left out). A level without rates has the mean rate of the others. ValueError for no rates at all.
    """
    if not rates:
        raise ValueError("a prediction needs the rate of at least one context level")
    bands = [str(band) for band in range(slices.node_hours.shape[1])]
    levels = list(dict.fromkeys(level for level, _ in rates))
    known = np.array([[rates.get((level, band), np.nan) for band in bands] for level in levels])
    everywhere = np.array([np.nanmean(column) if np.isfinite(column).any() else np.nan for column in known.T])
    everywhere = np.where(np.isfinite(everywhere), everywhere, np.nanmean(known))
    known = np.where(np.isfinite(known), known, everywhere) / np.array([[mix.get(level, 1.0)] for level in levels])
    place = {level: at for at, level in enumerate(levels)}
    row = [place.get(lease.labels.get("context_level", ""), -1) for lease in slices.leases]
    per_job = np.vstack([known, everywhere])[row] if row else np.empty((0, len(bands)))
    return Prediction(slices.leases, slices.node_hours, per_job * _risks(risks, slices.leases)[:, None], most)


def mean_risk(risks: Mapping[tuple[str, str], float], weeks: Iterable[Slices]) -> dict[str, float]:
    """By context level the mean risk, by node-hours, of what ran there."""
    hours: dict[str, float] = {}
    risky: dict[str, float] = {}
    for slices in weeks:
        exposure = slices.node_hours.sum(axis=1)
        for lease, own, factor in zip(slices.leases, exposure, _risks(risks, slices.leases), strict=True):
            level = lease.labels.get("context_level", "")
            hours[level] = hours.get(level, 0.0) + float(own)
            risky[level] = risky.get(level, 0.0) + float(own * factor)
    return {level: risky[level] / total for level, total in hours.items() if total > 0}


def _risks(risks: Mapping[tuple[str, str], float], leases: Sequence[Lease]) -> Floats:
    rows = {workload for workload, _ in risks}
    pairs = [(finest_row(lease.labels, rows), lease.labels.get("context", "")) for lease in leases]
    return np.array([risks.get(pair, 1.0) for pair in pairs], np.float64)


# ---- scores ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scores:
    """Log scores of the cells of each table (cells,), larger is better; cells in which nothing ran are left out.

    `real` says of each table which share of a cell's variance is that of the failures and not noise, at most.
    """

    cells: tuple[Floats, ...]
    real: tuple[float, ...]


def score(weeks: Sequence[Prediction], tables: Sequence[LifeTable]) -> Scores:
    """Scores of a model that predicts each of the `weeks` whose failures `tables` count together.

    Tables are of infrastructure failures, each over dimensions of the lease and perhaps the band.
    """
    cells, real = [], []
    for table in tables:
        ran, parts = table.exposure_node_hours > 0, [week.expected(table) for week in weeks]
        mean, variance = (sum((getattr(part, name)[ran] for part in parts), start=0.0) for name in ("mean", "variance"))
        noise = table.noise_variance[ran]
        cells.append(log_score(table.events[ran], noise, Expected(np.asarray(mean), np.asarray(variance))))
        real.append(float(np.max(variance / np.maximum(variance + noise, FAINTEST**2), initial=0.0)))
    return Scores(tuple(cells), tuple(real))


def log_score(seen: Floats, noise_variance: Floats, expected: Expected) -> Floats:
    """Log density (where there is noise) or log probability of the counts `seen`; all arrays have shape (cells,)."""
    mean = np.maximum(expected.mean, FAINTEST)
    variance = np.clip(expected.variance, FAINTEST**2, mean)
    total = variance + noise_variance
    scores = -0.5 * (np.log(2.0 * np.pi * total) + (seen - mean) ** 2 / total)
    few = np.flatnonzero(mean <= MOST_COUNTS)
    most = int(np.ceil(np.max(mean[few] + TAIL_SD * np.sqrt(mean[few]), initial=0.0))) + 10
    exact = noise_variance[few] == 0.0
    most = max(most, int(np.max(seen[few][exact], initial=0.0)))
    for part in np.array_split(few, 1 + len(few) * most // LAWS_AT_ONCE):
        law = _log_law(mean[part], variance[part], most)
        scores[part] = _released(seen[part], noise_variance[part], law)
    return np.asarray(scores, np.float64)


def _released(seen: Floats, noise_variance: Floats, law: Floats) -> Floats:
    """Log density of each count, whose law without noise is a row of `law`."""
    true, exact = np.arange(law.shape[1]), noise_variance == 0.0
    spread = np.where(exact, 1.0, noise_variance)[:, None]
    log_noise = -0.5 * (np.log(2.0 * np.pi * spread) + (seen[:, None] - true) ** 2 / spread)
    place = np.clip(np.round(seen), 0, law.shape[1] - 1).astype(np.intp)
    exactly = law[np.arange(len(law)), place]
    return np.where(exact, exactly, logsumexp(law + log_noise, axis=1))


def _log_law(mean: Floats, variance: Floats, most: int) -> Floats:
    """Log probability of 0 to `most` failures, (cells, most + 1): binomial by mean and variance, and a little Poisson.

    Of capped units a count varies less than a Poisson one. A binomial law, of as many trials as its variance asks
    for, holds that; but few trials exclude what is only rare.
    """
    count, mean = np.arange(most + 1.0), mean[:, None]
    poisson = count * np.log(mean) - mean - gammaln(count + 1.0)
    chance = np.clip(1.0 - variance[:, None] / mean, 1e-6, 1.0 - 1e-6)
    trials = mean / chance
    left = np.maximum(trials - count, 0.0)
    binomial = gammaln(trials + 1.0) - gammaln(count + 1.0) - gammaln(left + 1.0)
    binomial = binomial + count * np.log(chance) + (trials - count) * np.log1p(-chance)
    binomial = np.where(count <= trials, binomial, -np.inf)
    binomial = binomial - logsumexp(binomial, axis=1, keepdims=True)
    return np.asarray(np.logaddexp(np.log1p(-PLAIN_SHARE) + binomial, np.log(PLAIN_SHARE) + poisson), np.float64)


# ---- the gate --------------------------------------------------------------------------------------------------------


class PredictionVerdict(StrEnum):
    """A candidate compared with the model in force; better and worse are by more than two standard errors."""

    BETTER = "better"
    NO_WORSE = "no worse"
    WORSE = "worse"


@dataclass(frozen=True)
class Comparison:
    """By how much a candidate's log score per cell exceeds that of the model in force, on the same `cells` cells."""

    difference: float
    standard_error: float
    cells: int

    @property
    def verdict(self) -> PredictionVerdict:
        """The verdict on the difference, given its standard error."""
        if self.difference < -TWO_STANDARD_ERRORS * self.standard_error:
            return PredictionVerdict.WORSE
        return (
            PredictionVerdict.BETTER
            if self.difference > TWO_STANDARD_ERRORS * self.standard_error
            else PredictionVerdict.NO_WORSE
        )


def compare(candidate: Scores, incumbent: Scores) -> Comparison:
    """The mean paired difference of two models' scores of the same tables.

    ValueError where the two do not score the same cells.
    """
    if [one.shape for one in candidate.cells] != [one.shape for one in incumbent.cells]:
        raise ValueError("two models are compared on the same cells: score both with the same tables")
    differences = [one - other for one, other in zip(candidate.cells, incumbent.cells, strict=True)]
    cells = sum(len(table) for table in differences)
    errors = np.array([np.sqrt(((table - table.mean()) ** 2).sum()) if len(table) else 0.0 for table in differences])
    real = np.sqrt(np.minimum(np.maximum(candidate.real, incumbent.real), 1.0))
    agreement = np.outer(real, real)
    np.fill_diagonal(agreement, 1.0)
    total = float(sum(table.sum() for table in differences))
    return Comparison(total / max(cells, 1), float(np.sqrt(errors @ agreement @ errors)) / max(cells, 1), cells)


def is_no_worse(comparison: Comparison) -> bool:
    """The gate: whether a candidate may be published; not if it is worse by more than two standard errors."""
    return comparison.verdict is not PredictionVerdict.WORSE
