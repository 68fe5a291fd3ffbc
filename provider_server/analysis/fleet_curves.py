"""Survival curves and Cox's model (by lifelines) of the fleet's own events, and all estimates from them together.

    at_risk_in_parts ─ gather ─┬─ episodes ─▶ Kaplan–Meier, Nelson–Aalen (also by level), Cox ─┐
                               └─ exposure_and_events ─ fit_levels ────────────────────────────┴─▶ OwnHazards

Guarantees:

- A node counts only in its hours at risk, not before it reports, while it is silent, or just after a failure.
- Curves and Cox's model use a node up to its first failure. Both models use the same hours; Cox's leaves the baseline
  free over time and pools nothing.

Not promised: simultaneous bands; a Cox ratio where nothing failed, which is left out and listed. lifelines is imported
at first use, since that takes a second.

Source: Kaplan and Meier, JASA 53, 1958; Aalen, Annals of Statistics 6, 1978; Kalbfleisch and Prentice, The Statistical
Analysis of Failure Time Data, 2002, §1.4 (bounds that stay within 0 and 1).
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.linalg import LinAlgWarning

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.analysis.fleet_events import Bands, LevelFit, exposure_and_events, fit_levels
from provider_server.analysis.hazard import Estimate
from provider_server.analysis.intervals import NORMAL_95

if TYPE_CHECKING:
    import pandas as pd

LEVEL_0: Mapping[str, int] = MappingProxyType({"level": 0})


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


def episodes(at_risk: pl.DataFrame, origin: int | None = None) -> pl.DataFrame:
    """Unbroken stretches at one level up to a node's first failure: node, start_h, stop_h, level, failed.

    Hours count from `origin`, by default the first at risk of any node. A stretch is at risk after its start and up to
    its stop: nodes that come later, or were silent for a while, are left-truncated.
    """
    ordered = at_risk.sort("node", "hour").with_columns(failed=pl.col("kind").is_not_null())
    before = pl.col("failed").cum_sum().over("node") - pl.col("failed").cast(pl.Int64)
    ordered = ordered.filter(before == 0)
    broken = (pl.col("hour").diff() != 1) | (pl.col("level").diff() != 0)
    ordered = ordered.with_columns(run=broken.fill_null(value=True).cum_sum().over("node"))
    begin = int(at_risk["hour"].to_numpy().min()) if origin is None else origin
    runs = ordered.group_by("node", "run", maintain_order=True).agg(
        start_h=pl.col("hour").min() - begin,
        stop_h=pl.col("hour").max() + 1 - begin,
        level=pl.col("level").first(),
        failed=pl.col("failed").any(),
    )
    return runs.drop("run")


def kaplan_meier(lives: pl.DataFrame) -> Curve:
    """Share of nodes without a failure so far; `lives` as by `episodes`."""
    times, failed, at_risk = _steps(lives)
    with np.errstate(divide="ignore"):  # where all that are left fail, the share and its bounds are 0
        logs = np.cumsum(np.log(at_risk - failed) - np.log(at_risk))
        gone = failed / (at_risk * (at_risk - failed))
    # Greenwood's formula, on the scale of log(−log S)
    spread = NORMAL_95 * np.sqrt(np.cumsum(np.where(np.isfinite(gone), gone, 0.0))) / logs
    low, high = (np.exp(logs * np.exp(sign * spread)) for sign in (-1.0, 1.0))
    return Curve(times, np.exp(logs), low, high, at_risk)


def nelson_aalen(lives: pl.DataFrame) -> Curve:
    """Failures that a node at risk all the time would have had to expect so far; `lives` as by `episodes`."""
    times, failed, at_risk = _steps(lives)
    share = failed / at_risk
    hazard = np.cumsum(share)
    spread = NORMAL_95 * np.sqrt(np.cumsum((1.0 - share) * share / at_risk)) / hazard
    return Curve(times, hazard, hazard * np.exp(-spread), hazard * np.exp(spread), at_risk)


def _steps(lives: pl.DataFrame) -> tuple[Floats, Floats, Floats]:
    """The times of failures, how many fail then, and how many are at risk: they came before, and did not leave."""
    start, stop = (np.sort(lives[name].to_numpy().astype(np.float64)) for name in ("start_h", "stop_h"))
    failed_at = lives.filter("failed")["stop_h"].to_numpy().astype(np.float64)
    times, failed = np.unique(failed_at, return_counts=True)
    at_risk = np.asarray(np.searchsorted(start, times) - np.searchsorted(stop, times), np.float64)
    return times, failed.astype(np.float64), at_risk


def cox(lives: pl.DataFrame, references: Mapping[str, int] = LEVEL_0) -> dict[str, Ratios]:
    """Cox's model of factors (columns of `lives` that `references` names) that may vary over time, all in one.

    Empty where no factor has a second value. ValueError where a value of one has hours, but no failure to go by, or
    where factors cannot be told apart.
    """
    import pandas as pd

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


def _cox(frame: "pd.DataFrame") -> tuple[Floats, Floats]:
    """Log ratios and standard errors (p,) of all columns but the four that every life has."""
    if frame.shape[1] == 4:
        return np.empty(0), np.empty(0)
    from lifelines import CoxTimeVaryingFitter
    from lifelines.exceptions import ConvergenceError, ConvergenceWarning

    names = {"id_col": "node", "event_col": "failed", "start_col": "start_h", "stop_col": "stop_h"}
    unsure = (ConvergenceWarning, LinAlgWarning)
    with warnings.catch_warnings():
        for kind in unsure:
            warnings.simplefilter("error", kind)
        # guessed before the fit, of a rare level or one where all nodes fail: the ratio is finite all the same
        warnings.filterwarnings("ignore", r"(?s).*very low variance", ConvergenceWarning)
        try:
            # a rare level with a large ratio makes Newton's whole first step overshoot for good
            fitted = CoxTimeVaryingFitter().fit(frame, fit_options={"step_size": 0.25}, **names)
        except (ConvergenceError, *unsure) as failure:
            raise ValueError("Cox's model cannot tell levels and contexts apart, or failures are too few") from failure
    return fitted.params_.to_numpy(np.float64), fitted.standard_errors_.to_numpy(np.float64)


# ---- all of it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gathered:
    """What estimates rest on, small enough for any fleet: no row for each hour.

    `table` as by `exposure_and_events`; `lives` as by `episodes`, with the node's context; `evidence`: factor ("level"
    or "context"), value, failures, node_hours, nodes; `kinds`: kind, failures, the most frequent first.
    """

    contexts: Mapping[str, int]
    table: LifeTable
    lives: pl.DataFrame
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


def gather(parts: Iterable[pl.DataFrame], contexts: Mapping[str, int], bands: Bands | None = None) -> Gathered:
    """All that estimates need of hours at risk, as by `hours_at_risk`, of some nodes after the other.

    `contexts` has the number of each node's context, `bands` are the third factor of the fit, seasons by default.
    """
    tables, lives, evidence, kinds = [], [], [], []
    for at_risk in parts:
        # of no node at all: polars takes an empty mapping for one to text
        own = pl.col("node").replace_strict(contexts or {"": 0}, return_dtype=pl.Int64)
        tables.append(exposure_and_events(at_risk, contexts, bands))
        lives.append(episodes(at_risk, origin=0).with_columns(context=own))
        evidence += [_evidence(at_risk, "level", pl.col("level").cast(pl.Int64)), _evidence(at_risk, "context", own)]
        kinds.append(at_risk.filter(pl.col("kind").is_not_null()).group_by("kind").agg(failures=pl.len()))
    table = _with_hours(sum(tables[1:], tables[0]))
    every = pl.concat(lives)
    every = every.with_columns(pl.col("start_h", "stop_h") - (every["start_h"].min() or 0))
    by_value = pl.concat(evidence).group_by("factor", "value").agg(pl.col("failures", "node_hours", "nodes").sum())
    by_kind = pl.concat(kinds).group_by("kind").agg(pl.col("failures").sum())
    order = by_kind.sort("failures", "kind", descending=True)
    return Gathered(contexts, table, every, by_value.sort("factor", "value"), order)


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
class OwnHazards:
    """Estimates from the fleet's own events, and what they rest on.

    `hazard_by_level` is Nelson–Aalen's, for a node that would stay at a level all the
    time. `cox` has "level" and "context" where there is a ratio, and holds for first failures; `left_out` says in words
    what is not in it, and why.
    """

    seen: Gathered
    fit: LevelFit
    survival: Curve
    hazard: Curve
    hazard_by_level: Mapping[int, Curve]
    cox: Mapping[str, Ratios]
    left_out: tuple[str, ...]


def own_hazards(seen: Gathered) -> OwnHazards:
    """Everything at once; ValueError where no hour at risk has a failure."""
    if not seen.failures:
        raise ValueError("no failures")
    fit, lives = fit_levels(seen.table), seen.lives
    failing = sorted(set(lives.filter("failed")["level"]))
    ratios, left_out = _cox_of_what_failed(lives, int(fit.fit.model.reference["context"]))
    by_level = {level: nelson_aalen(lives.filter(pl.col("level") == level)) for level in failing}
    return OwnHazards(seen, fit, kaplan_meier(lives), nelson_aalen(lives), by_level, ratios, left_out)


def _cox_of_what_failed(lives: pl.DataFrame, usual: int) -> tuple[dict[str, Ratios], tuple[str, ...]]:
    """Cox without levels and contexts that have no failure, whose ratio would be 0, and words on what that leaves out.

    Other ratios are as if they were in it: at a ratio of 0 they are not there when others fail.
    """
    failures, left_out = lives.filter("failed"), []
    for factor in ("level", "context"):
        without = sorted(set(lives[factor]) - set(failures[factor]))
        left_out += [f"{factor} {value} by Cox: no node failed there for the first time" for value in without]
    found = lives.filter(
        *(pl.col(factor).is_in(failures[factor].unique().to_list()) for factor in ("level", "context"))
    )
    try:
        return cox(found, {"level": 0, "context": usual}), tuple(left_out)
    except ValueError as error:
        return {}, (*left_out, f"Cox: {error}")
