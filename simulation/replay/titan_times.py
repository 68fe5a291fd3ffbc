"""Titan with times of leaving hidden as well: the same 43 hazard ratios, when no departure is public.

Released are deaths by place and by band, as in the replay with public times, and exits of any kind by place and band,
from which exposure is estimated (`simulation.replay.hidden_times`). The figures of label privacy at the same epsilon
stand beside. Public are the places, the number of GPUs and that nobody is looked at for more than `YEARS` years.

Exits get a quarter of the budget of each place: in a column of 750 GPUs and 200 deaths, one death more moves a ratio
about three times as far as one exit that moves by the spread of the bands. That share, bands of a year and odds that
are a product over places were chosen with the published ratios in view. Such a choice is not part of the epsilon.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from federation.protocol.life_table import Floats
from federation.protocol.plan import Mechanism
from provider_server.fleet.analysis.hazard import HazardFit
from provider_server.fleet.release import Release
from provider_server.rounds.planning import MarginalSpec, PlanSettings
from simulation.replay.hidden_times import DIED, expected_hours, hidden, plan_epsilon
from simulation.replay.lives import DELTA, Life, passed_on, replaying, settings_of
from simulation.replay.titan import (
    PLACES,
    PUBLISHED,
    WEIGHTS,
    TitanResult,
    cells_of,
    errors_of,
    fit_ratios,
    levels_of,
    read_old,
    read_published,
    replay_titan,
)

YEARS = 6
HOURS_PER_YEAR = 8766.0
EDGES = tuple(HOURS_PER_YEAR * year for year in range(YEARS + 1))
EXITS_SHARE = 0.25


@dataclass(frozen=True)
class TitanTimesResult:
    """Errors of 43 log hazard ratios with times hidden; `label_privacy_` with public times, at the same epsilon.

    `guessed_` is of the ratios that public times give with no budget, `crude_` the mean of those of no model at all.
    """

    data: Literal["titan"] = field(default="titan", init=False)
    hidden: Literal["deaths and times"] = field(default="deaths and times", init=False)
    epsilon: float | None
    delta: float | None
    seeds: int
    bands: int
    max_abs_log_hr_error: float
    mean_abs_log_hr_error: float
    label_privacy_max_abs_log_hr_error: float
    label_privacy_mean_abs_log_hr_error: float
    guessed_max_abs_log_hr_error: float
    guessed_mean_abs_log_hr_error: float
    mean_abs_log_hr: float
    seconds: float


def replay_titan_times(file: Path, epsilon: float | None, seeds: int) -> Iterator[TitanTimesResult | None]:
    """Yields None after each round, of which a seed has two, then the result. DataError as for label privacy."""
    began = time.monotonic()
    label = yield from passed_on(replay_titan(file, epsilon, seeds))
    lives, fits = hidden(read_old(file), EDGES[-1]), []
    levels = {**levels_of(PLACES), "reason": (DIED,)}
    with replaying(lives, settings(epsilon), levels, private=epsilon is not None, rounds=seeds) as replay:
        for _ in range(seeds):
            fits.append(_fit(lives, replay.round()))
            yield None
    yield _result(fits, read_published(file.parent / PUBLISHED), label, time.monotonic() - began)


def settings(epsilon: float | None) -> PlanSettings:
    """Deaths by place and by band, and exits by place and band, for `epsilon` of death and time together."""
    deaths = [MarginalSpec(name, (name, "reason"), (), (1.0 - EXITS_SHARE) * WEIGHTS[name]) for name in PLACES]
    exits = [MarginalSpec(f"{name}_exits", (name, "band"), (), EXITS_SHARE * WEIGHTS[name]) for name in PLACES]
    return settings_of(
        epsilon and plan_epsilon(epsilon, DELTA, Mechanism.DISCRETE_GAUSSIAN),
        Mechanism.DISCRETE_GAUSSIAN,
        EDGES,
        (*deaths, MarginalSpec("band", ("band", "reason"), (), WEIGHTS["band"]), *exits),
    )


def _fit(lives: Sequence[Life], release: Release) -> HazardFit:
    """The published model on released deaths, over the exposure that released exits let expect."""
    deaths = [release.table(name).at("reason", DIED) for name in WEIGHTS]
    exits = [release.table(f"{name}_exits") for name in PLACES]
    places = np.array([[int(life.labels[name]) for life in lives] for name in PLACES], np.intp)
    return fit_ratios(cells_of(lives, expected_hours(places, exits, np.array(EDGES)), levels_of(PLACES)), deaths)


def _result(
    fits: Sequence[HazardFit], published: Mapping[tuple[str, str], float], label: TitanResult, seconds: float
) -> TitanTimesResult:
    errors: Floats = np.array([errors_of(fit, published, "noise")[:, 0] for fit in fits])
    effects = [abs(np.log(ratio)) for (_, level), ratio in published.items() if level != "0"]
    return TitanTimesResult(
        epsilon=label.epsilon,
        delta=label.delta,
        seeds=label.seeds,
        bands=YEARS,
        max_abs_log_hr_error=float(errors.max()),
        mean_abs_log_hr_error=float(errors.mean()),
        label_privacy_max_abs_log_hr_error=label.max_abs_log_hr_error,
        label_privacy_mean_abs_log_hr_error=label.mean_abs_log_hr_error,
        guessed_max_abs_log_hr_error=label.guessed_max_abs_log_hr_error,
        guessed_mean_abs_log_hr_error=label.guessed_mean_abs_log_hr_error,
        mean_abs_log_hr=float(np.mean(effects)),
        seconds=seconds,
    )
