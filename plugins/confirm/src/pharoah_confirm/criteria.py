"""Learns from many samples how fast healthy machines are, and judges a sample with a bounded false alarm rate.

Learning follows SuperBench (Xiong and others, USENIX ATC 2024): the sample most similar to the others is the centre,
dissimilar samples are dropped, and this repeats until none is dropped. Two changes: distance is relative (0.05 is 5% of
speed), and the cut depends on the spread of the samples. The verdict is a test:

  level       the median of a healthy machine's run is above `floor` with probability 1 - bound / 2: a prediction
              interval by Student's t over the logarithms of the learnt medians. `floor` is never above the median of
              the slowest healthy machine, nor above 95% of the usual rate.
  repeats     for a run with fewer than half the usual repeats, a sign test must also show that the median is below
              `floor`, at level bound / 2. Autocorrelated repeats count for less.

- Together they flag a healthy machine with probability at most `bound` (1 in 10,000) if levels are log-normal and
  repeats about autoregressive; up to 6 in 10,000 for levels with heavy tails (Laplace, Student's t with 5 degrees).
- A criterion from few samples has a low floor: then the verdict is UNKNOWN.

Not promised: a defect of more than half of the samples, and, if a machine is compared with its own earlier runs, one
that was always slow. docs/check.md has the details.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from crypto.errors import PharoahError
from federation.protocol.service_messages import CheckVerdict
from pharoah_confirm.sample import Rates, Sample
from tenant_client.doctor.advice.distributions import at_least_heads, t_below, t_quantile

BOUND = 1e-4
TOLERANCE = 0.05
LEAST_DROP, MOST_DROP = 0.05, 0.50
DROP_SIGMAS, DROP_TIMES = 5.0, 4.0
MOST_FREEDOM = 10
USEFUL = 4 / 3
CHANCE = 0.02
GRID = 128
_NORMAL = NormalDist()
_U = (np.arange(GRID) + 0.5) / GRID


class NoCriterion(PharoahError):
    """There are too few samples, or they differ too much."""

    default_hint = "measure at least six healthy machines of one kind, for ten seconds each"


@dataclass(frozen=True)
class Criterion:
    """The rates of healthy units in one benchmark on one kind of device.

    `units` is the number of units kept, `dropped` of those dropped; a run has about `repeats`; `centre` are quantiles
    of the centre's rates; `level` and `spread` are mean and standard deviation of the logarithms of the units' medians;
    `lowest` is the median of the slowest unit kept.
    """

    benchmark: str
    device: str
    unit: str
    units: int
    dropped: int
    repeats: int
    centre: tuple[float, ...]
    level: float
    spread: float
    lowest: float

    def __post_init__(self) -> None:
        if self.units < 2 or self.dropped < 0 or len(self.centre) != GRID:
            raise ValueError(f"a criterion has at least two units and {GRID} quantiles")
        if not (self.spread >= 0 and self.lowest > 0 and math.isfinite(self.level)):
            raise ValueError("spread must not be negative, rates must be positive")

    @property
    def usual(self) -> float:
        """The usual rate: the geometric mean of the units' medians."""
        return math.exp(self.level)

    @property
    def ordinary(self) -> float:
        """The rate below which a machine would be the slowest, and by more than the tolerance."""
        return min(self.lowest, (1 - TOLERANCE) * self.usual)

    def floor(self, bound: float = BOUND) -> float:
        """The level that a healthy machine's run falls below with probability `bound` / 2."""
        t = -t_quantile(self._freedom, bound / 2)
        return min(self.ordinary, math.exp(self.level - t * self._predicted))

    def p_value(self, rate: float) -> float:
        """The probability that a healthy machine's level is as low as `rate`."""
        return t_below(self._freedom, (math.log(rate) - self.level) / max(self._predicted, 1e-12))

    @property
    def _freedom(self) -> int:
        return min(self.units - 1, MOST_FREEDOM)

    @property
    def _predicted(self) -> float:
        """The standard deviation of a new unit about the mean of the learnt ones."""
        return self.spread * math.sqrt(1 + 1 / self.units)

    def finds(self, bound: float = BOUND) -> float:
        """The smallest slowdown factor that is detected."""
        return self.usual / self.floor(bound)


@dataclass(frozen=True)
class SampleJudgement:
    """The judgement of a sample. `shortfall` is 1 - median / usual with its 95% interval; `finds` as in Criterion."""

    verdict: CheckVerdict
    reason: str
    shortfall: float
    shortfall_low: float
    shortfall_high: float
    p_value: float
    finds: float


# ---- distances -----------------------------------------------------------------------------------------------------


def quantiles(values: Rates) -> Rates:
    """`GRID` quantiles, each of them one of the values: an empirical distribution function, read sideways."""
    return np.quantile(values, _U, method="inverted_cdf")


def published_distance(one: Rates, other: Rates) -> float:
    """SuperBench's: integral of |F - G| over that of max(F, G), on the common support."""
    top = max(one.max(), other.max())
    p, q = quantiles(one), quantiles(other)
    either = float(top - np.minimum(p, q).mean())
    return float(np.abs(p - q).mean()) / either if either > 0 else 0.0


def distance(one: Rates, other: Rates) -> float:
    """The same of 1 - F from rate 0 on: 0.05 where one is 5% slower throughout. Between 0 and 1.

    >>> round(distance(np.array([95.0]), np.array([100.0])), 3)
    0.05
    """
    p, q = quantiles(one), quantiles(other)
    return float(np.abs(p - q).mean() / np.maximum(p, q).mean())


def one_sided(node: Rates, reference: Rates) -> float:
    """The part of `distance` where the node is slower than the reference."""
    p, q = quantiles(node), quantiles(reference)
    return float(np.maximum(q - p, 0).mean() / np.maximum(p, q).mean())


# ---- learning ------------------------------------------------------------------------------------------------------


def learn(units: Mapping[str, Sequence[Sample]]) -> Criterion:
    """The criterion of units (machines, or runs), each with its samples of one benchmark on one kind of device.

    Raises NoCriterion where half of the units or more would have to be dropped, ValueError for a mixture of benchmarks.
    """
    kinds = {(one.benchmark, one.device, one.unit) for samples in units.values() for one in samples}
    if len(kinds) != 1:
        raise ValueError(f"samples of {len(kinds)} kinds cannot be compared")
    (kind,) = kinds
    curves = np.stack([np.mean([quantiles(one.values) for one in samples], axis=0) for samples in units.values()])
    levels = np.log([np.median([np.median(one.values) for one in samples]) for samples in units.values()])
    kept, centre = _similar(curves, levels)
    if len(kept) < 2 or 2 * len(kept) <= len(curves):
        raise NoCriterion(f"{len(kept)} of {len(curves)} samples of {kind[0]} are alike")
    own = levels[kept]
    return Criterion(
        *kind,
        units=len(kept),
        dropped=len(curves) - len(kept),
        repeats=int(np.median([len(one.values) for samples in units.values() for one in samples])),
        centre=tuple(curves[centre].tolist()),
        level=float(own.mean()),
        spread=float(own.std(ddof=1)),
        lowest=float(np.exp(own.min())),
    )


def _similar(curves: Rates, levels: Rates) -> tuple[list[int], int]:
    """Those that are similar to the centre, and the centre; both repeated until nothing is dropped.

    Similar is whose level is within five spreads of the centre's, and whose distribution is no further from it than
    four times what is usual: noise that all share makes distributions differ and says nothing against any.
    """
    apart = np.stack([np.abs(curves - one).mean(1) / np.maximum(curves, one).mean(1) for one in curves])
    kept = np.arange(len(curves))
    while True:
        centre = int(kept[np.argmin(apart[np.ix_(kept, kept)].mean(1))])
        sigma = float(np.median(np.abs(levels[kept] - np.median(levels[kept])))) / _NORMAL.inv_cdf(0.75)
        most = min(max(LEAST_DROP, DROP_SIGMAS * sigma), MOST_DROP)
        furthest = max(LEAST_DROP, DROP_TIMES * float(np.median(apart[kept, centre])))
        similar = (np.abs(levels - levels[centre]) <= most) & (apart[:, centre] <= furthest)
        remaining = kept[similar[kept]]
        if len(remaining) == len(kept):
            return kept.tolist(), centre
        kept = remaining


# ---- verdict -------------------------------------------------------------------------------------------------------


def judge(sample: Sample, criterion: Criterion, bound: float = BOUND) -> SampleJudgement:
    """The verdict on a run; ValueError where the criterion is that of another benchmark or device."""
    if (sample.benchmark, sample.device, sample.unit) != (criterion.benchmark, criterion.device, criterion.unit):
        raise ValueError("sample and criterion are of different kinds")
    median = float(np.median(sample.values))
    verdict, reason = _verdict(sample.values, median, criterion, bound)
    low, high = median_interval(sample.values)
    short, least, most = (1 - rate / criterion.usual for rate in (median, high, low))
    return SampleJudgement(verdict, reason, short, least, most, criterion.p_value(median), criterion.finds(bound))


def _verdict(values: Rates, median: float, criterion: Criterion, bound: float) -> tuple[CheckVerdict, str]:
    full = 2 * len(values) >= criterion.repeats
    for probability, verdict, reason in (
        (bound, CheckVerdict.MISMATCH, "slower than any healthy machine"),
        (CHANCE, CheckVerdict.WARNING, "slower than healthy machines, but not by enough to be sure"),
    ):
        floor = criterion.floor(probability)
        if median < floor and (full or sign_test(values, floor) <= probability / 2):
            return verdict, reason
    if criterion.finds(bound) > USEFUL:
        return CheckVerdict.UNKNOWN, f"the {criterion.units} samples to compare with are too few, or differ too much"
    if not full and 0.5 ** effective(values) > bound / 2:
        return CheckVerdict.UNKNOWN, "too few repeats: raise --seconds to that of the other runs"
    return CheckVerdict.OK, "as fast as healthy machines"


def sign_test(values: Rates, level: float, independent: float | None = None) -> float:
    """The probability of so many repeats below `level` if the median were there; for `independent` repeats."""
    number = effective(values) if independent is None else independent
    below = math.floor(float((values < level).mean()) * number)
    return at_least_heads(below, max(1, math.floor(number))) if below else 1.0


def effective(values: Rates) -> float:
    """How many independent repeats these are worth: n (1 - r) / (1 + r), r the correlation of ranks of neighbours.

    `r` is corrected for its bias in short series (Marriott and Pope, Biometrika 1954), and never taken below 0.
    """
    n = len(values)
    if n < 4:
        return 1.0
    ordered = np.sort(values)
    ranks = (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, "right")) / 2 - n / 2
    power = float((ranks**2).sum())
    r = float((ranks[1:] * ranks[:-1]).sum()) / power if power else 0.0
    r = min(max(0.0, r + (1 + 3 * r) / n), 0.99)
    return n * (1 - r) / (1 + r)


def median_interval(values: Rates, level: float = 0.95) -> tuple[float, float]:
    """Order statistics that hold the median with probability `level`, for as many repeats as are independent."""
    half = _NORMAL.inv_cdf((1 + level) / 2) / 2 / math.sqrt(max(1.0, effective(values)))
    low, high = np.quantile(values, [max(0.0, 0.5 - half), min(1.0, 0.5 + half)])
    return float(low), float(high)
