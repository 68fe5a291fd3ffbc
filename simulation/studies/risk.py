"""Do nodes fail as often as is foretold, and what are long jobs spared by a scheduler that goes by it?

Each day every node that is up gets the probabilities of `nodes risk`, from what was known then; the second half of the
time judges. Of each horizon: slope (1 is right, below it risks are spread too far), Brier score beside that of the
fleet's mean, and the ratio of failures to those foretold; `unbent` without the bend, `isotonic` with isotonic steps
on the same past instead of it.

`interruptions`: long jobs of so many hours take the nodes of the least risk when they begin, short ones the others
(`share`); `blind` is any placement that knows nothing. Both use every node as much as before. `fewer` is the share of
interruptions of long jobs that is avoided.

Fleets are those of `node_faults.toml`, which are of another form than the model, and the trace if it is given. The
second half of that is no unseen half: it was looked at about five times while the bend was made, and that early models
weigh less was chosen for what it showed there. The prior widths are of the first half and of simulated fleets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import typer
from scipy.optimize import isotonic_regression

from federation.base.console import InputFile
from provider_server.fleet.analysis.node_risk import (
    DAY_H,
    HORIZONS,
    PAST_H,
    TINY,
    WEEK_H,
    bent,
    forecasts,
)
from provider_server.fleet.analysis.risk_calibration import apart, calibrations
from provider_server.fleet.outage_files import read_outages
from simulation.cloud.node_faults import fitted, fleet_outages
from simulation.studies.study import Quick, Seed, Seeds, Table, tracked

NODES, DAYS = 400, 348
HARDWARE = ("Hardware Failure",)
QUICK_NODES, QUICK_DAYS = 120, 120
SHARES, LONG_H = (0.2, 0.5), (24, 168)
LEAST, MOST = 1e-5, 0.9  # of isotonic steps, which would foretell never and always


@dataclass(frozen=True)
class HorizonRow:
    """Forecasts of one horizon in the second half; `log_loss` is over all of them."""

    fleet: str
    how: str
    hours: int
    failures: int
    slope: float | None
    slope_low: float | None
    slope_high: float | None
    brier: float
    brier_usual: float
    seen_over_foretold: float
    log_loss: float


@dataclass(frozen=True)
class InterruptionRow:
    """Failures that long jobs meet, of `failures` in all."""

    fleet: str
    long_hours: int
    short_share: float
    failures: int
    blind: float
    by_risk: float
    fewer: float


@dataclass(frozen=True)
class RiskFigures:
    """All fleets together of each kind."""

    horizons: tuple[HorizonRow, ...]
    interruptions: tuple[InterruptionRow, ...]


def isotonic(past: pl.DataFrame) -> pl.DataFrame:
    """Forecasts by isotonic steps, which are fitted each week to those of a day that were over by then."""
    first_h = float(past["at_h"].min())  # type: ignore[arg-type]
    found = []
    for (week,), part in past.with_columns(week=((pl.col("at_h") - first_h) // WEEK_H)).group_by(
        "week", maintain_order=True
    ):
        at_h = first_h + WEEK_H * float(week)
        over = (pl.col("at_h") + pl.col("hours") <= at_h) & (pl.col("at_h") >= at_h - PAST_H)
        told = part["probability"].to_numpy().copy()
        for hours in HORIZONS:
            known = past.filter(over & (pl.col("hours") == hours)).sort("probability")
            mine = part["hours"].to_numpy() == hours
            if known["failed"].any() and mine.any():
                steps = isotonic_regression(known["failed"].to_numpy().astype(float)).x
                told[mine] = np.clip(np.interp(told[mine], known["probability"].to_numpy(), steps), LEAST, MOST)
        found.append(part.drop("week").with_columns(probability=told))
    return pl.concat(found)


def horizon_rows(fleet: str, told: Mapping[str, Sequence[pl.DataFrame]]) -> list[HorizonRow]:
    """Of one fleet or of several together, whose nodes have names of their own."""
    rows = []
    for how, parts in told.items():
        every = pl.concat(parts)
        for one in calibrations(every):
            own = apart(every, one.hours)
            chance = np.clip(own["probability"].to_numpy(), TINY, 1.0 - TINY)
            loss = -np.where(own["failed"].to_numpy(), np.log(chance), np.log1p(-chance)).sum()
            named = {name: getattr(one, name) for name in ("hours", "failures", "slope", "slope_low", "slope_high")}
            ratio = one.failures / one.predicted
            rows.append(HorizonRow(fleet, how, **named, brier=one.brier, brier_usual=one.brier_usual,
                                   seen_over_foretold=ratio, log_loss=float(loss)))  # fmt: skip
    return rows


def interruption_rows(fleet: str, parts: Sequence[pl.DataFrame]) -> list[InterruptionRow]:
    """By what was told."""
    rows = []
    for hours in LONG_H:
        own = [apart(one, hours).with_columns(fleet=pl.lit(number)) for number, one in enumerate(parts)]
        starts = pl.concat(own)
        place = (pl.col("probability").rank("ordinal").over("fleet", "at_h") - 1) / pl.len().over("fleet", "at_h")
        ranked, failures = starts.with_columns(place=place), int(starts["failed"].sum())
        for share in SHARES:
            met = float(ranked.filter(pl.col("place") < 1.0 - share)["failed"].sum())
            blind = (1.0 - share) * failures
            rows.append(InterruptionRow(fleet, hours, share, failures, blind, met, 1.0 - met / blind))
    return rows


def judged(
    outages: pl.DataFrame, nodes: Sequence[str], days: float, kinds: Sequence[str] = ()
) -> dict[str, pl.DataFrame]:
    """Forecasts of the second half, by how they are made."""
    past = forecasts(outages, nodes, (0.0, days * DAY_H), 0.0, kinds)
    made = {"bent": bent(past), "unbent": past, "isotonic": isotonic(past)}
    return {how: one.filter(pl.col("at_h") >= days * DAY_H / 2.0) for how, one in made.items()}


def run(
    outages: Annotated[
        Path | None, typer.Argument(click_type=InputFile(), help="A trace of outages.", show_default=False)
    ] = None,
    seed: Seed = 0,
    seeds: Seeds = 10,
    *,
    quick: Quick = False,
) -> Table:
    """Slope and Brier score of the probabilities that nodes fail, and interruptions of long jobs placed by them."""
    count, days = (QUICK_NODES, QUICK_DAYS) if quick else (NODES, DAYS)
    rows = read_outages(outages).rows if outages else None
    drawn = []
    for number in tracked(range(seed, seed + (min(seeds, 2) if quick else seeds)), min(seeds, 2) if quick else seeds):
        made = fleet_outages(fitted(), count, days * DAY_H, np.random.default_rng([number, 30]))
        named = made.with_columns(node=pl.col("node") + f"/{number}")
        drawn.append(judged(named, [f"node-{node}/{number}" for node in range(count)], days))
    fleets = {"simulated": {how: [one[how] for one in drawn] for how in drawn[0]}}
    if outages and rows is not None:
        names = sorted(set(rows["node"]))
        nodes = names + [f"never down {number}" for number in range(NODES - len(names))]
        for name, kinds in ((outages.name, ()), (f"{outages.name}, hardware", HARDWARE)):
            fleets[name] = {how: [one] for how, one in judged(rows, nodes, DAYS, kinds).items()}
    return Table(
        RiskFigures(
            tuple(row for name, told in fleets.items() for row in horizon_rows(name, told)),
            tuple(row for name, told in fleets.items() for row in interruption_rows(name, told["bent"])),
        )
    )
