"""Lung: 228 patients of the NCCTG trial, institutions as tenants; one survival curve against pooled Kaplan–Meier.

The data come with lifelines (`load_lung`), so no file is needed. When a patient left the study is the provider's
knowledge, as a lease's end is; whether it was by death is the institution's. Released are deaths by age band, with
discrete Laplace noise, since one patient adds one to one cell. The curve is Kaplan–Meier's with each band's deaths
spread over its departures (`simulation.replay.survival`), which makes it fall and stay within [0, 1] without a
projection afterwards.

The number of bands is the one with the least error at epsilon 1 if deaths are drawn at random for the same departures
(ten smooth shares of deaths). Errors with the real deaths were seen beside these; from 3 to 8 bands they hardly differ.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats
from federation.protocol.plan import Mechanism
from provider_server.fleet.release import Release
from provider_server.rounds.planning import MarginalSpec
from simulation.replay.bands import band_of, quantile_bands
from simulation.replay.lives import Life, replaying, settings_of
from simulation.replay.survival import SurvivalCurve, survival_curve

BANDS = 6
HOURS_PER_DAY = 24.0
DIED = 1  # of the column `status`; elsewhere in the literature the same column says 2
EVERYBODY = "lung"


@dataclass(frozen=True)
class LungResult:
    """Root mean square distances from the pooled curve, over times of departure and over days; means over seeds."""

    data: Literal["lung"] = field(default="lung", init=False)
    epsilon: float | None
    seeds: int
    institutions: int
    patients: int
    deaths: int
    bands: int
    rmse_survival: float
    worst_seed_rmse_survival: float
    rmse_survival_over_days: float
    max_abs_survival_error: float
    rmse_survival_of_bands_alone: float
    interval_coverage: float
    seconds: float


def replay_lung(epsilon: float | None, seeds: int) -> Iterator[LungResult | None]:
    """Yields None after each seed, for progress, then the result."""
    began = time.monotonic()
    lives = read_lives()
    hours = np.array([life.hours for life in lives])
    edges = quantile_bands(hours, BANDS)
    settings = settings_of(
        epsilon, Mechanism.DISCRETE_LAPLACE, edges, (MarginalSpec("survival", ("study", "band"), (), 1.0),)
    )
    curves = []
    levels = {"study": (EVERYBODY,)}
    with replaying(lives, settings, levels, private=epsilon is not None, rounds=seeds) as replay:
        for _ in range(seeds):
            curves.append(_curve(hours, replay.round()))
            yield None
    yield _result(lives, edges, curves, epsilon, time.monotonic() - began)


def _curve(hours: Floats, release: Release) -> SurvivalCurve:
    counts = release.table("survival").at("study", EVERYBODY)
    return survival_curve(hours, np.array(release.plan.band_edges_hours), counts.events, counts.noise_variance)


def _result(
    lives: Sequence[Life], edges: Floats, curves: Sequence[SurvivalCurve], epsilon: float | None, seconds: float
) -> LungResult:
    hours = np.array([life.hours for life in lives])
    died = np.array([life.reason is not None for life in lives])
    times, days = curves[0].times, np.arange(1.0, hours.max() / HOURS_PER_DAY + 1.0) * HOURS_PER_DAY
    pooled, daily = (kaplan_meier(hours, died, grid) for grid in (times, days))
    errors = np.array([curve.survival - pooled for curve in curves])
    by_seed = np.sqrt(np.mean(errors**2, axis=1))
    by_day = [rms(curve.at(days) - daily) for curve in curves]
    deaths = np.bincount(band_of(hours[died], edges), minlength=len(edges) - 1).astype(np.float64)
    exact = survival_curve(hours, edges, deaths, np.zeros(len(deaths)))
    inside = [np.mean((curve.low <= pooled) & (pooled <= curve.high)) for curve in curves]
    return LungResult(
        epsilon=epsilon,
        seeds=len(curves),
        institutions=len({life.owner for life in lives}),
        patients=len(lives),
        deaths=int(died.sum()),
        bands=len(edges) - 1,
        rmse_survival=float(by_seed.mean()),
        worst_seed_rmse_survival=float(by_seed.max()),
        rmse_survival_over_days=float(np.mean(by_day)),
        max_abs_survival_error=float(np.abs(errors).max()),
        rmse_survival_of_bands_alone=rms(exact.survival - pooled),
        interval_coverage=float(np.mean(inside)),
        seconds=seconds,
    )


def rms(errors: Floats) -> float:
    """Root mean square of `errors`."""
    return float(np.sqrt(np.mean(errors**2)))


def kaplan_meier(hours: Floats, died: NDArray[np.bool_], grid: Floats) -> Floats:
    """lifelines' estimate on the pooled patients, at the times `grid`."""
    from lifelines import KaplanMeierFitter

    return np.asarray(KaplanMeierFitter().fit(hours, died).survival_function_at_times(grid), np.float64)


def read_lives() -> list[Life]:
    """One life per patient; those whose institution is not known share one tenant."""
    from lifelines.datasets import load_lung

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas on how lifelines reads its own file
        table = load_lung()
    columns = zip(table["inst"].fillna(0), table["time"], table["status"], strict=True)
    return [
        Life(
            owner=f"institution {int(institution):02d}",
            unit=f"patient {number}",
            hours=float(days) * HOURS_PER_DAY,
            reason="unknown" if int(status) == DIED else None,
            labels={"study": EVERYBODY},
        )
        for number, (institution, days, status) in enumerate(columns)
    ]
