"""Hazards of build-up levels from the fleet's own events: no tenant data, so no privacy budget is spent.

    levels (buildup) ───┬─ hours_at_risk ─ exposure_and_events ─ fit_levels ─▶ rates, ratios
    events (summaries) ─┘

A failure is a hardware error, or a node that falls silent. An hour is at risk if the node reported in the hour before
and had no failure in the `QUIET_H` hours before, since a failure so soon after counts as the same one. An hour, and the
failure in it, count at the level of the hour *before*, so that errors of the failure itself do not count against a
level.

Guarantees. Every failure that counts lies in an hour at risk, which counts as a whole. The fit is the Poisson maximum
likelihood with time-varying levels (`analysis.hazard`), drawn together by `prior_sd`; counts are exact, so intervals
hold sampling alone.

Not promised: that silence is a failure. If more than `MOST_AT_ONCE` of the nodes at risk (and at least two) fall silent
in one hour, it is taken for network, monitoring or maintenance and left out; other planned restarts must be named.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import polars as pl

from federation.protocol.life_table import Dimension, LifeTable
from provider_server.fleet.analysis.buildup import LEVELS, SILENT, UNKNOWN
from provider_server.fleet.analysis.fleet_hours import FleetHours
from provider_server.fleet.analysis.hazard import Cells, Estimate, HazardFit, Model, fit_hazard, predict_levels
from provider_server.fleet.telemetry.catalogue import BY_CODE, METRICS, failing
from provider_server.fleet.telemetry.samples import HOUR_S

QUIET_H = 24
MOST_AT_ONCE = 0.1
PRIOR_SD = 1.0  # of log rates between contexts, levels and bands: factors, not decades
LOST, FAILED_REMAP = "node lost", "row remapping failure"

# Codes of NVIDIA's Xid catalogue after which the provider has to do something about hardware. Left out are those that a
# program can cause (13, 31, 43, 45), that tell of a repair (63, 92, 94), or that only announce (154).
HARDWARE_XIDS: Mapping[int, str] = MappingProxyType(
    {
        48: "double-bit ECC error",
        62: "micro-controller halt",
        64: FAILED_REMAP,
        74: "NVLink error",
        79: "GPU fell off the bus",
        95: "uncontained memory error",
        119: "GSP time-out",
        120: "GSP error",
        136: "link training failed",
        140: "unrecovered ECC error",
        143: "GPU initialisation error",
        **dict.fromkeys(range(144, 151), "NVLink 5 error"),
        157: "resource retirement failure",
        158: "GPU fatal time-out",
        167: "PCIe fatal time-out",
        169: "micro-controller halt",
    }
)


# ---- time at risk --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Together:
    """What only the whole fleet tells: which hours there are, and in which too many nodes fell silent at once."""

    hours: frozenset[int]
    crowded: frozenset[int]

    @classmethod
    def of(cls, parts: Iterable[pl.DataFrame]) -> "Together":
        """Of levels, as for `hours_at_risk`, of some nodes after the other."""
        table = pl.concat([_silence_by_hour(levels) for levels in parts])
        table = table.group_by("hour").agg(pl.col("alive", "silent").sum())
        many = (pl.col("silent") >= 2) & (pl.col("silent") > MOST_AT_ONCE * pl.col("alive"))
        return cls(frozenset(table["hour"]), frozenset(table.filter(many)["hour"]))


def _silence_by_hour(levels: pl.DataFrame) -> pl.DataFrame:
    """Every hour, nodes that reported in the hour before, and how many of them are silent."""
    rows = _reported_before(levels).join(levels.select("node", "hour", "status"), on=["node", "hour"])
    silent = rows.group_by("hour").agg(alive=pl.len(), silent=(pl.col("status") == SILENT).sum())
    return levels.select(pl.col("hour").unique()).join(silent, on="hour", how="left").fill_null(0)


def at_risk_in_parts(hours: FleetHours, events: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Hours at risk, as by `hours_at_risk`, of some nodes after the other."""
    together = Together.of(hours.parts())
    for levels in hours.parts():
        own = events.join(levels.select(pl.col("node").unique()), on="node", how="semi")
        yield hours_at_risk(levels, own, together=together)


def hours_at_risk(
    levels: pl.DataFrame,
    events: pl.DataFrame,
    planned: pl.DataFrame | None = None,
    together: Together | None = None,
) -> pl.DataFrame:
    """Every hour at risk: node, hour, level (of the hour before), and kind of the failure in it, null where none was.

    `levels` are rows of `BuildUp.add`, `events` of `HourSummary.events`; `planned` (node, hour) names hours in which
    silence was to be expected. Where these are not of the whole fleet, `together` is.
    """
    together = together or Together.of([levels])
    alive = _alive(levels, together)
    found = pl.concat([hardware_failures(events), _lost(alive, levels, planned, together)]).sort("node", "hour", "kind")
    found = found.unique(["node", "hour"], keep="first", maintain_order=True)
    quiet = found.select("node", hour=pl.int_ranges(pl.col("hour") + 1, pl.col("hour") + QUIET_H + 1)).explode("hour")
    at_risk = alive.select("node", "hour", "level").join(quiet, on=["node", "hour"], how="anti")
    return at_risk.join(found, on=["node", "hour"], how="left").sort("node", "hour")


def _reported_before(levels: pl.DataFrame) -> pl.DataFrame:
    """Node and hour after each in which the node reported, and the level then."""
    reported = levels.filter(~pl.col("status").is_in([SILENT, UNKNOWN]))
    return reported.select("node", pl.col("hour") + 1, "level")


def _alive(levels: pl.DataFrame, together: Together) -> pl.DataFrame:
    """Hours (node, hour) of which the node reported in the one before, and the level then."""
    hours = pl.DataFrame({"hour": sorted(together.hours)}, schema={"hour": pl.Int64})
    return _reported_before(levels).join(hours, on="hour", how="semi")


def hardware_failures(events: pl.DataFrame) -> pl.DataFrame:
    """Hardware failures (node, hour, kind) among events, by the kinds that `metrics.toml` calls them."""
    kinds = {float(code): kind for code, kind in HARDWARE_XIDS.items()}
    told = pl.col("metric").replace_strict(failing(), default=None, return_dtype=pl.String)
    xid = pl.col("code").replace_strict(kinds, default=None, return_dtype=pl.String)
    good = pl.col("metric").replace_strict({one: METRICS[one].good for one in failing()}, default=None)
    kind = pl.when(pl.col("code") != good).then(pl.when(told == BY_CODE).then(xid).otherwise(told))
    hour = (pl.col("time_s") // HOUR_S).cast(pl.Int64)
    return events.select("node", hour=hour, kind=kind).filter(pl.col("kind").is_not_null())


def _lost(alive: pl.DataFrame, levels: pl.DataFrame, planned: pl.DataFrame | None, together: Together) -> pl.DataFrame:
    """Nodes in the first hour of their silence, unless many fell silent together."""
    lost = _silences(alive, levels).filter(~pl.col("hour").is_in(list(together.crowded)))
    lost = lost.with_columns(kind=pl.lit(LOST))
    return lost if planned is None else lost.join(planned, on=["node", "hour"], how="anti")


def _silences(alive: pl.DataFrame, levels: pl.DataFrame) -> pl.DataFrame:
    """Node and hour wherever a silence begins."""
    silent = levels.filter(pl.col("status") == SILENT).select("node", "hour")
    return alive.select("node", "hour").join(silent, on=["node", "hour"], how="semi")


def silent_together(levels: pl.DataFrame, together: Together | None = None) -> pl.DataFrame:
    """Node and hour of silences that are no failures, since too many began at once; `levels` as for `hours_at_risk`."""
    together = together or Together.of([levels])
    return _silences(_alive(levels, together), levels).filter(pl.col("hour").is_in(list(together.crowded)))


def count_silent_together(hours: FleetHours) -> int:
    """How many there are of these."""
    together = Together.of(hours.parts())
    return sum(silent_together(levels, together).height for levels in hours.parts())


# ---- the life table and its fit ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bands:
    """A third dimension: `position` gives, from columns node and hour, the number of the level."""

    name: str
    levels: tuple[str, ...]
    position: pl.Expr


def hour_of_week() -> Bands:
    """Nights (20 to 8 o'clock UTC) and days from Monday to Friday, and weekends."""
    day, hour = (pl.col("hour") // 24 + 3) % 7, pl.col("hour") % 24  # hour 0 began a Thursday, Monday is day 0
    position = pl.when(day >= 5).then(2).otherwise(hour.is_between(8, 19).cast(pl.Int64))
    return Bands("season", ("weekday night", "weekday day", "weekend"), position)


def exposure_and_events(at_risk: pl.DataFrame, contexts: Mapping[str, int], bands: Bands | None = None) -> LifeTable:
    """Node-hours and failures over (context, level, band); `at_risk` as by `hours_at_risk`, bands default to seasons.

    `contexts` has the number of each node's context; ValueError where a node has none.
    """
    bands = bands or hour_of_week()
    if missing := sorted(set(at_risk["node"].unique()) - contexts.keys()):
        raise ValueError(f"{len(missing)} nodes have no context, {missing[0]} among them")
    numbers = sorted(set(contexts.values()))
    place = {node: numbers.index(context) for node, context in contexts.items()}
    cells = at_risk.group_by(
        context=pl.col("node").replace_strict(place, return_dtype=pl.Int64), level="level", band=bands.position
    ).agg(hours=pl.len(), failures=pl.col("kind").count(), nodes=pl.col("node").n_unique())
    dimensions = (
        Dimension("context", tuple(str(number) for number in numbers)),
        Dimension("level", tuple(str(level) for level in range(LEVELS))),
        Dimension(bands.name, bands.levels),
    )
    arrays = [np.zeros(tuple(len(dimension) for dimension in dimensions)) for _ in range(4)]
    index = tuple(cells[name].to_numpy().astype(np.intp) for name in ("context", "level", "band"))
    for array, name in zip(arrays[:3], ("failures", "hours", "nodes"), strict=True):
        array[index] = cells[name].to_numpy()
    return LifeTable(dimensions, *arrays)


@dataclass(frozen=True, eq=False)
class Gathered:
    """What estimates rest on, small enough for any fleet: no row for each hour.

    `table` as by `exposure_and_events`; `evidence`: factor ("level" or "context"), value, failures, node_hours, nodes;
    `kinds`: kind, failures, the most frequent first.
    """

    table: LifeTable
    evidence: pl.DataFrame
    kinds: pl.DataFrame

    @property
    def failures(self) -> int:
        """Failures at risk."""
        return int(self.kinds["failures"].sum())

    @property
    def node_hours(self) -> int:
        """Node-hours at risk."""
        return int(self.evidence.filter(factor="level")["node_hours"].sum())


def gather(parts: Iterable[pl.DataFrame], contexts: Mapping[str, int]) -> Gathered:
    """All that estimates need of hours at risk, as by `hours_at_risk`, of some nodes after the other.

    `contexts` has the number of each node's context.
    """
    tables, evidence, kinds = [], [], []
    for at_risk in parts:
        # of no node at all: polars takes an empty mapping for one to text
        own = pl.col("node").replace_strict(contexts or {"": 0}, return_dtype=pl.Int64)
        tables.append(exposure_and_events(at_risk, contexts))
        evidence += [_evidence(at_risk, "level", pl.col("level").cast(pl.Int64)), _evidence(at_risk, "context", own)]
        kinds.append(at_risk.filter(pl.col("kind").is_not_null()).group_by("kind").agg(failures=pl.len()))
    table = _with_hours(sum(tables[1:], tables[0]))
    by_value = pl.concat(evidence).group_by("factor", "value").agg(pl.col("failures", "node_hours", "nodes").sum())
    by_kind = pl.concat(kinds).group_by("kind").agg(pl.col("failures").sum())
    order = by_kind.sort("failures", "kind", descending=True)
    return Gathered(table, by_value.sort("factor", "value"), order)


def _with_hours(table: LifeTable) -> LifeTable:
    """Without contexts that were never at risk, of which nothing can be said."""
    first, *others = table.dimensions
    kept = np.flatnonzero(table.marginal(first.name).exposure_node_hours)
    dimension = Dimension(first.name, tuple(first.levels[place] for place in kept))
    arrays = (table.events, table.exposure_node_hours, table.at_risk, table.noise_variance)
    return LifeTable((dimension, *others), *(array[kept] for array in arrays))


def _evidence(at_risk: pl.DataFrame, factor: str, value: pl.Expr) -> pl.DataFrame:
    counted = at_risk.group_by(value=value).agg(
        failures=pl.col("kind").count(), node_hours=pl.len(), nodes=pl.col("node").n_unique()
    )
    return counted.with_columns(pl.col("failures", "node_hours", "nodes").cast(pl.Int64), factor=pl.lit(factor))


@dataclass(frozen=True, eq=False)
class LevelFit:
    """Rates per node-hour, shape (contexts, LEVELS), averaged over bands, and ratios of levels 1 to 3 to level 0, (3,).

    Rows of `rates` follow `contexts`; `by_level` (LEVELS,) averages over contexts too, by their hours. Ratios of
    contexts, `fit.ratios("context")`, are to the one with most hours. What has neither failures nor hours is drawn to
    the rest by the prior, and wide.
    """

    fit: HazardFit
    contexts: tuple[str, ...]
    rates: Estimate
    by_level: Estimate
    ratios: Estimate


def fit_levels(table: LifeTable, prior_sd: float = PRIOR_SD) -> LevelFit:
    """Fits log rate = context + level + band; `prior_sd` says how far each may be from its like (inf: no pooling)."""
    names = [name for name, size in zip(table.names, table.shape, strict=True) if size > 1]
    hours = table.marginal("context").exposure_node_hours
    usual = table.levels("context")[int(np.argmax(hours))]
    model = Model(tuple((name,) for name in names), {"context": usual}, prior_sd)
    fit = fit_hazard(Cells.from_table(table), [table.marginal(name) for name in names], model).settled()
    bands = table.marginal(table.names[2]).exposure_node_hours
    index = np.indices(table.shape).reshape(3, -1)
    share = np.maximum(hours / hours.sum(), 1e-9)[index[0]] * np.maximum(bands / bands.sum(), 1e-9)[index[2]]
    everywhere = Cells(table.dimensions, index.astype(np.intp), share)
    rates = predict_levels(fit, everywhere, "context", "level")
    shape = table.shape[:2]
    shaped = Estimate(rates.value.reshape(shape), rates.log_sd.reshape(shape))
    by_level = predict_levels(fit, everywhere, "level")
    return LevelFit(fit, table.levels("context"), shaped, by_level, fit.ratios("level")[1])
