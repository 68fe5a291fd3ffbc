"""How likely each node fails within the next hour, day and week: the hazard of `probation`, held to its own past.

    outages ─ spells ─ probation ─▶ hazard of every node over the next hours ─▶ probability ─ Bend ─▶ probability told
    the same, from what was known then, a day after the other ─ forecasts ─▶ Bend, `risk_calibration`

A node's hazard is that of `probation`: rate · ratio(time since it came back) · gamma with shape a + K and rate a + H.
Its first failure within the next hours has the probability 1 - ((a + H) / (a + H + Λ)) ^ (a + K), where Λ is what a
usual node expects in these hours.

Fleets change and histories are short, so a model is overconfident: risks lie less far apart than it says. `Bend` draws
them together: log hazard → middle + level + slope · (log hazard - middle), by the maximum of the likelihood of the
forecasts of the last `PAST_H` hours, drawn towards doing nothing as `LEVEL_SD` and `SLOPE_SD` say. Weeks differ as a
whole, so that they tell less of the level than single nodes would; and a model that knew half the failures was taken to
be twice as far off. It is fitted on forecasts of a day, whose outcomes are many and do not overlap, and holds for all
horizons alike.

Guarantees. Pure. A forecast knows nothing at or after its time, nor does its bend. A bend keeps the order of nodes, and
a longer horizon never has a lower probability. Without outcomes it changes nothing.

Not promised: what the fleet has never seen.

Source: Dawid, JRSS A 147, 1984 (prequential forecasts); Cox, Biometrika 45, 1958 (the slope). Isotonic steps (Zadrozny
and Elkan, KDD 2002) have less likelihood on the outcomes of half a year of 400 nodes: `pharoah-sim study risk`.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from federation.protocol.known_rates import experience
from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.probation import Probation, fit_probation, shipped, standing
from provider_server.fleet.analysis.recurrent import Spells, spells

HORIZONS = (1, 24, 168)
LEARNT_ON = 24  # hours of the forecasts that bends are fitted to
DAY_H, WEEK_H = 24.0, 168.0  # from one forecast to the next, and from one fit to the next
PAST_H = 26 * WEEK_H
FEWEST = 10  # failures from which a fleet's own ratios are fitted
# Chosen by the likelihood of simulated fleets and of the first half of InfiniteHBD's trace (`pharoah-sim study risk`).
LEVEL_SD, SLOPE_SD = 0.1, 0.15
LEAST_SLOPE, MOST_SLOPE = 0.1, 1.0  # above 1 a longer horizon could have a lower probability
MOST_OFF = 5.0  # times as far off as now a model is taken to have been, at most
MOST_STEPS, LONGEST_STEP, SETTLED = 50, 0.5, 1e-6
TINY = 1e-12
FORECASTS = {
    "at_h": pl.Float64,
    "node": pl.String,
    "hours": pl.Int64,
    "probability": pl.Float64,
    "failed": pl.Boolean,
    "known": pl.Int64,
}


class Bend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of log hazards, and from how many failures that was learnt."""

    middle: float = 0.0
    level: float = 0.0
    slope: float = 1.0
    failures: int = 0

    def of(self, probability: Floats, hours: Floats | float) -> Floats:
        """The probabilities (N,) to be told instead of these."""
        hazard = np.exp(self.middle + self.level + self.slope * (_log_hazard(probability, hours) - self.middle))
        return np.asarray(-np.expm1(-hours * hazard), np.float64)


STRAIGHT = Bend()


def _log_hazard(probability: Floats, hours: Floats | float) -> Floats:
    known = np.clip(probability, TINY, 1.0 - TINY)
    return np.asarray(np.log(-np.log1p(-known) / hours), np.float64)


# ---- the hazard ahead ------------------------------------------------------------------------------------------------


def usual_failures(
    model: Probation, since_h: Floats, hours: Floats | float, least_ratio: Floats | float = 0.0
) -> Floats:
    """What a usual node expects in the next hours (N,); `since_h` (N,) since it was back, nan if it never went down.

    `least_ratio` is what a node's wear stands for: the ratio is that of the repair, or of the wear where that is more.
    """
    edges = np.array([0.0, *model.edges_h, np.inf])
    least, ahead_h = (np.broadcast_to(np.asarray(each, np.float64), since_h.shape) for each in (least_ratio, hours))
    since = np.nan_to_num(since_h)[:, None]
    inside = np.minimum(since + ahead_h[:, None], edges[1:]) - np.maximum(since, edges[:-1])
    again = (np.clip(inside, 0.0, None) * np.maximum(model.ratios, least[:, None])).sum(axis=1)
    ratio_hours = np.where(np.isnan(since_h), ahead_h * np.maximum(1.0, least), again)
    return np.asarray(model.rate_per_node_hour * ratio_hours, np.float64)


def probability(usual: Floats, failures: Floats, expected: Floats, variance: float) -> Floats:
    """That of a failure where a usual node expects `usual`, and this one had `failures` where it had `expected`."""
    shape = 1.0 / variance
    return np.asarray(-np.expm1(-(shape + failures) * np.log1p(usual / (shape + expected))), np.float64)


def model_of(found: Spells) -> Probation:
    """The fleet's own model; with few failures that of a public trace, at other fleets' rate and these failures."""
    failures = int(found.spells["failed"].sum())
    if failures >= FEWEST:
        return fit_probation(found)
    rate = experience().after(failures, found.at_risk_h).rate
    return msgspec.structs.replace(shipped(), rate_per_node_hour=rate, failures=failures)


# ---- the past --------------------------------------------------------------------------------------------------------


def known_at(outages: pl.DataFrame, at_h: float) -> pl.DataFrame:
    """The outages as they were known at an hour: none that began later, and no end that came later."""
    ended = pl.when(pl.col("end_h") < at_h).then(pl.col("end_h"))
    return outages.filter(pl.col("start_h") < at_h).with_columns(end_h=ended)


def forecasts(
    outages: pl.DataFrame,
    nodes: Sequence[str],
    window: tuple[float, float],
    from_h: float,
    kinds: Sequence[str] = (),
    every_h: float = DAY_H,
) -> pl.DataFrame:
    """What would have been foretold from an hour on, and what came: at_h, node, hours, probability (not bent), failed.

    Of nodes that were up, by the model of the last full week, which had `known` failures. `outages` as for `spells`, of
    the hours of the window. Forecasts whose time is not over at its end are left out.
    """
    start_h, end_h = window
    whole = spells(known_at(outages, end_h), nodes, start_h, end_h, kinds)
    found = [pl.DataFrame(schema=FORECASTS)]
    for begin, end in pairwise([*np.arange(max(from_h, start_h + DAY_H), end_h, WEEK_H), end_h]):
        model = model_of(spells(known_at(outages, begin), nodes, start_h, begin, kinds))
        for at_h in np.arange(begin, end, every_h):
            found += [_forecast(model, whole, float(at_h), hours) for hours in [_over(at_h, end_h)] if hours]
    return pl.concat(found)


def _over(at_h: float, end_h: float) -> list[int]:
    return [hours for hours in HORIZONS if at_h + hours <= end_h]


def _forecast(model: Probation, whole: Spells, at_h: float, horizons: Sequence[int]) -> pl.DataFrame:
    now = standing(model, whole, at_h)
    soon = whole.failures.filter(pl.col("start_h").is_between(at_h, at_h + max(horizons), closed="left"))
    first = soon.group_by("node").agg(in_h=pl.col("start_h").min() - at_h)
    in_h = now.join(first, on="node", how="left", maintain_order="left")["in_h"]
    since, failures, expected = (now[name].cast(pl.Float64).to_numpy() for name in ("since_h", "failures", "expected"))
    columns = [
        now.select(
            pl.lit(at_h).alias("at_h"),
            "node",
            pl.lit(hours, pl.Int64).alias("hours"),
            pl.Series("probability", _chance(model, since, failures, expected, hours)),
            (in_h < hours).fill_null(value=False).alias("failed"),
            pl.lit(model.failures, pl.Int64).alias("known"),
        )
        for hours in horizons
    ]
    return pl.concat(columns)


def _chance(model: Probation, since_h: Floats, failures: Floats, expected: Floats, hours: float) -> Floats:
    return probability(usual_failures(model, since_h, hours), failures, expected, model.frailty_variance)


def bend_of(past: pl.DataFrame, at_h: float, known: int) -> Bend:
    """The bend for a model of so many failures, by forecasts of the last `PAST_H` hours that are over by then."""
    over = (pl.col("at_h") + LEARNT_ON <= at_h) & (pl.col("at_h") >= at_h - PAST_H)
    told = past.filter((pl.col("hours") == LEARNT_ON) & over)
    failed = told["failed"].to_numpy().astype(np.float64)
    if not failed.any():
        return STRAIGHT
    log = _log_hazard(told["probability"].to_numpy(), LEARNT_ON)
    middle = float(np.average(log, weights=np.exp(log)))
    off = np.clip(max(known, FEWEST) / np.maximum(told["known"].to_numpy(), FEWEST), 1.0, MOST_OFF)
    design = np.stack([np.ones(len(log)), (log - middle) * off])
    weeks = np.unique((told["at_h"].to_numpy() - at_h) // WEEK_H, return_inverse=True)[1]
    first = _fitted(log, design, failed, 1.0)
    level, steeper = _fitted(log, design, failed, _dispersion(weeks, failed, _mean(log, design, first)[0]))
    return Bend(middle, float(level), float(np.clip(1.0 + steeper, LEAST_SLOPE, MOST_SLOPE)), int(failed.sum()))


def _fitted(log: Floats, design: Floats, failed: Floats, dispersion: float) -> Floats:
    """What to add to log hazards, in rows of `design`; outcomes tell `dispersion` times less of the first row."""
    precision, at = np.diag([dispersion * LEVEL_SD**-2, SLOPE_SD**-2]), np.zeros(2)
    for _ in range(MOST_STEPS):
        mean, change = _mean(log, design, at)
        spread = np.maximum(mean * (1.0 - mean), TINY)
        gradient = design @ (change * (failed - mean) / spread) - precision @ at
        step = np.linalg.solve((design * (change**2 / spread)) @ design.T + precision, gradient)
        at = at + np.clip(step, -LONGEST_STEP, LONGEST_STEP)
        if np.abs(step).max() < SETTLED:
            break
    return at


def _mean(log: Floats, design: Floats, at: Floats) -> tuple[Floats, Floats]:
    """The probability of each forecast (N,), and its derivative by the log hazard."""
    expected = LEARNT_ON * np.exp(np.minimum(log + at @ design, 0.0))
    return -np.expm1(-expected), expected * np.exp(-expected)


def _dispersion(weeks: NDArray[np.intp], failed: Floats, mean: Floats) -> float:
    """By how much more the failures of weeks vary than single nodes' would, at least 1."""
    seen, expected = np.bincount(weeks, failed), np.bincount(weeks, mean)
    return max(1.0, float(((seen - expected) ** 2 / np.maximum(expected, TINY)).sum() / max(len(seen) - 1, 1)))


def bent(past: pl.DataFrame) -> pl.DataFrame:
    """The forecasts as they would have been told: each by the bend of its week."""
    first_h = past["at_h"].min()
    weeks = past.with_columns(week=((pl.col("at_h") - first_h) / WEEK_H).floor())
    told = [past.clear()]
    for (week,), part in weeks.group_by("week", maintain_order=True):
        bend = bend_of(past, float(first_h) + WEEK_H * float(week), int(part["known"][0]))  # type: ignore[arg-type]
        chance = bend.of(part["probability"].to_numpy(), part["hours"].to_numpy().astype(np.float64))
        told.append(part.drop("week").with_columns(probability=chance))
    return pl.concat(told)
