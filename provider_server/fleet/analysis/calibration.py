"""Whether predicted failures happen as often as they are predicted: in total, bin by bin, and as a slope.

Cells of held-out weeks are sorted by predicted risk (failures per node-hour) and cut into bins of equally many
predicted failures. Observed are released counts, so every interval holds the variance of the counts and of the noise.

`slope` is Cox's (1958): how observed log rates rise with predicted ones. One is perfect; below one the model is
overconfident (it spreads risks too far), above one too timid. The slope bends the rates of units,
r -> e^a m (r / m)^b around their mean m, and what counts of them under the cap is worked out anew; so neither the cap
nor exposure, which is known, is mistaken for foresight. It is fitted by quasi-scoring with the known variances.

Not promised: intervals are normal, which needs tens of failures a bin, or noise that dominates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from federation.protocol.life_table import Floats, LifeTable
from provider_server.fleet.analysis.intervals import NORMAL_95
from provider_server.fleet.analysis.prediction import Expected, Prediction, Rows
from provider_server.fleet.exposure import rows_of

BINS = 10
WIDTH = 0.05  # of the numerical derivatives
LARGEST_STEP, SETTLED, MOST_STEPS = 0.5, 1e-3, 30
STEEPEST = 5.0  # slopes beyond say no more


@dataclass(frozen=True, eq=False)
class Calibration:
    """Predicted and observed failures by bin of predicted risk, lowest first (K,), with 95% intervals of the truth.

    `ratio_total` is all observed over all predicted failures. `p` is that of the bins' misfit: small where predictions
    are off in any way.
    """

    predicted: Floats
    observed: Floats
    low: Floats
    high: Floats
    ratio_total: float
    ratio_low: float
    ratio_high: float
    slope: float
    slope_low: float
    slope_high: float
    p: float


def calibrate(predictions: Sequence[Prediction], tables: Sequence[LifeTable], bins: int = BINS) -> Calibration:
    """How the counts of `tables` compare with `predictions`, one for each: one marginal, in one week or in several.

    Tables must not count the same failures twice. ValueError where nothing is predicted.
    """
    cells = _Cells(predictions, tables)
    expected = cells.expected(0.0, 1.0)
    if not expected.mean.sum() > 0:
        raise ValueError("a model that predicts no failure at all cannot be calibrated")
    order = np.argsort(expected.mean / cells.node_hours, kind="stable")
    before = np.cumsum(expected.mean[order]) - expected.mean[order] / 2.0
    bin_of = np.empty(len(order), np.intp)
    bin_of[order] = np.minimum(before / expected.mean.sum() * bins, bins - 1).astype(np.intp)
    of_counts = (expected.mean, cells.seen, expected.variance, cells.noise_variance)
    sums = [np.bincount(bin_of, values, bins).astype(np.float64) for values in of_counts]
    predicted, observed, variance, noise = sums
    scatter = variance * np.maximum(observed / np.maximum(predicted, 1e-9), 1.0)
    reach = NORMAL_95 * np.sqrt(scatter + noise)
    misfit = (observed - predicted) ** 2 / np.maximum(variance + noise, 1e-9)
    total, ratio = predicted.sum(), observed.sum() / predicted.sum()
    wide = NORMAL_95 * np.sqrt(variance.sum() * max(ratio, 1.0 / total) + noise.sum()) / total
    slope, slope_sd = _slope(cells)
    return Calibration(
        predicted=predicted,
        observed=observed,
        low=np.maximum(observed - reach, 0.0),
        high=np.maximum(observed + reach, 0.0),
        ratio_total=float(ratio),
        ratio_low=float(max(ratio - wide, 0.0)),
        ratio_high=float(ratio + wide),
        slope=slope,
        slope_low=slope - NORMAL_95 * slope_sd,
        slope_high=slope + NORMAL_95 * slope_sd,
        p=float(chi2.sf(misfit.sum(), bins)),
    )


class _Cells:
    """The cells in which something ran, of all tables one after the other; arrays have shape (cells,)."""

    def __init__(self, predictions: Sequence[Prediction], tables: Sequence[LifeTable]) -> None:
        self._weeks: list[tuple[Prediction, LifeTable, Rows, NDArray[np.bool_]]] = []
        for prediction, table in zip(predictions, tables, strict=True):
            rows = rows_of(table, prediction.leases)
            self._weeks.append((prediction, table, rows, table.exposure_node_hours > 0))
        of_tables = ((table, ran) for _, table, _, ran in self._weeks)
        columns = [
            (table.events[ran], table.noise_variance[ran], table.exposure_node_hours[ran]) for table, ran in of_tables
        ]
        self.seen, self.noise_variance, self.node_hours = map(np.concatenate, zip(*columns, strict=True))
        failures, logs = (np.concatenate([of(one) for one in predictions]) for of in (_failures, _log_rates))
        self._middle = float(np.average(logs, weights=failures)) if failures.sum() > 0 else 0.0

    def expected(self, level: float, slope: float) -> Expected:
        """What counts where the log rate is the middle one, plus `level`, plus `slope` times the distance from it."""
        found = []
        for prediction, table, rows, ran in self._weeks:
            log_rate = np.log(np.maximum(prediction.rates, np.finfo(float).tiny))
            bent = prediction.times(np.exp(level + (slope - 1.0) * (log_rate - self._middle)))
            found.append([of[ran] for of in vars(bent.expected(table, rows)).values()])
        return Expected(*map(np.concatenate, zip(*found, strict=True)))


def _failures(prediction: Prediction) -> Floats:
    return prediction.failures.ravel()


def _log_rates(prediction: Prediction) -> Floats:
    return np.asarray(np.log(np.maximum(prediction.rates, np.finfo(float).tiny)).ravel(), np.float64)


def _slope(cells: _Cells) -> tuple[float, float]:
    """The slope and its standard deviation, level and slope being fitted together."""
    at, information = np.array([0.0, 1.0]), np.eye(2)
    for _ in range(MOST_STEPS):
        expected = cells.expected(*at)
        weight = 1.0 / np.maximum(expected.variance + cells.noise_variance, 1e-9)
        gradient = np.stack([_change(cells, at, step) for step in np.eye(2) * WIDTH]) / (2.0 * WIDTH)
        information = (gradient * weight) @ gradient.T + 1e-12 * np.eye(2)
        step = np.linalg.solve(information, gradient @ (weight * (cells.seen - expected.mean)))
        step = step * min(1.0, LARGEST_STEP / max(float(np.abs(step).max()), SETTLED))
        at = np.clip(at + step, -STEEPEST, STEEPEST)
        if np.abs(step).max() < SETTLED:
            break
    return float(at[1]), float(np.sqrt(np.linalg.inv(information)[1, 1]))


def _change(cells: _Cells, at: Floats, step: Floats) -> Floats:
    return cells.expected(*(at + step)).mean - cells.expected(*(at - step)).mean
