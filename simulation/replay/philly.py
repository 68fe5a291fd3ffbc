"""Philly: 15,000 jobs of 136 users, users as tenants; survival by number of GPUs against the pooled Kaplan–Meier curve.

Durations are the provider's knowledge; which of the jobs failed is the users'. Only failures by bucket and age band
are released, and one job adds one count to one cell of one table. Where so little is asked of a unit, Laplace noise is
several times smaller than Gaussian noise of the same epsilon (docs/privacy.md), so that is what this plan uses.

A curve is reported while at least 5% of its bucket are still under observation: beyond, one single job moves it by more
than the tolerance, and no private answer can follow. The error over the full range is reported beside it.
"""

import csv
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from federation.base.clock import SECONDS_PER_HOUR
from federation.protocol.life_table import Floats
from federation.protocol.plan import Mechanism
from provider_server.fleet.release import Release
from provider_server.rounds.planning import MarginalSpec, PlanSettings
from simulation.replay.bands import quantile_bands
from simulation.replay.lives import DataError, Life, replaying, settings_of
from simulation.replay.survival import SurvivalCurve, survival_curve

BUCKETS = ("1", "2-4", "5-8", ">8")
JUDGED_JOBS = 1000
REPORTED_SHARE = 0.05
MAX_BANDS = 60


@dataclass(frozen=True)
class PhillyResult:
    """Largest distance of the curves from the pooled ones, over judged buckets, the worst of the seeds."""

    data: Literal["philly"] = field(default="philly", init=False)
    epsilon: float | None
    seeds: int
    users: int
    jobs: int
    bands: int
    judged_buckets: tuple[str, ...]
    max_abs_survival_error: float
    mean_over_seeds_max_abs_survival_error: float
    max_abs_survival_error_full_range: float
    interval_coverage: float
    seconds: float


def replay_philly(file: Path, epsilon: float | None, seeds: int) -> Iterator[PhillyResult | None]:
    """Yields None after each seed, for progress, then the result. DataError for a file that is not Philly's."""
    began = time.monotonic()
    lives = _read_lives(file)
    hours = np.array([life.hours for life in lives])
    settings = settings_of(
        epsilon,
        Mechanism.DISCRETE_LAPLACE,
        quantile_bands(hours, MAX_BANDS),
        (MarginalSpec("survival", ("bucket", "band"), (), 1.0),),
    )
    curves = []
    levels = {"bucket": BUCKETS}
    with replaying(lives, settings, levels, private=epsilon is not None, rounds=seeds) as replay:
        for _ in range(seeds):
            curves.append(_curves(lives, replay.round()))
            yield None
    yield _result(curves, lives, epsilon, settings, time.monotonic() - began)


def _curves(lives: Sequence[Life], release: Release) -> dict[str, SurvivalCurve]:
    """The released curve of every judged bucket."""
    table, edges = release.table("survival"), np.array(release.plan.band_edges_hours)
    curves = {}
    for bucket, hours in _hours_by_bucket(lives).items():
        counts = table.at("bucket", bucket)
        curves[bucket] = survival_curve(hours, edges, counts.events, counts.noise_variance)
    return curves


def _result(
    curves: Sequence[Mapping[str, SurvivalCurve]],
    lives: Sequence[Life],
    epsilon: float | None,
    settings: PlanSettings,
    seconds: float,
) -> PhillyResult:
    pooled = {bucket: _pooled(lives, bucket, curve) for bucket, curve in curves[0].items()}
    errors = np.array([_worst(own, pooled, REPORTED_SHARE) for own in curves])
    inside = [
        np.mean((curve.low <= pooled[bucket]) & (pooled[bucket] <= curve.high))
        for own in curves
        for bucket, curve in own.items()
    ]
    return PhillyResult(
        epsilon=epsilon,
        seeds=len(curves),
        users=len({life.owner for life in lives}),
        jobs=len(lives),
        bands=len(settings.band_edges_hours) - 1,
        judged_buckets=tuple(pooled),
        max_abs_survival_error=float(errors.max()),
        mean_over_seeds_max_abs_survival_error=float(errors.mean()),
        max_abs_survival_error_full_range=max(_worst(own, pooled, 0.0) for own in curves),
        interval_coverage=float(np.mean(inside)),
        seconds=seconds,
    )


def _worst(curves: Mapping[str, SurvivalCurve], pooled: Mapping[str, Floats], reported_share: float) -> float:
    """Largest distance from the pooled curves over buckets and times with at least that share still at risk."""
    return max(
        float(np.abs(curve.survival - pooled[bucket])[curve.at_risk >= reported_share * curve.at_risk[0]].max())
        for bucket, curve in curves.items()
    )


def _pooled(lives: Sequence[Life], bucket: str, curve: SurvivalCurve) -> Floats:
    """lifelines' Kaplan–Meier estimate on the pooled jobs, at the curve's times."""
    from lifelines import KaplanMeierFitter

    own = [life for life in lives if life.labels["bucket"] == bucket]
    fitter = KaplanMeierFitter().fit([life.hours for life in own], [life.reason is not None for life in own])
    return np.asarray(fitter.survival_function_at_times(curve.times), np.float64)


def _hours_by_bucket(lives: Sequence[Life]) -> dict[str, Floats]:
    hours = {bucket: np.array([life.hours for life in lives if life.labels["bucket"] == bucket]) for bucket in BUCKETS}
    return {bucket: own for bucket, own in hours.items() if len(own) >= JUDGED_JOBS}


def _read_lives(file: Path) -> list[Life]:
    needed = {"u_id", "user", "gpu_num", "run_time", "new_status"}
    with file.open(newline="") as text:
        reader = csv.DictReader(text)
        if not needed <= set(reader.fieldnames or ()):
            raise DataError(f"{file}: columns {sorted(needed - set(reader.fieldnames or ()))} are missing")
        return [_life(row) for row in reader]


def _life(row: Mapping[str, str]) -> Life:
    """A job; whoever cancelled one or let it pass did not let it fail."""
    return Life(
        owner=row["user"],
        unit=row["u_id"],
        hours=float(row["run_time"]) / SECONDS_PER_HOUR,
        reason="unknown" if row["new_status"] == "Failed" else None,
        labels={"bucket": _bucket(int(row["gpu_num"]))},
    )


def _bucket(gpus: int) -> str:
    return BUCKETS[0] if gpus == 1 else BUCKETS[1] if gpus <= 4 else BUCKETS[2] if gpus <= 8 else BUCKETS[3]
