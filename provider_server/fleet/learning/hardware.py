"""A stretch of the provider's own telemetry, from samples to contexts and build-up levels.

    source ─ summarise ─▶ hours ─┬─ BuildUp ─▶ levels ─┬─▶ node-hours at risk, failures ─┐
                                 └─ sums by node ──────┴─────────── with the inventory ──┴─▶ NodeTable ─▶ ContextMap
    benchmark jobs ─ performance ─▶ how slow each node is ───────────────────────────────┘

What the provider saw itself is all that goes in; nothing of any tenant's. What was dropped or doubted on the way is
counted in `quality`, and belongs beside every result. A state (`Kept`) carries contexts, their numbers and the build-up
levels on to the next stretch. Stretches may overlap: an hour enters the state once.

Where hardware was replaced (`Repair`), a node begins anew: from that hour on its level speaks of nothing before. The
repairs lie in a file of their own, which only `record_repairs` writes. So neither `nodes contexts` nor the poller of a
running provider, which write states of their own, can undo one, and both keep to it however often they read the hours
before.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from crypto.errors import Refusal
from federation.base import json_files
from provider_server.fleet.analysis.buildup import BuildUp, signals_of
from provider_server.fleet.analysis.contexts import ContextMap, find_contexts
from provider_server.fleet.analysis.fleet_events import at_risk_in_parts
from provider_server.fleet.analysis.fleet_hours import FleetHours, Recorder
from provider_server.fleet.analysis.selection import NodeTable, Selected, select
from provider_server.fleet.learning.benchmark_jobs import BenchmarkJob
from provider_server.fleet.learning.performance import measures
from provider_server.fleet.telemetry.inventory import Inventory
from provider_server.fleet.telemetry.quality import Quality, Tally
from provider_server.fleet.telemetry.samples import SeriesBook, Source, Window
from provider_server.fleet.telemetry.summaries import HourSummary, per_node, summarise

SEED = 0  # of folds and permutations: the same telemetry gives the same contexts
LEAST_LEVELS = 4
WARM_UP_H = 72  # hours read before a window, so that levels are known when it begins
STATE = "contexts.json"
REPAIRS = "repairs.json"


class UnknownNodes(Refusal):
    """A repair names nodes that telemetry has never shown."""

    default_hint = "check the spelling; new nodes become known when `pharoah-provider nodes contexts` runs"


@dataclass(frozen=True)
class Repair:
    """Hardware of a node was replaced; what it did before `from_hour` speaks of what is gone."""

    node: str
    from_hour: int


@dataclass(frozen=True)
class Kept:
    """What the next stretch goes on from, and what leases are labelled by. `levels` are those of the last hour."""

    until_hour: int
    contexts: ContextMap
    levels: Mapping[str, int]
    build_up: bytes

    def place(self, nodes: Iterable[str]) -> tuple[int, int]:
        """Context and build-up level of a job on some nodes: most of them, and the worst. ValueError: no context."""
        numbers = []
        for node in nodes:
            number = self.contexts.of(node)
            if number is None:
                raise ValueError(f"node {node} has no context")
            numbers.append((number, self.levels.get(node, 0)))
        known = [number for number, _level in numbers]
        return max(sorted(set(known)), key=known.count), max(level for _number, level in numbers)

    def peers(self) -> dict[str, str]:
        """The group in which each node is compared: its context."""
        return {node: str(context.number) for context in self.contexts.contexts for node in context.nodes}

    def anew(self, hour: int) -> "Kept":
        """The contexts, without any memory of levels before that hour."""
        return replace(self, until_hour=hour, levels={}, build_up=BuildUp().state())

    def after(self, repairs: Iterable[Repair]) -> "Kept":
        """With level 0 for nodes of which no hour was seen since their repair."""
        new = {one.node: 0 for one in repairs if one.from_hour >= self.until_hour}
        return replace(self, levels={**self.levels, **new})


@dataclass(frozen=True, eq=False)
class Followed:
    """Hours of telemetry with levels, events, and sums by node and metric.

    `last` has the levels of the last hour, as by `BuildUp.add`; `state` is that of the build-up after it.
    """

    hours: FleetHours
    events: pl.DataFrame
    last: pl.DataFrame
    totals: pl.DataFrame
    state: bytes
    quality: Quality
    doubts: Mapping[str, int]

    def at_risk(self, from_hour: int = 0) -> Iterator[pl.DataFrame]:
        """Hours at risk from that hour on, as by `hours_at_risk`, of some nodes after the other."""
        for part in at_risk_in_parts(self.hours, self.events):
            yield part.filter(pl.col("hour") >= from_hour)


def follow(
    source: Source,
    window: Window,
    inventory: Inventory,
    before: Kept | None,
    repairs: Sequence[Repair] = (),
    metrics: Container[str] | None = None,
) -> Followed:
    """Reads the telemetry of a window, and goes on from the state before.

    Hours that are in that state already are judged by what the window itself shows of them, and leave it as it is.
    `metrics` are those that the source asks for, None: all. What it does not ask for holds up no level.
    """
    tally = Tally()
    book = SeriesBook(tally, devices=inventory.devices(), nodes=inventory.addresses())
    peers = before.peers() if before else {}
    table = signals_of(metrics)
    going_on = BuildUp.resumed(before.build_up, peers, table) if before else BuildUp(table=table)
    again, seen = BuildUp(peers, table), before.until_hour - 1 if before else window.start_hour - 1
    forget(going_on, repairs, seen, max(seen, window.start_hour - 1))
    recorded, events, totals, last = Recorder(), [], _NOTHING, pl.DataFrame()
    for hour in summarise(source, book, window, inventory.names):
        build_up = going_on if hour.hour > seen else again
        forget(build_up, repairs, hour.hour - 1, hour.hour)
        last = build_up.add(hour).select("node", "hour", "level", "status", "score", "why")
        recorded.add(last)
        events.append(hour.events)
        totals = _added(totals, hour)
    return Followed(
        recorded.hours(), pl.concat(events), last, totals, going_on.state(), tally.quality(), going_on.doubts
    )


def follow_warm(
    source: Source, window: Window, inventory: Inventory, kept: Kept | None, repairs: Sequence[Repair]
) -> Followed:
    """Events and levels of the window and `WARM_UP_H` before it; contexts as stored, levels computed anew."""
    first = max(0, window.start_hour - WARM_UP_H)
    return follow(source, replace(window, start_hour=first), inventory, kept.anew(first) if kept else None, repairs)


def forget(build_up: BuildUp, repairs: Iterable[Repair], after_hour: int, to_hour: float) -> None:
    """Has nodes begin anew that were repaired after one hour and by another."""
    build_up.repaired([one.node for one in repairs if after_hour < one.from_hour <= to_hour])


@dataclass(frozen=True, eq=False)
class Observed:
    """One stretch: what to keep, what was selected and why, and what was left out."""

    kept: Kept
    selected: tuple[Selected, ...]
    failures: float
    quality: Quality
    doubts: Mapping[str, int]


def observe(
    source: Source,
    window: Window,
    inventory: Inventory,
    before: Kept | None,
    forced: Sequence[str] = (),
    repairs: Sequence[Repair] = (),
    metrics: Container[str] | None = None,
    jobs: Sequence[BenchmarkJob] = (),
) -> Observed:
    """Reads the telemetry of a window. `forced` features tell contexts apart whether or not failures speak for them.

    So does how fast nodes ran `jobs`, of whatever time.
    """
    seen = follow(source, window, inventory, before, repairs, metrics)
    table = _node_table(seen.totals, seen.at_risk(), inventory)
    table = replace(table, measures=measures(jobs, table.nodes))
    chosen = select(table, np.random.default_rng(SEED))
    chosen += tuple(
        Selected(name, 1e-9, 1.0, 0.0, asked=True) for name in forced if name not in {one.name for one in chosen}
    )
    found = find_contexts(table, chosen, before.contexts if before else None, np.random.default_rng(SEED))
    last = seen.last
    kept = Kept(window.end_hour, found, dict(last.select("node", "level").iter_rows()), seen.state)
    if before and before.until_hour > window.end_hour:
        kept = replace(kept, until_hour=before.until_hour, levels=before.levels)
    return Observed(
        kept.after(repairs),
        chosen,
        float(table.failures.sum()),
        seen.quality,
        seen.doubts,
    )


_NOTHING = pl.DataFrame(schema={"node": pl.String, "metric": pl.String, "total": pl.Float64, "hours": pl.UInt32})


def _added(totals: pl.DataFrame, hour: HourSummary) -> pl.DataFrame:
    """Sums over hours of what each node reported, by metric: one number of each hour, whatever the metric's kind."""
    value = pl.coalesce("mean", "increase", "changes").cast(pl.Float64)
    now = per_node(hour.rows).select("node", "metric", total=value, hours=pl.lit(1, pl.UInt32)).drop_nulls()
    return pl.concat([totals, now]).group_by("node", "metric").agg(pl.col("total", "hours").sum())


def _node_table(totals: pl.DataFrame, at_risk: Iterable[pl.DataFrame], inventory: Inventory) -> NodeTable:
    """Nodes that were seen or are expected, in the order of their names."""
    parts = [part.group_by("node").agg(hours=pl.len(), failures=pl.col("kind").count()) for part in at_risk]
    risk = pl.concat(parts)
    nodes = tuple(sorted({*totals["node"], *risk["node"], *inventory.names}))
    base = pl.DataFrame({"node": nodes}, schema={"node": pl.String})
    means = totals.select("node", "metric", mean=pl.col("total") / pl.col("hours")).sort("metric", "node")
    wide = means.pivot(on="metric", index="node", values="mean")
    numbers = base.join(wide, on="node", how="left", maintain_order="left").drop("node")
    seen = base.join(risk, on="node", how="left", maintain_order="left").fill_null(0)
    return NodeTable(
        nodes=nodes,
        numbers={name: numbers[name].fill_null(np.nan).to_numpy().astype(np.float64) for name in numbers.columns},
        categories=_categories(nodes, inventory),
        failures=seen["failures"].to_numpy().astype(np.float64),
        node_hours=seen["hours"].to_numpy().astype(np.float64),
    )


def _categories(nodes: Sequence[str], inventory: Inventory) -> dict[str, tuple[str, ...]]:
    """What the inventory says of each node; "" where it says nothing."""
    own = {node.name: node for node in inventory.nodes}
    gpus: dict[str, list[str]] = {}
    switches: dict[str, list[str]] = {}
    for gpu in inventory.gpus:
        gpus.setdefault(gpu.node, []).append(gpu.model)
    for nic in inventory.nics:
        switches.setdefault(nic.node, []).append(nic.switch)
    columns = {
        "model": [own[node].model if node in own else "" for node in nodes],
        "rack": [own[node].rack if node in own else "" for node in nodes],
        "GPU": [", ".join(sorted(set(gpus.get(node, ())))) for node in nodes],
        "GPUs": [str(len(gpus[node])) if node in gpus else "" for node in nodes],
        "switch": [", ".join(sorted(set(switches.get(node, ())))) for node in nodes],
    }
    return {name: tuple(column) for name, column in columns.items() if len(set(column)) > 1}


# ---- the state that is kept ------------------------------------------------------------------------------------------


def load(home: Path) -> Kept | None:
    """What the last stretch left in the home, and repairs since; None before the first; DecodeError for damage."""
    kept = json_files.load(home / STATE, Kept, None)
    return kept and kept.after(load_repairs(home))


def keep(home: Path, kept: Kept) -> None:
    """Puts the state into the home, whole or not at all."""
    json_files.keep(home / STATE, kept)


def load_repairs(home: Path) -> tuple[Repair, ...]:
    """Every repair that was told, in that order; DecodeError where the file is damaged."""
    return json_files.load(home / REPAIRS, tuple[Repair, ...], ())


def record_repairs(home: Path, nodes: Iterable[str], from_hour: int, known: Kept) -> tuple[Repair, ...]:
    """Adds a repair of each node; UnknownNodes, and nothing is kept, where one was never seen."""
    told = sorted(set(nodes))
    if strange := [node for node in told if node not in known.levels and known.contexts.of(node) is None]:
        raise UnknownNodes(f"not in telemetry: {', '.join(strange)}")
    new = tuple(Repair(node, from_hour) for node in told)
    json_files.keep(home / REPAIRS, tuple(dict.fromkeys(load_repairs(home) + new)))
    return new


def levels_of(kept: Kept | None) -> range:
    """The build-up levels that tokens stand for, whether or not a node has them now."""
    return range(max([LEAST_LEVELS - 1, *(kept.levels.values() if kept else ())]) + 1)


def label_of(number: int) -> str:
    """The name under which a context is known in leases."""
    return f"context {number}"
