"""Which node gets which test when, so that a small share of node-hours finds most defects before they fail a job.

    failure rates, hours since the last tests, cost of a miss ─ worth ─▶ worth of each test of each node per minute
    budget ─ price ─▶ what a minute must be worth ─ plan ─▶ visits

The model. Defects arise on a node at its rate of failures, lie hidden for a mean time L (`LEAD_H`), then fail a job. A
test finds a share of a node's defects. D hours after a test there is one to be found with probability
rate · share · L · (1 − exp(−D/L)). Tests at equal distances D are worth most, at a price p of a minute, where
rate · share · cost · L · g(D/L) = p · minutes, with g(x) = 1 − (1 + x) exp(−x): for D well below L this is hazard times
the square of the time since the last test times the cost of a miss. That is a test's worth, the index of Whittle for
this problem. The price is the lowest at which nodes, if they stay as they are, cost no more than the budget; so it
follows what the fleet is like, and is worked out anew for each plan.

Guarantees. A plan costs at most the budget of its hours and what `saved_minutes` adds. No node that is surely busy is
visited. A node is visited at most once in a plan, with the test that is worth most. Pure; equal input gives an equal
plan.

Not promised: that it is optimal, since nodes change, and tests find some defects alike (its distance from a plan that
knows the true hazards is in docs/measured.md). That a defect can be found before it fails a job at all.

Source: Whittle, Journal of Applied Probability 25A, 1988 (restless bandits); Cora (probes under a budget).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from federation.protocol.life_table import Floats

LEAD_H = 24.0
SAVED_H = 168.0  # within which a budget that was saved is to be spent
MINUTES_PER_H = 60.0


@dataclass(frozen=True)
class Probe:
    """A test, and the minutes of one node that it takes, start and a second run in case of doubt included."""

    name: str
    minutes: float

    def __post_init__(self) -> None:
        if self.minutes <= 0:
            raise ValueError(f"test {self.name}: minutes must be positive")


@dataclass(frozen=True, eq=False)
class ProbeState:
    """N nodes for the next H hours.

    `rate` (N, H) failures per node-hour, `share` (N, T) what each test finds of a node's defects, `since_h` (N, T)
    hours since it ran (inf: never), `cost` (N,) of a miss in any unit, `idle` (N, H) the chance that no job is there.
    """

    rate: Floats
    share: Floats
    since_h: Floats
    cost: Floats
    idle: Floats

    def __post_init__(self) -> None:
        nodes, hours = self.rate.shape
        if self.idle.shape != (nodes, hours) or self.cost.shape != (nodes,):
            raise ValueError("rates, costs and idle hours are of the same nodes and hours")
        if self.share.shape != self.since_h.shape or len(self.share) != nodes:
            raise ValueError("shares and hours since a test are of the same nodes and tests")


@dataclass(frozen=True)
class Visit:
    """A test of a node at an hour of the plan (0 is now). `worth` is what a minute of it is worth, over the price."""

    node: int
    hour: int
    test: int
    minutes: float
    worth: float


def worth(rate: Floats, since_h: Floats, share: Floats, cost: Floats, lead_h: float = LEAD_H) -> Floats:
    """The index of a test, in units of cost; shapes are broadcast."""
    x = np.minimum(since_h / lead_h, 700.0)
    found: Floats = rate * share * cost * lead_h * (1.0 - (1.0 + x) * np.exp(-x))
    return found


_X = np.concatenate([[0.0], np.geomspace(1e-4, 60.0, 600)])
_G = 1.0 - (1.0 + _X) * np.exp(-_X)


def price(most: Floats, minutes: Floats, minutes_per_h: float, lead_h: float = LEAD_H) -> float:
    """The lowest worth of a minute at which tests take no more than so many minutes each hour.

    `most` (N, T) is what a minute of each test is worth at best, long after the last one; `minutes` (T,) what it takes.
    """

    def taken(at: float) -> float:
        part = np.minimum(at / np.maximum(most, 1e-300), 1.0)
        distance_h = lead_h * np.interp(part, _G, _X)
        return float((minutes / np.maximum(distance_h, 1e-3))[part < 1.0].sum())

    low, high = np.log(float(most.max(initial=0.0)) * np.array([1e-12, 1.0]) + 1e-300)
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if taken(float(np.exp(middle))) > minutes_per_h else (low, middle)
    return float(np.exp(high))


def plan(
    state: ProbeState, probes: Sequence[Probe], budget: float, saved_minutes: float = 0.0, lead_h: float = LEAD_H
) -> list[Visit]:
    """Visits in the next hours, most urgent first.

    `budget` is the share of node-hours for tests, `saved_minutes` what was left of it so far. A test is put into the
    hour in which its worth times the chance to find the node idle is highest.
    """
    nodes, hours = state.rate.shape
    an_hour = budget * nodes * MINUTES_PER_H
    minutes = np.array([probe.minutes for probe in probes])
    most = (state.rate.mean(axis=1) * state.cost * lead_h)[:, None] * state.share / minutes
    wanted = price(most, minutes, an_hour + max(saved_minutes, 0.0) / SAVED_H, lead_h)
    since = state.since_h[:, None, :] + np.arange(hours)[None, :, None]
    each = worth(state.rate[:, :, None], since, state.share[:, None, :], state.cost[:, None, None], lead_h) / minutes
    likely = (each * state.idle[:, :, None]).reshape(nodes, -1)  # hours and tests of a node in a row
    best = likely.argmax(axis=1)
    over = likely[np.arange(nodes), best] / wanted
    left, visits = an_hour * hours + saved_minutes, []
    for node in np.argsort(-over, kind="stable").tolist():
        hour, test = divmod(int(best[node]), len(probes))
        if over[node] < 1.0:
            break
        if minutes[test] <= left:
            left -= float(minutes[test])
            visits.append(Visit(node, hour, test, float(minutes[test]), float(over[node])))
    return visits
