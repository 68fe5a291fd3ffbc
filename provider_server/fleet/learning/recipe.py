"""Which of the fleet's own metrics are worth their samples: from telemetry to a recipe (docs/nodes.md).

    source ─ summarise ─┬─ BuildUp ─▶ scores by metric, hours at risk ─▶ Evidence ─ choose, judge ─┐
                        └─ series and samples of every metric ─────────▶ costs ────────────────────┴─▶ Advice ─▶ Recipe

The choice is made on the hours up to three fifths of the failures; the others judge it, and a metric that has a cause
to itself there is put back. Nothing of any tenant's goes in: the provider has no tokens of workloads, so worth is by
metric and by context, and not by workload.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from provider_server.fleet.analysis.buildup import BuildUp, Signal, signals
from provider_server.fleet.analysis.fleet_events import at_risk_in_parts
from provider_server.fleet.analysis.fleet_hours import Recorder
from provider_server.fleet.analysis.metric_worth import (
    Beyond,
    Bytes,
    Change,
    Evidence,
    Fitted,
    Judged,
    Scores,
    changes,
    choose,
    thresholds_reached,
)
from provider_server.fleet.learning.hardware import WARM_UP_H, Kept, Repair, forget
from provider_server.fleet.telemetry.catalogue import METRICS, Of, failing
from provider_server.fleet.telemetry.inventory import Inventory
from provider_server.fleet.telemetry.quality import Quality, Tally
from provider_server.fleet.telemetry.recipe import FAILURES, Ingredient, Recipe
from provider_server.fleet.telemetry.samples import HOUR_S, SeriesBook, Source, Window
from provider_server.fleet.telemetry.summaries import MISSING, HourSummary, summarise

SEED = 0  # of the resampled nodes
FIRST_SHARE = 0.6  # of the failures, on which the choice is made
SLOW_S = 120  # enough for sums and means of hours; one scrape may be lost before a series shows a gap (300 s)
BYTES = 2.0  # of a sample on disk: Prometheus' documentation ("Storage") says 1 to 2


@dataclass(frozen=True)
class Cost:
    """What a metric costs each node: series, samples a day and the seconds between two samples of a series."""

    series: float
    samples_per_day: float
    interval_s: float

    def slowed(self, interval_s: int) -> float:
        """Samples a day at another interval."""
        return self.samples_per_day * min(1.0, self.interval_s / interval_s)


@dataclass(frozen=True, eq=False)
class Gathered:
    """The evidence of a window, costs of every metric that was seen, and names for numbers of contexts and causes."""

    evidence: Evidence
    costs: dict[str, Cost]
    contexts: tuple[int | None, ...]
    features: frozenset[str]
    node_hours: int
    quality: Quality


class Reading:
    """Takes hours in, and keeps what the evidence needs of them."""

    def __init__(self, table: Sequence[Signal]) -> None:
        self.metrics = tuple(one.metric for one in table)
        self.recorder = Recorder()
        self.events: list[pl.DataFrame] = []
        self._hours: list[tuple[list[str], np.ndarray, np.ndarray]] = []
        self._series = pl.DataFrame(schema={"metric": pl.String, "series": pl.UInt32, "samples": pl.Int64})
        self._node_hours = 0

    def add(self, hour: HourSummary, build_up: BuildUp, *, counts: bool) -> None:
        """An hour; `counts`: its samples are part of the costs."""
        levels = build_up.add(hour)
        self.recorder.add(levels)
        self.events.append(hour.events)
        reached = thresholds_reached(levels.select(self.metrics).to_numpy().T.astype(np.float64))
        stale = levels.select("node").join(
            build_up.silent().with_columns(stale=pl.lit(value=True)).pivot(on="metric", index="node", values="stale"),
            on="node",
            how="left",
            maintain_order="left",
        )
        silent = np.array(
            [
                stale[name].fill_null(value=False).to_numpy()
                if name in stale.columns
                else np.zeros(len(stale), np.bool_)
                for name in self.metrics
            ]
        )
        self._hours.append((levels["node"].to_list(), reached, silent))
        if counts:
            said = hour.rows.filter(pl.col("count") > 0).group_by("metric")
            now = said.agg(series=pl.len().cast(pl.UInt32), samples=pl.col("count").cast(pl.Int64).sum())
            self._series = pl.concat([self._series, now]).group_by("metric").agg(pl.col("series", "samples").sum())
            self._node_hours += int((hour.nodes["status"] != MISSING).sum())

    def scores(self, nodes: Sequence[str]) -> Scores:
        """All hours, of these nodes."""
        shape = len(self.metrics), len(self._hours), len(nodes)
        place = {node: number for number, node in enumerate(nodes)}
        reached, stale = np.zeros(shape, np.uint8), np.ones(shape, np.bool_)
        for hour, (names, values, silent) in enumerate(self._hours):
            columns = [place[name] for name in names]
            reached[:, hour, columns], stale[:, hour, columns] = values, silent
        return Scores(self.metrics, reached, stale)

    def costs(self) -> tuple[dict[str, Cost], int]:
        """By metric, of each node; and the node-hours in which anything came."""
        hours = max(self._node_hours, 1)
        rows = self._series.sort("metric").iter_rows()
        found = {
            metric: Cost(series / hours, 24.0 * samples / hours, HOUR_S * series / samples)
            for metric, series, samples in rows
        }
        return found, self._node_hours


def gather(
    source: Source, window: Window, inventory: Inventory, kept: Kept | None, repairs: Sequence[Repair] = ()
) -> Gathered:
    """Reads the telemetry of a window and `WARM_UP_H` before it, all metrics of it."""
    tally, first = Tally(), max(0, window.start_hour - WARM_UP_H)
    book = SeriesBook(tally, devices=inventory.devices(), nodes=inventory.addresses())
    build_up, reading = BuildUp(kept.peers() if kept else {}), Reading(signals())
    for hour in summarise(source, book, replace(window, start_hour=first), inventory.names):
        forget(build_up, repairs, hour.hour - 1, hour.hour)
        reading.add(hour, build_up, counts=hour.hour >= window.start_hour)
    return gathered_of(reading, first, window.start_hour, kept, tally.quality())


def gathered_of(reading: Reading, first: int, start: int, kept: Kept | None, quality: Quality) -> Gathered:
    """The evidence of what was read: hours from `first` on, of which those from `start` on are at risk."""
    hours = reading.recorder.hours()
    nodes = hours.nodes
    scores = reading.scores(nodes)
    at_risk, cause = at_risk_arrays(
        pl.concat([*at_risk_in_parts(hours, pl.concat(reading.events))]), nodes, first, start, scores
    )
    contexts, context = _contexts(nodes, kept)
    costs, node_hours = reading.costs()
    features = frozenset(kept.contexts.features if kept else ()) & METRICS.keys()
    return Gathered(Evidence(scores, at_risk, cause, context), costs, contexts, features, node_hours, quality)


def at_risk_arrays(
    rows: pl.DataFrame, nodes: Sequence[str], first: int, start: int, scores: Scores
) -> tuple[np.ndarray, np.ndarray]:
    """Of every hour and node: whether it is at risk, and the number of a failure's kind."""
    shape = scores.reached.shape[1:]
    place = {node: number for number, node in enumerate(nodes)}
    rows = rows.filter((pl.col("hour") >= start) & (pl.col("hour") > first))
    kinds = {kind: number for number, kind in enumerate(sorted(rows["kind"].drop_nulls().unique()))}
    where = (
        rows["hour"].to_numpy() - first,
        rows["node"].replace_strict(place, return_dtype=pl.Int64).to_numpy().astype(np.intp),
    )
    at_risk, cause = np.zeros(shape, np.bool_), np.full(shape, -1, np.int16)
    at_risk[where] = True
    cause[where] = [-1 if kind is None else kinds[kind] for kind in rows["kind"]]
    return at_risk, cause


def _contexts(nodes: Sequence[str], kept: Kept | None) -> tuple[tuple[int | None, ...], np.ndarray]:
    """The contexts that nodes are in, and the place of each node's among them."""
    numbers = [kept.contexts.of(node) if kept else None for node in nodes]
    known = sorted(set(numbers), key=lambda number: (number is None, number or 0))
    return tuple(known), np.array([known.index(number) for number in numbers], np.intp)


# ---- the advice ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Worth:
    """One signal: what it raised, what it has beyond the others, and what a fit without it loses in later hours.

    `raised` counts rises from level 0; `after` is what its own levels have beyond none, `by_context` the same.
    """

    raised: int
    after: Beyond
    by_context: tuple[Beyond, ...]
    alone: Beyond
    likelihood_lost: float
    concordance_lost: float

    @property
    def figure(self) -> str:
        """What came after its rises, as an operator reads it."""
        after, alone = self.after, self.alone
        return (
            f"raised {self.raised} times, then {after.failures} failures where {after.expected:.2g} were to be"
            f" expected, {alone.failures} and {alone.expected:.2g} where no other metric raised as much"
        )


@dataclass(frozen=True, eq=False)
class Advice:
    """What to ask for. `decisions` has a word for every metric that was seen; `put_back` are those that the judge kept.

    `judged` are all metrics, `recipe_judged` those of the recipe; `change` is what the recipe has more.
    """

    worth: dict[str, Worth]
    decisions: dict[str, str]
    recipe: Recipe
    put_back: tuple[str, ...]
    judged: Judged
    recipe_judged: Judged
    change: tuple[Change, Change, Change]


READ, ALIVE, CONTEXT, ASKED = "failures", "alive", "context", "asked"
FORETELLS, UNDECIDED, LEFT_OUT, UNUSED, OVER = "foretells", "undecided", "left out", "unused", "over budget"
WHY = {
    READ: "failures are read from it",
    ALIVE: "the cheapest sign that a node lives",
    CONTEXT: "contexts are told apart by it",
    ASKED: "asked for",
    FORETELLS: "foretells failures that no other metric does",
    UNDECIDED: "too few failures to leave it out",
}


def advise(gathered: Gathered, tolerance: float, asked: frozenset[str], budget: float | None) -> Advice:
    """Chooses on the first hours, judges on the others; `budget` in samples of a node a day. ValueError: no failure."""
    evidence, samples = gathered.evidence, {name: cost.samples_per_day for name, cost in gathered.costs.items()}
    split = _split(evidence)
    early, late = evidence.between(0, split), evidence.between(split, len(evidence.at_risk))
    metrics = evidence.scores.metrics
    fixed = asked | gathered.features
    out = choose(early, samples, tolerance, frozenset(fixed & set(metrics)))
    back = _told_later(late, metrics, out)
    left = [name for name in metrics if name not in out or name in back]
    telling = {name for name in left if _alone(evidence, left, name).telling}
    decisions = _decided(gathered, asked, left, telling)
    decisions |= _over(gathered, decisions, budget)
    left = [name for name in left if decisions.get(name, UNDECIDED) != OVER]
    every, chosen = Fitted.of(early, late, metrics), Fitted.of(early, late, left)
    worth = {name: _worth(evidence, early, late, every, name) for name in metrics if name in gathered.costs}
    return Advice(
        worth,
        decisions,
        _recipe(gathered, decisions, worth),
        back,
        every.judge(),
        chosen.judge(),
        changes(every, chosen, np.random.default_rng(SEED)),
    )


def _split(evidence: Evidence) -> int:
    """The hour by which the first share of the failures has come; ValueError where there is none."""
    by_hour = np.cumsum((evidence.cause >= 0).sum(axis=1))
    if not by_hour[-1]:
        raise ValueError("no failure at risk")
    return int(np.searchsorted(by_hour, FIRST_SHARE * by_hour[-1])) + 1


def _alone(evidence: Evidence, metrics: Sequence[str], name: str) -> Beyond:
    """Gain of the other metrics when one is left out."""
    return evidence.beyond(evidence.before(metrics), evidence.before([one for one in metrics if one != name]))


def _told_later(late: Evidence, metrics: Sequence[str], out: Sequence[str]) -> tuple[str, ...]:
    """Metrics that were left out, but have a cause to themselves in later hours."""
    back: list[str] = []
    for name in reversed(out):
        left = [one for one in metrics if one not in out or one in back]
        if late.beyond(late.before([*left, name]), late.before(left)).telling:
            back.append(name)
    return tuple(back)


def _worth(evidence: Evidence, early: Evidence, late: Evidence, every: Fitted, name: str) -> Worth:
    metrics = evidence.scores.metrics
    own = evidence.before([name])
    nothing = np.zeros_like(own)
    without = Fitted.of(early, late, [one for one in metrics if one != name]).judge()
    whole = every.judge()
    return Worth(
        raised=int(((own[1:] > 0) & (own[:-1] == 0)).sum()),
        after=evidence.beyond(own, nothing),
        by_context=tuple(
            _in_context(evidence, own, nothing, number) for number in range(int(evidence.context.max(initial=0)) + 1)
        ),
        alone=_alone(evidence, metrics, name),
        likelihood_lost=whole.log_likelihood - without.log_likelihood,
        concordance_lost=whole.concordance - without.concordance,
    )


def _in_context(evidence: Evidence, own: Bytes, nothing: Bytes, number: int) -> Beyond:
    return evidence.beyond(own, nothing, evidence.context == number)


def _decided(gathered: Gathered, asked: frozenset[str], left: Sequence[str], telling: set[str]) -> dict[str, str]:
    """A word for each metric that was seen, and for those that failures are read from."""
    known = gathered.evidence.scores.metrics
    alive = _sign_of_life(gathered.costs)
    words: dict[str, str] = {}
    for name in sorted(gathered.costs.keys() | FAILURES | (asked & METRICS.keys())):
        rules = (
            (READ, name in failing()),
            (FORETELLS, name in telling),
            (CONTEXT, name in gathered.features),
            (ASKED, name in asked),
            (ALIVE, name == alive),
            (UNDECIDED, name in left),
            (LEFT_OUT, name in known),
        )
        words[name] = next((word for word, applies in rules if applies), UNUSED)
    return words


def _sign_of_life(costs: dict[str, Cost]) -> str | None:
    """The cheapest metric of whole nodes: it comes from another exporter than those of GPUs."""
    own = [(cost.samples_per_day, name) for name, cost in costs.items() if METRICS[name].of is Of.NODE]
    return min(own)[1] if own else None


def _over(gathered: Gathered, decisions: dict[str, str], budget: float | None) -> dict[str, str]:
    """The undecided that do not fit into the budget, the dearest first."""
    spent = sum(recommended(gathered, name, word) for name, word in decisions.items())
    over: dict[str, str] = {}
    undecided = [
        (gathered.costs[name].samples_per_day, name)
        for name, word in decisions.items()
        if word == UNDECIDED and name in gathered.costs
    ]
    for _, name in sorted(undecided, reverse=True):
        if budget is not None and spent > budget:
            spent -= recommended(gathered, name, UNDECIDED)
            over[name] = OVER
    return over


def recommended(gathered: Gathered, name: str, word: str) -> float:
    """Samples of a metric that a node has in a day under the recipe."""
    cost = gathered.costs.get(name)
    return cost.slowed(interval(cost, word)) if cost and word in WHY else 0.0


def interval(cost: Cost | None, word: str) -> int:
    """Seconds between two scrapes: as it is where each value counts, else `SLOW_S` or what is longer."""
    now = max(1, round(cost.interval_s)) if cost else SLOW_S
    return min(3600, now if word == READ else max(SLOW_S, now))


def _recipe(gathered: Gathered, decisions: dict[str, str], worth: dict[str, Worth]) -> Recipe:
    return Recipe(
        {
            name: Ingredient(
                interval(gathered.costs.get(name), word), WHY[word], worth[name].figure if name in worth else ""
            )
            for name, word in decisions.items()
            if word in WHY
        }
    )


def total_samples(gathered: Gathered) -> float:
    """Samples that a node has in a day now, of all metrics that can be read."""
    return sum(cost.samples_per_day for cost in gathered.costs.values())
