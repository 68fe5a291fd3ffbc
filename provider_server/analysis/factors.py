"""What else failures depend on, from the same releases: the size of a job, and the season. No further budget is spent.

A second stage over a model's predictions. Each unit's predicted failures are multiplied by factors of its row (each
level along the dimensions of a released table), of its size band and of its week; from that follows what is counted in
each cell of the weeks' tables, under the cap. The factors' logarithms have normal priors, those of weeks as a random
walk besides, and are found by penalised quasi-scoring, whose variance is that of the counts and of the noise.

Size is released nowhere. It acts only through which sizes ran in which row in which week, which the provider knows:
ecological inference (King 1997), which rests on the assumption that a size band has the same factor in every row and
week. Rows have factors of their own, for the first stage has explained by them whatever sizes did on average; what is
left to size is how the mix differs and changes, and intervals are as wide as that little is. Where nothing tells, they
are those of the prior. Under the cap, large jobs count once whatever their hazard, and tell least.

Ratios are of the hazard, to the average of all failures that were predicted. Weeks of the same season (ISO weeks of
several years, say) are one level.

Not promised: a cause. Large jobs may be of other users, and a season may be a firmware that came and went.
"""

import operator
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats, LifeTable
from provider_server.analysis.intervals import NORMAL_95
from provider_server.analysis.prediction import Prediction
from provider_server.fleet.exposure import rows_of

Places = NDArray[np.intp]

SIZES = ("1", "2-3", "4-7", "8-15", "16+")  # nodes of a lease, by doubling
SMALLEST = (1, 2, 4, 8, 16)
LEVEL_SD, ROW_SD, SIZE_SD, WEEK_SD = 5.0, 0.5, 1.0, 0.5  # of log factors: of everything, of each row, size and week
WALK_SD = 0.2  # of the step from week to week
BEND = 0.05  # of the log hazard, to see by how much what counts moves
LARGEST_STEP, SETTLED, MOST_STEPS = 0.5, 1e-3, 40


@dataclass(frozen=True)
class Factor:
    """By what `ratio` a level of a dimension ("size", "week") multiplies the average hazard, with its 95% interval."""

    dimension: str
    level: str
    ratio: float
    low: float
    high: float


def size_band(nodes: int) -> str:
    """The band of `SIZES` that a lease of so many nodes belongs to."""
    return SIZES[bisect_right(SMALLEST, max(nodes, 1)) - 1]


def find_factors(
    predictions: Sequence[Prediction],
    tables: Sequence[LifeTable],
    seasons: Sequence[str] = (),
) -> tuple[Factor, ...]:
    """Factors of size and week from the weeks' `tables`, all of one marginal, and what was predicted for each.

    `seasons` names each week's level, in the order of the walk where they first appear; left out, weeks are numbered.
    """
    seen = _Seen(predictions, tables, list(seasons) or [str(week) for week in range(len(tables))])
    at = np.zeros(len(seen.precision))
    spread: Floats = np.eye(len(at))
    for _ in range(MOST_STEPS):
        score, information = seen.linearised(at)
        spread = np.asarray(np.linalg.inv(information + seen.precision), np.float64)
        step = spread @ (score - seen.precision @ at)
        at = at + step * min(1.0, LARGEST_STEP / max(float(np.abs(step).max()), SETTLED))
        if np.abs(step).max() < SETTLED:
            break
    return (*_ratios("size", SIZES, seen, at, spread), *_ratios("week", seen.seasons, seen, at, spread))


def _ratios(name: str, levels: Sequence[str], seen: "_Seen", at: Floats, spread: Floats) -> list[Factor]:
    """Each level over the average of what is predicted."""
    places, share = seen.places(name), seen.share(name)
    contrast = np.eye(len(levels)) - share
    middle = contrast @ at[places]
    reach = NORMAL_95 * np.sqrt(np.diag(contrast @ spread[places, places] @ contrast.T))
    columns = np.exp(np.stack([middle, middle - reach, middle + reach], axis=1)).tolist()
    return [Factor(name, level, *column) for level, column in zip(levels, columns, strict=True)]


@dataclass(frozen=True, eq=False)
class _Week:
    """The units (J,) of a week that have a row, their places along its dimensions (dimensions, J), and sizes."""

    prediction: Prediction
    rows: Places
    size: Places

    @classmethod
    def of(cls, prediction: Prediction, table: LifeTable, total: LifeTable) -> "_Week":
        row, known, lengths = rows_of(table, prediction.leases)
        names, places = [name for name in table.names if name != "band"], np.unravel_index(row[known], lengths)
        every = [{level: at for at, level in enumerate(total.levels(name))} for name in names]
        moved = [np.array([own[level] for level in table.levels(name)]) for own, name in zip(every, names, strict=True)]
        own = tuple(lease for lease, has in zip(prediction.leases, known, strict=True) if has)
        kept = Prediction(own, prediction.node_hours[known], prediction.rates[known], prediction.most)
        rows = np.stack([to[of] for to, of in zip(moved, places, strict=True)])
        return cls(kept, rows, np.array([SIZES.index(size_band(lease.nodes)) for lease in own], np.intp))


class _Seen:
    """What was counted in C cells in T weeks, and what the factors make of what was predicted.

    Parameters are log factors: of everything, of the levels of each dimension of the lease, of sizes, of seasons.
    """

    def __init__(
        self,
        predictions: Sequence[Prediction],
        tables: Sequence[LifeTable],
        seasons: Sequence[str],
    ) -> None:
        total = reduce(operator.add, tables)
        wide = [table.aligned(total.dimensions) for table in tables]
        self.seasons = tuple(dict.fromkeys(seasons))
        self._of_season = np.array([[name == season for name in self.seasons] for season in seasons], np.float64)
        self._season = self._of_season.argmax(axis=1)
        self._names = [name for name in total.names if name != "band"]
        self._lengths = [len(total.levels(name)) for name in self._names]
        self._bands = len(total.levels("band")) if "band" in total.names else 1
        self._weeks = [_Week.of(one, table, total) for one, table in zip(predictions, tables, strict=True)]
        self._counts = np.stack([self._flat(table, table.events) for table in wide], axis=1)
        self._noise = np.stack([self._flat(table, table.noise_variance) for table in wide], axis=1)

    def _flat(self, table: LifeTable, values: Floats) -> Floats:
        """Cells with the band as the last axis, flat."""
        return (np.moveaxis(values, table.axis("band"), -1) if "band" in table.names else values).reshape(-1)

    @cached_property
    def _ends(self) -> list[int]:
        return [int(end) for end in np.cumsum([1, *self._lengths, len(SIZES), len(self.seasons)])]

    def places(self, name: str) -> slice:
        """Where the parameters of sizes or of weeks are."""
        return slice(*(self._ends[-3:-1] if name == "size" else self._ends[-2:]))

    def share(self, name: str) -> Floats:
        """Of the failures that are predicted, by level."""
        sums = np.zeros(len(SIZES) if name == "size" else len(self.seasons))
        for week, season in zip(self._weeks, self._season, strict=True):
            level = week.size if name == "size" else np.full(len(week.size), season)
            sums += np.bincount(level, week.prediction.failures.sum(axis=1), len(sums))
        return np.asarray(sums / sums.sum(), np.float64)

    @cached_property
    def precision(self) -> Floats:
        """Of the prior."""
        step = np.diff(np.eye(len(self.seasons)), axis=0) / WALK_SD
        many = (1, sum(self._lengths), len(SIZES), len(self.seasons))
        whole = np.diag(np.repeat([LEVEL_SD, ROW_SD, SIZE_SD, WEEK_SD], many) ** -2.0)
        whole[self.places("week"), self.places("week")] += step.T @ step
        return whole

    def _moments(self, at: Floats) -> tuple[Floats, Floats, Floats]:
        """Mean and variance of the counts, (C, T), and how the mean moves with sizes' log factors, (C, T, sizes)."""
        cells = self._counts.shape[0]
        mean, variance = np.zeros((len(self._weeks), cells)), np.zeros((len(self._weeks), cells))
        moved = np.zeros((len(self._weeks), cells, len(SIZES)))
        for number, week in enumerate(self._weeks):
            log_factor = at[0] + at[self.places("size")][week.size] + at[self.places("week")][self._season[number]]
            for begin, row in zip(self._ends, week.rows, strict=False):
                log_factor = log_factor + at[begin + row]
            low, now, high = (week.prediction.times(np.exp(log_factor + by)[:, None]) for by in (-BEND, 0.0, BEND))
            shares = now.shares if self._bands > 1 else np.ones((len(week.size), 1))
            row = np.ravel_multi_index(tuple(week.rows), self._lengths)
            cell = row[:, None] * self._bands + np.arange(self._bands)
            counted, varied = now.counted.mean[:, None], now.counted.variance[:, None]
            np.add.at(mean[number], cell, counted * shares)
            np.add.at(variance[number], cell, counted * shares + (varied - counted) * shares**2)
            slope = (high.counted.mean - low.counted.mean)[:, None] / (2.0 * BEND)
            np.add.at(moved[number], (cell, week.size[:, None]), slope * shares)
        return mean.T, variance.T, np.moveaxis(moved, 0, 1)

    def linearised(self, at: Floats) -> tuple[Floats, Floats]:
        """The score and the information of all parameters, without the prior."""
        mean, variance, moved = self._moments(at)
        known = np.flatnonzero(mean.sum(axis=1) > 0)
        mean, variance, moved = mean[known], variance[known], moved[known]
        own = self._noise[known] + np.where(mean > 0, np.maximum(variance, 1e-9), 1.0)
        whole = moved.sum(axis=2, keepdims=True)
        design = np.concatenate([whole, moved, whole * self._of_season], axis=2)  # of a cell: its row, sizes, seasons
        missed = np.where(mean > 0, self._counts[known] - mean, 0.0)
        weighted = design / own[:, :, None]
        score = np.einsum("ctq,ct->cq", weighted, missed)
        information = np.einsum("ctq,ctr->cqr", weighted, design)
        rows = self._row_columns(known)
        across = rows.T @ information[:, 0, 1:]
        return np.concatenate([rows.T @ score[:, 0], score[:, 1:].sum(axis=0)]), np.block(
            [[(rows.T * information[:, 0, 0]) @ rows, across], [across.T, information[:, 1:, 1:].sum(axis=0)]]
        )

    def _row_columns(self, cells: Places) -> Floats:
        """Which of the parameters of everything and of rows each cell has (cells, parameters), one or zero."""
        columns = np.zeros((len(cells), self._ends[-3]))
        columns[:, 0] = 1.0
        for begin, place in zip(self._ends, np.unravel_index(cells // self._bands, self._lengths), strict=False):
            columns[np.arange(len(cells)), begin + place] = 1.0
        return columns
