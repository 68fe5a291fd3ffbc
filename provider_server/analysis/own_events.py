"""What the provider's own events say about build-up levels: no tenant is asked, so no privacy is spent.

    levels (buildup) ───┬─ hours_at_risk ─┬─ exposure_and_events ─ fit_levels ─▶ rates, ratios ─ probability_of_failure
    events (summaries) ─┘                 └─ episodes ─▶ Kaplan–Meier, Nelson–Aalen, Cox, by lifelines
                                                         └───── all of it: own_hazards

A failure is an error that means hardware, or a node that falls silent. At risk is an hour that a node began alive: it
reported in the hour before, and nothing failed in the `QUIET_H` hours before, since what follows so soon is taken for
the same failure. An hour, and the failure in it, count at the level of the hour *before*: a failure that raises errors,
and thereby its own level, is no evidence against that level.

Guarantees. Every failure that counts lies in an hour at risk, which counts as a whole. The fit is the Poisson maximum
likelihood with time-varying levels (`analysis.hazard`), drawn together by `prior_sd`; counts are exact, so intervals
hold sampling alone. `probability_of_failure` is exact for nodes that drift independently, as an hourly Markov chain.

Not promised: that silence is failure. Where more than `MOST_AT_ONCE` of the nodes at risk (and two or more) fall silent
in one hour, that is a network, a monitor or maintenance, and left out; other planned restarts must be named. Levels are
only nearly Markov. lifelines is imported when it is asked: that takes a second, which a server need not spend.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import polars as pl

from crypto.life_table import Dimension, Floats, LifeTable
from provider_server.analysis.buildup import LEVELS, SILENT, UNKNOWN
from provider_server.analysis.hazard import Cells, Estimate, HazardFit, Model, fit_hazard, predict_levels
from provider_server.telemetry.samples import HOUR_S

QUIET_H = 24
MOST_AT_ONCE = 0.1
PRIOR_SD = 1.0  # of log rates between contexts, levels and bands: factors, not decades
LEVEL_0: Mapping[str, int] = MappingProxyType({"level": 0})
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


def hours_at_risk(levels: pl.DataFrame, events: pl.DataFrame, planned: pl.DataFrame | None = None) -> pl.DataFrame:
    """Every hour at risk: node, hour, level (of the hour before), and kind of the failure in it, null where none was.

    `levels` are rows of `BuildUp.add`, `events` of `HourSummary.events`; `planned` (node, hour) names hours in which
    silence was to be expected.
    """
    alive = _alive(levels)
    found = pl.concat([_errors(events), _lost(alive, levels, planned)]).sort("node", "hour", "kind")
    found = found.unique(["node", "hour"], keep="first", maintain_order=True)
    quiet = found.select("node", hour=pl.int_ranges(pl.col("hour") + 1, pl.col("hour") + QUIET_H + 1)).explode("hour")
    at_risk = alive.select("node", "hour", "level").join(quiet, on=["node", "hour"], how="anti")
    return at_risk.join(found, on=["node", "hour"], how="left").sort("node", "hour")


def _alive(levels: pl.DataFrame) -> pl.DataFrame:
    """Hours (node, hour) of which the node reported in the one before, and the level then."""
    reported = levels.filter(~pl.col("status").is_in([SILENT, UNKNOWN]))
    following = reported.select("node", pl.col("hour") + 1, "level")
    return following.join(levels.select("hour").unique(), on="hour", how="semi")


def _errors(events: pl.DataFrame) -> pl.DataFrame:
    """Hardware failures (node, hour, kind) among events."""
    kinds = {float(code): kind for code, kind in HARDWARE_XIDS.items()}
    xid = pl.when(pl.col("metric") == "xid").then(pl.col("code").replace_strict(kinds, default=None))
    remap = (pl.col("metric") == "row_remap_failure") & (pl.col("code") != 0)
    kind = pl.when(remap).then(pl.lit(FAILED_REMAP)).otherwise(xid.cast(pl.String))
    hour = (pl.col("time_s") // HOUR_S).cast(pl.Int64)
    return events.select("node", hour=hour, kind=kind).filter(pl.col("kind").is_not_null())


def _lost(alive: pl.DataFrame, levels: pl.DataFrame, planned: pl.DataFrame | None) -> pl.DataFrame:
    """Nodes in the first hour of their silence, unless many fell silent together."""
    rows = alive.select("node", "hour").join(levels.select("node", "hour", "status"), on=["node", "hour"])
    silent = pl.col("status") == SILENT
    together = silent.sum().over("hour")
    many = (together >= 2) & (together > MOST_AT_ONCE * pl.len().over("hour"))
    lost = rows.filter(silent & ~many).select("node", "hour", kind=pl.lit(LOST))
    return lost if planned is None else lost.join(planned, on=["node", "hour"], how="anti")


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


def node_age(first_hour: Mapping[str, int], edges_days: Sequence[float]) -> Bands:
    """Ages of nodes since `first_hour`, in bands between `edges_days` (ascending, without 0 and the end)."""
    edges = [0.0, *edges_days]
    names = [f"{low:g}-{high:g} d" for low, high in pairwise(edges)] + [f"{edges[-1]:g}+ d"]
    days = (pl.col("hour") - pl.col("node").replace_strict(dict(first_hour), return_dtype=pl.Int64)) / 24.0
    return Bands("age", tuple(names), pl.sum_horizontal((days >= edge).cast(pl.Int64) for edge in edges_days))


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
    fit = fit_hazard(Cells.from_table(table), [table.marginal(name) for name in names], model)
    bands = table.marginal(table.names[2]).exposure_node_hours
    index = np.indices(table.shape).reshape(3, -1)
    share = np.maximum(hours / hours.sum(), 1e-9)[index[0]] * np.maximum(bands / bands.sum(), 1e-9)[index[2]]
    everywhere = Cells(table.dimensions, index.astype(np.intp), share)
    rates = predict_levels(fit, everywhere, "context", "level")
    shape = table.shape[:2]
    shaped = Estimate(rates.value.reshape(shape), rates.log_sd.reshape(shape))
    by_level = predict_levels(fit, everywhere, "level")
    return LevelFit(fit, table.levels("context"), shaped, by_level, fit.ratios("level")[1])


def probability_of_failure(rates: Floats, transitions: Floats, level: int, nodes: int, hours: float) -> float:
    """Probability that one of `nodes`, all at `level` now, fails within `hours`.

    `rates` (LEVELS,) are per node-hour; `transitions` (LEVELS, LEVELS) are hourly, rows sum to 1 (`level_transitions`).
    A node spends an hour at its level, then moves. For nodes at several levels multiply what survives.
    """
    whole = int(hours)
    hour = np.exp(-rates)[:, None] * transitions
    rest = np.exp(-rates * (hours - whole))
    alive = float((np.linalg.matrix_power(hour, whole) @ rest)[level])
    return float(-np.expm1(nodes * np.log(alive)))


# ---- curves and Cox, by lifelines ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Curve:
    """Values after each time of a failure (hours since the window began) with 95% bounds, all of shape (times,)."""

    times: Floats
    value: Floats
    low: Floats
    high: Floats
    at_risk: Floats


@dataclass(frozen=True, eq=False)
class Ratios:
    """Hazard ratios of the `values` of a factor to its `reference`, with 95% bounds and log standard errors."""

    reference: int
    values: tuple[int, ...]
    ratio: Floats
    low: Floats
    high: Floats
    log_sd: Floats = field(repr=False)


def episodes(at_risk: pl.DataFrame) -> pl.DataFrame:
    """Unbroken stretches at one level up to a node's first failure: node, start_h, stop_h, level, failed.

    Hours count from the first at risk of any node. A stretch is at risk after its start and up to its stop: nodes that
    come later, or were silent for a while, are left-truncated.
    """
    ordered = at_risk.sort("node", "hour").with_columns(failed=pl.col("kind").is_not_null())
    before = pl.col("failed").cum_sum().over("node") - pl.col("failed").cast(pl.Int64)
    ordered = ordered.filter(before == 0)
    broken = (pl.col("hour").diff() != 1) | (pl.col("level").diff() != 0)
    ordered = ordered.with_columns(run=broken.fill_null(value=True).cum_sum().over("node"))
    origin = at_risk["hour"].min()
    runs = ordered.group_by("node", "run", maintain_order=True).agg(
        start_h=pl.col("hour").min() - origin,
        stop_h=pl.col("hour").max() + 1 - origin,
        level=pl.col("level").first(),
        failed=pl.col("failed").any(),
    )
    return runs.drop("run")


def kaplan_meier(lives: pl.DataFrame) -> Curve:
    """Share of nodes without a failure so far; `lives` as by `episodes`."""
    from lifelines import KaplanMeierFitter

    return _curve(KaplanMeierFitter(), lives, "survival_function_")


def nelson_aalen(lives: pl.DataFrame) -> Curve:
    """Failures that a node at risk all the time would have had to expect so far; `lives` as by `episodes`."""
    from lifelines import NelsonAalenFitter

    return _curve(NelsonAalenFitter(nelson_aalen_smoothing=False), lives, "cumulative_hazard_")


def _curve(fitter: Any, lives: pl.DataFrame, name: str) -> Curve:
    # lifelines counts who enters at a time as at risk then; by half an hour later, and all else being whole, none is
    entry = lives["start_h"].to_numpy() + 0.5
    fitted = fitter.fit(lives["stop_h"].to_numpy(), lives["failed"].to_numpy(), entry=entry)
    table = fitted.event_table
    times = table.index[table["observed"] > 0]
    value, bounds = getattr(fitted, name).loc[times], fitted.confidence_interval_.loc[times]
    columns = (times, value.iloc[:, 0], bounds.iloc[:, 0], bounds.iloc[:, 1], table["at_risk"].loc[times])
    return Curve(*(column.to_numpy(np.float64) for column in columns))


def cox(lives: pl.DataFrame, references: Mapping[str, int] = LEVEL_0) -> dict[str, Ratios]:
    """Cox's model of factors (columns of `lives` that `references` names) that may vary over time, all in one.

    Empty where no factor has a second value. ValueError where a value of one has hours, but no failure to go by, or
    where factors cannot be told apart.
    """
    terms = {factor: _values(lives, factor, reference) for factor, reference in references.items()}
    asked = lives.select(
        *("node", "start_h", "stop_h", "failed"),
        *(_indicator(factor, value) for factor, values in terms.items() for value in values),
    )
    log, error = _cox(pd.DataFrame(asked.to_dict(as_series=False)))
    found, begin = {}, 0
    for factor, values in terms.items():
        place = slice(begin, begin := begin + len(values))
        theirs = Estimate(np.exp(log[place]), error[place])
        if values:
            found[factor] = Ratios(references[factor], values, theirs.value, *theirs.interval(), theirs.log_sd)
    return found


def _values(lives: pl.DataFrame, factor: str, reference: int) -> tuple[int, ...]:
    """The values of a factor but the reference; ValueError where one, or the reference, has no failure."""
    failing = set(lives.filter("failed")[factor])
    if silent := sorted({reference, *lives[factor]} - failing):
        raise ValueError(f"no failure at {factor} {silent[0]}: Cox's ratio is not finite, that of fit_levels is")
    return tuple(sorted(failing - {reference}))


def _indicator(factor: str, value: int) -> pl.Expr:
    return (pl.col(factor) == value).cast(pl.Float64).alias(f"{factor} {value}")


def _cox(frame: pd.DataFrame) -> tuple[Floats, Floats]:
    """Log ratios and standard errors (p,) of all columns but the four that every life has."""
    if frame.shape[1] == 4:
        return np.empty(0), np.empty(0)
    from lifelines import CoxTimeVaryingFitter
    from lifelines.exceptions import ConvergenceError, ConvergenceWarning

    names = {"id_col": "node", "event_col": "failed", "start_col": "start_h", "stop_col": "stop_h"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            # a rare level with a large ratio makes Newton's whole first step overshoot for good
            fitted = CoxTimeVaryingFitter().fit(frame, fit_options={"step_size": 0.25}, **names)
        except (ConvergenceError, ConvergenceWarning) as failure:
            raise ValueError("Cox's model cannot tell levels and contexts apart, or failures are too few") from failure
    return fitted.params_.to_numpy(np.float64), fitted.standard_errors_.to_numpy(np.float64)


# ---- all of it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnHazards:
    """What own events say. `hazard_by_level` is Nelson–Aalen's, for a node that would stay at a level all the time.

    `cox` has "level" and "context" where there is a ratio, and holds for first failures; `left_out` says in words what
    is not in it, and why.
    """

    table: LifeTable
    fit: LevelFit
    survival: Curve
    hazard: Curve
    hazard_by_level: Mapping[int, Curve]
    cox: Mapping[str, Ratios]
    left_out: tuple[str, ...]


def own_hazards(at_risk: pl.DataFrame, contexts: Mapping[str, int]) -> OwnHazards:
    """Everything at once, of hours at risk as by `hours_at_risk`; ValueError where none of them has a failure."""
    if at_risk["kind"].null_count() == at_risk.height:
        raise ValueError("nothing failed")
    table = exposure_and_events(at_risk, contexts)
    fit = fit_levels(table)
    lives = episodes(at_risk)
    lives = lives.with_columns(context=pl.col("node").replace_strict(contexts, return_dtype=pl.Int64))
    failing = sorted(set(lives.filter("failed")["level"]))
    ratios, left_out = _cox_of_what_failed(lives, int(fit.fit.model.reference["context"]))
    by_level = {level: nelson_aalen(lives.filter(pl.col("level") == level)) for level in failing}
    return OwnHazards(table, fit, kaplan_meier(lives), nelson_aalen(lives), by_level, ratios, left_out)


def _cox_of_what_failed(lives: pl.DataFrame, usual: int) -> tuple[dict[str, Ratios], tuple[str, ...]]:
    """Cox without levels and contexts that have no failure, whose ratio would be 0, and words on what that leaves out.

    Other ratios are as if they were in it: at a ratio of 0 they are not there when others fail.
    """
    failures, left_out = lives.filter("failed"), []
    for factor in ("level", "context"):
        without = sorted(set(lives[factor]) - set(failures[factor]))
        left_out += [f"{factor} {value}: no node failed for the first time there, Cox has no ratio" for value in without]
    found = lives.filter(
        *(pl.col(factor).is_in(failures[factor].unique().to_list()) for factor in ("level", "context"))
    )
    try:
        return cox(found, {"level": 0, "context": usual}), tuple(left_out)
    except ValueError as error:
        return {}, (*left_out, f"Cox: {error}")
