"""Rows of `buildup.toml` from injected faults: which signal moves, how early and how far, by fault and job.

    traces ─ by_job ─▶ Group × jobs ─ fit ─▶ Fitted × metrics: half-life, unit, their intervals, what moved it

A score is that of `analysis.buildup`: the injured node beside the peers of all traces of its job, window by window.
The unit of a half-life is the least at which healthy nodes reach level 1 no oftener than `FALSE_PER_MONTH`, shared by
all metrics, and no less than makes the least that was ever counted worth level 1. The half-life is that which then
warns longest, over the traces that it is fitted to; the shortest where nothing moves the metric, whose row then rests
on healthy nodes alone. Intervals are of resampled traces.

A window stands for an hour. What a counter counts in it is scaled to one, so that a unit is of an hour's counts.

Not promised: that seconds behave as hours do. Only ratios to peers are the same then; a real fleet's own figures go
before these (`nodes recipe` tells what each metric is worth there).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.random import Generator
from scipy.signal import lfilter

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.buildup import CALM_H, CAP, UP, Signal
from provider_server.fleet.analysis.injected import INJURED, PEER, Label, Trace
from provider_server.fleet.telemetry.catalogue import METRICS, Kind
from provider_server.fleet.telemetry.samples import HOUR_S

HALF_LIVES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 72.0, 168.0)
UNITS = np.exp2(np.arange(-14.0, 40.0, 0.5))
FALSE_PER_MONTH, MONTH = 1.0, 720
LEAST_LEAD = 2.0
LINK = "net_"  # faults between nodes, of which a peer shows as much as the injured one


@dataclass(frozen=True, eq=False)
class Group:
    """Traces of one job: `values` by metric, shape (windows, traces, 2), nan after a job failed; and their labels."""

    labels: tuple[Label, ...]
    values: Mapping[str, Floats]

    @property
    def onset(self) -> int:
        """The first window of faults."""
        return self.labels[0].healthy

    @property
    def has_peers(self) -> Floats:
        """Which traces' peers are healthy throughout (traces,)."""
        return np.array([not label.kind.startswith(LINK) for label in self.labels])

    def take(self, which: Sequence[int]) -> "Group":
        """Some of the traces, perhaps several times."""
        index = list(which)
        return Group(
            tuple(self.labels[one] for one in index), {name: all_[:, index] for name, all_ in self.values.items()}
        )


def by_job(traces: Iterable[Trace]) -> list[Group]:
    """Groups of traces with the same job, windows and metrics."""

    def key(trace: Trace) -> tuple[str, int, int, tuple[str, ...]]:
        return trace.label.job, trace.label.healthy, trace.label.faulty, tuple(sorted(trace.values))

    return [_group(list(some)) for _, some in groupby(sorted(traces, key=key), key=key)]


def _group(traces: Sequence[Trace]) -> Group:
    label = traces[0].label
    values = {name: np.full((label.healthy + label.faulty, len(traces), 2), np.nan) for name in traces[0].values}
    for number, trace in enumerate(traces):
        for name, found in trace.values.items():
            values[name][: trace.windows, number] = found * _per_hour(name, label.window_s)
    return Group(tuple(trace.label for trace in traces), values)


def _per_hour(metric: str, window_s: float) -> float:
    return HOUR_S / window_s if METRICS[metric].kind is Kind.COUNTER else 1.0


# ---- scores ----------------------------------------------------------------------------------------------------------


def scores(group: Group, metric: str, half_life: float, unit: float) -> Floats:
    """Of both nodes of each trace, shape (windows, traces, 2), as `BuildUp` has them among these peers."""
    return _scored(_totals(group, metric, half_life), group.has_peers, unit, _counts(metric))


def _counts(metric: str) -> bool:
    return METRICS[metric].kind is Kind.COUNTER


def _totals(group: Group, metric: str, half_life: float) -> Floats:
    kept, values = float(np.exp2(-1.0 / half_life)), group.values[metric]
    if not _counts(metric):
        values = (1.0 - kept) * (values - _middle(values[:, group.has_peers, PEER]))
    return np.asarray(lfilter([1.0], [1.0, -kept], values, axis=0), np.float64)


def _scored(totals: Floats, has_peers: Floats, unit: float, counts: bool) -> Floats:  # noqa: FBT001 - internal
    x = np.log2(1.0 + totals / unit) if counts else totals / unit
    peers = x[:, has_peers, PEER]
    typical = _middle(peers)
    spread = np.maximum(1.0, 1.4826 * _middle(np.abs(peers - typical[..., 0])))
    return np.asarray(np.minimum((x - typical) / spread, CAP), np.float64)


def _middle(peers: Floats) -> Floats:
    middle = np.median(peers, axis=1)
    return np.asarray((np.nanmedian(peers, axis=1) if np.isnan(middle).any() else middle)[:, None, None], np.float64)


def healthy(found: Floats, group: Group) -> list[Floats]:
    """The scores of nodes without a fault, a series each: injured ones before it, and peers that do not share it."""
    before, peers = found[: group.onset, :, INJURED].T, found[:, group.has_peers, PEER].T
    return [series[np.isfinite(series)] for series in (*before, *peers)]


def false_per_month(series: Sequence[Floats], threshold: float) -> float:
    """How often a healthy node's score reaches a threshold, and again each `CALM_H` while it stays, per node-month."""
    alarms = 0.0
    for one in series:
        above = np.concatenate([[False], one >= threshold])
        alarms += float((above[1:] & ~above[:-1]).sum()) + float(above.sum() // CALM_H)
    return MONTH * alarms / max(sum(map(len, series)), 1)


def leads(found: Floats, group: Group, threshold: float) -> Floats:
    """Windows from the first score of an injured node that reaches a threshold to the end of its fault (traces,)."""
    faulty = found[group.onset :, :, INJURED]
    reached = faulty >= threshold
    first = np.where(reached.any(axis=0), reached.argmax(axis=0), np.isfinite(faulty).sum(axis=0))
    return np.asarray(np.isfinite(faulty).sum(axis=0) - first, np.float64)


# ---- fits ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """Under a fault a metric warns so many windows before its end, and reaches such a score; means over doses."""

    job: str
    kind: str
    lead: float
    score: float


@dataclass(frozen=True)
class Fitted:
    """A row: each number with its interval of 95% over resampled traces; and what moved it, the longest lead first."""

    metric: str
    half_life_h: float
    half_life_range_h: tuple[float, float]
    unit: float
    unit_range: tuple[float, float]
    moved: tuple[Moved, ...]


def fit(groups: Sequence[Group], rng: Generator, draws: int = 40) -> list[Fitted]:
    """Rows of all metrics."""
    metrics = sorted({name for group in groups for name in group.values})
    budget = FALSE_PER_MONTH / len(metrics)
    found = []
    for metric in metrics:
        own = [group for group in groups if metric in group.values]
        half_life, unit = _best(own, metric, budget)
        moved = _moved(own, metric, half_life, unit)
        again = [_best([_resampled(group, rng) for group in own], metric, budget) for _ in range(draws)]
        lives, units = (np.percentile(column, [2.5, 97.5]).tolist() for column in zip(*again, strict=True))
        found.append(Fitted(metric, half_life, tuple(lives), unit, tuple(units), moved))
    return found


def _resampled(group: Group, rng: Generator) -> Group:
    return group.take(rng.integers(0, len(group.labels), len(group.labels)).tolist())


def _best(groups: Sequence[Group], metric: str, budget: float) -> tuple[float, float]:
    """The half-life that warns longest, the shortest of those alike, and its unit."""
    tried = [(half_life, *_least_unit(groups, metric, half_life, budget)) for half_life in HALF_LIVES]
    half_life, unit, _ = max(tried, key=lambda one: one[2])
    return half_life, unit


def _least_unit(groups: Sequence[Group], metric: str, half_life: float, budget: float) -> tuple[float, float]:
    """The least unit at which healthy nodes keep to the budget, and the mean lead with it."""
    totals = [(_totals(group, metric, half_life), group) for group in groups]

    def at(unit: float) -> list[tuple[Floats, Group]]:
        return [(_scored(total, group.has_peers, unit, _counts(metric)), group) for total, group in totals]

    one = min(_least_counted(group, metric) for group in groups) if _counts(metric) else 0.0
    floor = bisect_left(UNITS, one / (2.0 ** UP[0] - 1.0), hi=len(UNITS) - 1)
    enough = bisect_left(UNITS, 1, floor, len(UNITS) - 1, key=lambda unit: _false(at(unit)) <= budget)
    unit = float(UNITS[enough])
    return unit, float(np.mean(np.concatenate([leads(found, group, UP[0]) for found, group in at(unit)])))


def _least_counted(group: Group, metric: str) -> float:
    """One, an hour, where nothing less was ever counted."""
    values = group.values[metric]
    return float(np.min(values[values > 0.0], initial=_per_hour(metric, group.labels[0].window_s)))


def _false(found: Sequence[tuple[Floats, Group]]) -> float:
    return false_per_month([series for one, group in found for series in healthy(one, group)], UP[0])


def _moved(groups: Sequence[Group], metric: str, half_life: float, unit: float) -> tuple[Moved, ...]:
    rows = []
    for group in groups:
        found = scores(group, metric, half_life, unit)
        lead, end = leads(found, group, UP[0]), np.nanmax(found[group.onset :, :, INJURED], axis=0)
        for kind in sorted({label.kind for label in group.labels}):
            own = np.array([label.kind == kind for label in group.labels])
            rows.append(Moved(group.labels[0].job, kind, float(lead[own].mean()), float(end[own].mean())))
    return tuple(sorted((row for row in rows if row.lead >= LEAST_LEAD), key=lambda row: -row.lead))


# ---- tables ----------------------------------------------------------------------------------------------------------


def node_scores(group: Group, table: Sequence[Signal]) -> Floats:
    """The highest score of each node by the rows of a table (windows, traces, 2); 0 where no row says anything."""
    rows = [scores(group, one.metric, one.half_life_h, one.unit) for one in table if one.metric in group.values]
    whole = next(iter(group.values.values()))
    return np.asarray(np.maximum.reduce([np.where(np.isfinite(whole), 0.0, np.nan), *rows]), np.float64)


def threshold_of(tables: Iterable[tuple[Floats, Group]], budget: float = FALSE_PER_MONTH) -> float:
    """The least score that healthy nodes reach no more often than the budget."""
    series = [one for found, group in tables for one in healthy(found, group)]
    tried = np.arange(0.05, CAP + 1.0, 0.05).tolist()
    return float(next(at for at in tried if false_per_month(series, at) <= budget))


Metrics = Mapping[str, tuple[str, ...]]


def telling(rows: Sequence[Fitted]) -> Metrics:
    """By job, the metrics that some fault moved, the longest lead first."""
    best = sorted(((one, row.metric) for row in rows for one in row.moved), key=lambda pair: -pair[0].lead)
    jobs = sorted({one.job for one, _ in best})
    return {job: tuple(dict.fromkeys(metric for one, metric in best if one.job == job)) for job in jobs}
