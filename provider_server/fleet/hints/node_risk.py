"""How likely each of the provider's nodes fails in the next hour, day and week: for its scheduler.

    nodes.json, repairs, histories, bend ─ risks ─▶ a NodeRisk for each node, the riskiest first
                                                     └─▶ rows, commands of Slurm, labels (plug-in), metrics, tests, page

A node's hazard is the failure rate of its context, or the fleet's, or before there is any that of other fleets; times
what its last repair stands for over the next hours (`analysis.node_risk`), or its wear where that is more: levels 1, 2
and 3 count 2, 4 and 8 times; times what its own failures say. Probabilities are bent as the fleet's own past asks for.
A node that is down fails once it is back, which takes as long as the outages that lasted as long. It names no tenant.

For placement the riskiest share of nodes is for short jobs; a node that sends nothing is taken for the riskiest.
Buckets say how a node stands among the others: raised from `RAISED` times the middle node's hazard of a day, high from
`HIGH` times, and at least at the probabilities beside them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict

import msgspec
import numpy as np

from federation.protocol.known_rates import experience
from federation.protocol.life_table import PER_NODE_HOURS, Floats
from provider_server.fleet.analysis.node_risk import HORIZONS, TINY, probability, usual_failures
from provider_server.fleet.analysis.placement import Places, choose
from provider_server.fleet.analysis.probation import Probation
from provider_server.fleet.hints.node_reports import NodeReport, NodeStanding
from provider_server.fleet.learning import hardware, node_offsets, on_probation, risk_history
from provider_server.fleet.learning.node_offsets import History
from provider_server.fleet.learning.on_probation import LEVEL_RATIOS, OnProbation
from provider_server.fleet.learning.risk_history import Learnt, RiskHistory

SHARE = 0.2  # of nodes for short jobs, where nobody says another
DAY = HORIZONS.index(24)
Bucket = Literal["low", "raised", "high"]
BUCKETS: tuple[Bucket, ...] = ("low", "raised", "high")
RAISED, HIGH = (3.0, 0.01), (10.0, 0.05)  # times the middle node's hazard of a day, and a probability
NEVER = History(0.0, 0.0)


@dataclass(frozen=True)
class NodeRisk:
    """A node: probabilities by horizon, its hazard over the next day, how many times the usual that is, and why."""

    node: str
    probabilities: tuple[float, ...]
    failures_per_1000_node_hours: float
    times_usual: float
    is_heard: bool
    reason: str
    bucket: Bucket = "low"
    jobs: Literal["long", "short"] = "long"


class RiskRow(TypedDict):
    """A node and a horizon; bucket, jobs and reason are the node's."""

    node: str
    hours: int
    probability: float
    bucket: Bucket
    jobs: Literal["long", "short"]
    reason: str


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known of nodes at an hour beside their newest reports.

    `until_h` is the hour of the histories, `learnt_from` the failures that the model was learnt from, 0 for other
    fleets'.
    """

    at_h: float
    model: Probation
    variance: float
    histories: Mapping[str, History]
    probation: OnProbation
    history: RiskHistory
    until_h: float
    learnt_from: int

    @classmethod
    def of_home(cls, home: Path, at_h: float) -> "Facts":
        """What a home knows; without outages of its own, the rate of other fleets. DecodeError for damage."""
        probation, kept, history = on_probation.load(home), hardware.load(home), risk_history.load(home)
        offsets, repairs = node_offsets.load(home), hardware.load_repairs(home)
        model, is_own = probation.model, (home / on_probation.STATE).exists()
        if not is_own:
            model = msgspec.structs.replace(model, rate_per_node_hour=experience().rate, failures=0)
        context_of = kept.contexts.of if kept else lambda node: None
        histories = offsets.histories(context_of, repairs, at_h)
        variance = offsets.frailty_variance if offsets.nodes else model.frailty_variance
        return cls(at_h, model, variance, histories, probation, history, offsets.until_h, model.failures)

    @classmethod
    def of_outages(cls, learnt: Learnt) -> "Facts":
        """What a list of outages says, as of its end."""
        model, own = learnt.model, learnt.offsets
        told, at_h = OnProbation(model, {}), own.until_h
        return cls(at_h, model, model.frailty_variance, own.nodes, told, learnt.history, at_h, model.failures)

    def back_h(self, node: str, *, is_heard: bool) -> float | None:
        """When a node came back last; None where it never went down, or is down."""
        own = self.histories.get(node, NEVER)
        told = [float(hour) for hour in self.probation.back_h.get(node, ()) if hour <= self.at_h]
        told += [own.back_h] if own.back_h is not None else []
        told += [self.until_h] if own.down_h is not None and is_heard else []
        return max(told, default=None)


def risks(reports: Sequence[NodeReport], facts: Facts, share: float = SHARE) -> list[NodeRisk]:
    """All nodes, the riskiest first; `share` of them, rounded down, are for short jobs."""
    known = [one.failures_per_1000_node_hours for one in reports if one.failures_per_1000_node_hours is not None]
    usual = float(np.mean(known)) / PER_NODE_HOURS if any(known) else facts.model.rate_per_node_hour
    rates = np.array([(one.failures_per_1000_node_hours or 0.0) / PER_NODE_HOURS or usual for one in reports])
    chances = np.stack([_chances(reports, facts, rates, float(hours)) for hours in HORIZONS])
    hazard = -np.log1p(-chances[DAY]) / HORIZONS[DAY]
    middle = float(np.median(hazard)) if len(reports) else 0.0
    typical = _hazard_of_usual(facts, usual)
    found = [
        NodeRisk(
            one.node,
            tuple(chances[:, place].tolist()),
            float(hazard[place]) * PER_NODE_HOURS,
            float(hazard[place]) / typical,
            one.is_heard,
            _reason(one, facts),
            _bucket(float(chances[DAY, place]), float(hazard[place]), middle),
        )
        for place, one in enumerate(reports)
    ]
    worst = choose(np.where([one.is_heard for one in reports], hazard, np.inf), len(found), is_long=False).tolist()
    short = set(worst[: int(share * len(found))])
    return [replace(found[place], jobs="short") if place in short else found[place] for place in worst]


def _chances(reports: Sequence[NodeReport], facts: Facts, rates: Floats, hours: float) -> Floats:
    """The probability of each node within these hours (N,), bent."""
    back = [facts.back_h(one.node, is_heard=one.is_heard) for one in reports]
    since = np.array([np.nan if hour is None else facts.at_h - hour for hour in back], np.float64)
    least = np.array([LEVEL_RATIOS[one.level - 1] if one.level else 0.0 for one in reports])
    own = [facts.histories.get(one.node, NEVER) for one in reports]
    failures, expected = (np.array([getattr(one, name) for one in own]) for name in ("failures", "expected"))
    scale = rates / facts.model.rate_per_node_hour

    def told(at: Places, since_h: Floats, within_h: Floats | float) -> Floats:
        ahead = usual_failures(facts.model, since_h, within_h, least[at]) * scale[at]
        chance = probability(ahead, failures[at], expected[at], facts.variance)
        return facts.history.bend.of(chance, np.maximum(within_h, TINY))

    chances = told(np.arange(len(own)), since, hours)
    for place, (one, report, hour) in enumerate(zip(own, reports, back, strict=True)):
        if one.down_h is not None and hour is None and not report.is_heard:
            left = _left(facts.history.lasted_h, facts.at_h - one.down_h, hours)
            chances[place] = told(np.full(len(left), place), np.zeros(len(left)), left).mean() if len(left) else 0.0
    return chances


def _left(lasted_h: Sequence[float], down_h: float, hours: float) -> Floats:
    """Hours of the horizon that are left once a node is back, by outages that lasted longer than this one so far."""
    longer = np.array([each for each in lasted_h if each > down_h])
    return np.clip(hours - (longer - down_h), 0.0, None)


def _hazard_of_usual(facts: Facts, rate: float) -> float:
    chance = facts.history.bend.of(np.array([-np.expm1(-24.0 * rate)]), 24.0)
    return float(-np.log1p(-chance[0]) / 24.0)


def _bucket(chance: float, hazard: float, middle: float) -> Bucket:
    return BUCKETS[sum(hazard >= times * middle and chance >= least for times, least in (RAISED, HIGH))]


def _reason(one: NodeReport, facts: Facts) -> str:
    if one.standing(1) is NodeStanding.UNKNOWN:
        own = facts.histories.get(one.node, NEVER)
        return "sends no telemetry" if own.down_h is None else "down"
    context, back_h = one.description or "no context", facts.back_h(one.node, is_heard=one.is_heard)
    repaired = 1.0 if back_h is None else facts.model.ratio(facts.at_h - back_h)
    if one.level and LEVEL_RATIOS[one.level - 1] >= repaired:
        suspected = f", suspected: {one.suspicion}" if one.suspicion else ""
        return f"wear level {one.level}{suspected} ({context})"
    if back_h is not None and repaired > 1.0:
        return f"back for {(facts.at_h - back_h) / 24.0:.0f} days ({context})"
    return context


def rows(found: Iterable[NodeRisk]) -> list[RiskRow]:
    """A row for each node and horizon, in their order."""
    return [
        RiskRow(node=one.node, hours=hours, probability=chance, bucket=one.bucket, jobs=one.jobs, reason=one.reason)
        for one in found
        for hours, chance in zip(HORIZONS, one.probabilities, strict=True)
    ]


def of_names(names: Iterable[str], at_h: float, facts: Facts) -> list[NodeReport]:
    """Reports for nodes of which nothing is known but the name: heard, unless their newest outage still lasts."""
    return [
        NodeReport(name, int(at_h), 0, facts.histories.get(name, NEVER).down_h is None, "") for name in sorted(names)
    ]
