"""Whether failures have come to differ from what was predicted: alarms at a known rate of false ones.

For each thing that is watched (a context, a workload row, the total) the windows' counts less their predictions have,
while nothing changes, mean zero and a known covariance: that of the counts, of the noise, and of a lasting error of the
prediction. Its Cholesky factor is lower triangular, hence turns the windows into independent standard normal
innovations, each known in its window; their skewness is taken out as for a gamma law (Wilson & Hilferty 1931). "From
window k on there are r times as many" moves them in a known direction, so its likelihood ratio is a martingale of mean
one. The statistic of Shiryaev and Roberts is the sum over all k so far, here of the mean over
`RATIOS`, two-sided: an e-detector (Shin, Ramdas & Rinaldo 2023). Many are judged together by the Benjamini-Hochberg
rule for e-values at level 1 / W: an alarm is raised where the k-th largest of n is at least W n / k (Dandapanthula &
Ramdas 2025).

Guaranteed, while nothing changes and as far as the innovations are normal: for one thing, W windows on average or more
until a false alarm; for n things, however dependent, until the first one among all. After a change the share of false
alarms, over the windows that they took, is at most 1 / W. After an alarm its statistic begins anew.

Not promised: quiet where the hazard itself fluctuates from window to window beyond Poisson; what a prediction may
lastingly be off is `log_sd`, and there is no other allowance. The interval of an alarm's ratio does not know that it
was chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from federation.protocol.life_table import Floats
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.analysis.intervals import NORMAL_95

RATIOS = np.array([0.25, 0.5, 0.7, 0.85, 1.2, 1.5, 2.0, 4.0])
WEEKS_BETWEEN = 104.0  # from one false alarm to the next, on average, where windows are short
FEWEST_BETWEEN = 20.0  # windows from one to the next, however long they are: the share of false alarms is their inverse
LEAST_RATIO = 0.05  # by which variances are multiplied at least: no failure at all is not certainly none
LEAST_BASE = 0.05  # of a gamma law's cube root: beyond its support, as good as at its edge


@dataclass(frozen=True, eq=False)
class Watched:
    """Windows of one thing, oldest first: when each began, its counts, what was predicted, and how that varies.

    `variance` (windows,) is that of the counts without noise, `noise_variance` (windows,) that of their noise;
    `log_sd` says by how much the logarithm of all predictions together may be off. Windows without prediction are
    passed over.
    """

    what: str
    hours: tuple[int, ...]
    counted: Floats
    predicted: Floats
    variance: Floats
    noise_variance: Floats
    log_sd: float = 0.0


@dataclass(frozen=True)
class Alarm:
    """From `since_hour` on there were `ratio` times as many failures as predicted (95% interval from `low` to `high`).

    `raised_hour` is the start of the window that showed it. `p` bounds the chance that this window's statistic would be
    as large without any change.
    """

    what: str
    raised_hour: int
    since_hour: int
    ratio: float
    low: float
    high: float
    p: float

    @property
    def text(self) -> str:
        """One sentence for a person."""
        direction = "more" if self.ratio > 1.0 else "fewer"
        return (
            f"{self.what}: {direction} failures than predicted since hour {self.since_hour}, {self.ratio:.2f} times as "
            f"many (95% interval {self.low:.2f} to {self.high:.2f}; p at most {self.p:.1g})"
        )


def windows_between(window_hours: float) -> float:
    """How many windows of this length lie between false alarms on average, or more.

    >>> windows_between(HOURS_PER_WEEK), windows_between(13 * HOURS_PER_WEEK)
    (104.0, 20.0)
    """
    return max(FEWEST_BETWEEN, WEEKS_BETWEEN * HOURS_PER_WEEK / window_hours)


def alarms(things: Sequence[Watched], windows_between: float) -> tuple[Alarm, ...]:
    """All alarms so far, oldest first; things have the same windows. The newest window's have its `raised_hour`."""
    detectors = [_Detector.of(thing) for thing in things]
    raised: list[Alarm] = []
    for window in range(len(things[0].hours) if things else 0):
        values = np.array([detector.after(window) for detector in detectors])
        for place in _rejected(values, windows_between):
            raised.append(detectors[place].alarm(window))
            detectors[place].restart(window + 1)
    return tuple(raised)


def _rejected(values: Floats, windows_between: float) -> list[int]:
    """Positions of those to alarm for, largest first: Benjamini-Hochberg for e-values."""
    order = np.argsort(-values, kind="stable")
    enough = values[order] >= windows_between * len(values) / np.arange(1, len(values) + 1)
    return [int(place) for place in order[: int(np.max(np.flatnonzero(enough), initial=-1)) + 1]]


class _Detector:
    """The statistic of one thing, window by window; `begun` is the first window whose change it looks for."""

    def __init__(self, thing: Watched, log_ratios: Floats) -> None:
        self._thing, self._log_ratios, self._begun = thing, log_ratios, 0

    @classmethod
    def of(cls, thing: Watched) -> "_Detector":
        innovations, moved = _whitened(thing)
        begins = np.where(thing.predicted > 0, 0.0, -np.inf)  # no change begins in a window that could not show it
        return cls(thing, _log_likelihood_ratios(innovations, moved) + begins)

    def after(self, window: int) -> float:
        """The statistic when `window` is over."""
        return float(np.exp(np.minimum(self._log_ratios[window, self._begun : window + 1], 600.0)).sum())

    def restart(self, window: int) -> None:
        self._begun = window

    def alarm(self, window: int) -> Alarm:
        """What an alarm of `window` says: the likeliest window of the change, and the ratio since."""
        first = self._begun + int(np.argmax(self._log_ratios[window, self._begun : window + 1]))
        value, waited = self.after(window), window + 1 - self._begun
        ratio, low, high = _ratio(self._thing, first, window)
        hours = self._thing.hours
        return Alarm(self._thing.what, hours[window], hours[first], ratio, low, high, min(1.0, waited / value))


def _covariance(thing: Watched, factor: Floats | float = 1.0) -> Floats:
    """Of the windows' counts, where failures are `factor` (windows,) times as many as predicted."""
    own = np.where(thing.predicted > 0, thing.variance * factor, 1.0)  # one where there is nothing to vary
    lasting = thing.log_sd**2 * np.outer(thing.predicted, thing.predicted)
    return np.asarray(np.diag(own + thing.noise_variance) + lasting, np.float64)


def _whitened(thing: Watched) -> tuple[Floats, Floats]:
    """Innovations (windows,), and how twice the failures from window k (columns) on would move them."""
    factor = np.linalg.cholesky(_covariance(thing))
    known = thing.predicted > 0
    later = np.tril(np.ones((len(known), len(known)))) * (thing.predicted * known)[:, None]
    both = np.linalg.solve(factor, np.column_stack([(thing.counted - thing.predicted) * known, later]))
    shape = np.divide(thing.variance, thing.predicted, out=np.zeros(len(known)), where=known)
    skewness = thing.variance * (2.0 * shape - 1.0) / np.diag(factor) ** 3  # of a binomial law, as a cap makes it
    return _unskewed(both[:, 0], skewness * known), both[:, 1:]


def _unskewed(values: Floats, skewness: Floats) -> Floats:
    """Normal scores of standardised values of a gamma law with that skewness."""
    bent = np.where(np.abs(skewness) < 1e-6, 1e-6, skewness)
    base = np.maximum(1.0 + bent * values / 2.0, LEAST_BASE)
    return np.asarray(6.0 / bent * (np.cbrt(base) - 1.0) + bent / 6.0, np.float64)


def _log_likelihood_ratios(innovations: Floats, moved: Floats) -> Floats:
    """Log of the mean over ratios of the likelihood ratio, by last window (rows) and first window of the change."""
    gain = np.cumsum(moved * innovations[:, None], axis=0)
    cost = np.cumsum(moved**2, axis=0) / 2.0
    steps = RATIOS[:, None, None] - 1.0
    return np.asarray(np.logaddexp.reduce(steps * gain - steps**2 * cost, axis=0) - np.log(len(RATIOS)), np.float64)


def _ratio(thing: Watched, first: int, last: int) -> tuple[float, float, float]:
    """How many times as many failures as predicted there were in the windows `first` to `last`, with a 95% interval.

    Generalised least squares over all windows so far: those before tell what noise and prediction were off by.
    """
    till = slice(0, last + 1)
    changed = (np.arange(last + 1) >= first).astype(np.float64)
    moved, missed = changed * thing.predicted[till], (thing.counted - thing.predicted)[till]
    ratio, sd = 1.0, 0.0
    for _ in range(3):  # the variance of the counts is that of the ratio that was found
        factor = np.where(np.arange(len(thing.hours)) >= first, max(ratio, LEAST_RATIO), 1.0)
        weight = np.linalg.solve(_covariance(thing, factor)[till, till], moved)
        ratio, sd = 1.0 + float(weight @ missed) / float(weight @ moved), float(weight @ moved) ** -0.5
    reach = NORMAL_95 * sd
    return max(ratio, 0.0), max(ratio - reach, 0.0), max(ratio + reach, 0.0)
