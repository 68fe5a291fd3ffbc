"""Whether nodes fail as often as was foretold: Brier score, slope and a table of reliability, by horizon.

Forecasts of a week are looked at once a week, those of a day once a day, so that no failure counts twice. `slope` is
Cox's: the log odds of failures by the log odds told; below one, risks were spread too far. Its interval takes nodes as
the independent units (Liang and Zeger's sandwich). Bins hold equally many failures foretold; intervals of their shares
are Wilson's.

Pure. Source: Brier, Monthly Weather Review 78, 1950; Cox, Biometrika 45, 1958; Liang and Zeger, Biometrika 73, 1986.
"""

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.intervals import NORMAL_95
from provider_server.fleet.analysis.node_risk import DAY_H, HORIZONS, TINY

BINS, FEWEST_A_BIN = 10, 3.0  # failures foretold
FEWEST = 5  # failures below which there is no slope
MOST_STEPS, SETTLED = 50, 1e-8


class Reliability(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bin of forecasts: mean probability, share of them that failed with its 95% interval, and how many they are."""

    hours: int
    predicted: float
    observed: float
    low: float
    high: float
    forecasts: int


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All forecasts of a horizon; `brier_usual` is that of the mean for all nodes. No slope where few have failed."""

    hours: int
    forecasts: int
    failures: int
    predicted: float
    brier: float
    brier_usual: float
    slope: float | None
    slope_low: float | None
    slope_high: float | None


def apart(told: pl.DataFrame, hours: int) -> pl.DataFrame:
    """The forecasts of a horizon whose times do not overlap."""
    own = told.filter(pl.col("hours") == hours)
    return own.filter((pl.col("at_h") - pl.col("at_h").min()) % hours < 1.0) if hours > DAY_H else own


def calibrations(told: pl.DataFrame) -> list[Calibration]:
    """For each horizon that has forecasts."""
    return [_calibration(hours, own) for hours in HORIZONS if not (own := apart(told, hours)).is_empty()]


def _calibration(hours: int, own: pl.DataFrame) -> Calibration:
    chance, failed = _columns(own)
    share = failed.mean()
    slope = low = high = None
    if failed.sum() >= FEWEST:
        slope, sd = _slope(chance, failed, own["node"].rank("dense").to_numpy().astype(np.intp) - 1)
        low, high = slope - NORMAL_95 * sd, slope + NORMAL_95 * sd
    return Calibration(
        hours=hours,
        forecasts=len(chance),
        failures=int(failed.sum()),
        predicted=float(chance.sum()),
        brier=float(((chance - failed) ** 2).mean()),
        brier_usual=float(share * (1.0 - share)),
        slope=slope,
        slope_low=low,
        slope_high=high,
    )


def _columns(own: pl.DataFrame) -> tuple[Floats, Floats]:
    return own["probability"].to_numpy(), own["failed"].to_numpy().astype(np.float64)


def _slope(chance: Floats, failed: Floats, unit: NDArray[np.intp]) -> tuple[float, float]:
    """The slope and its standard error; `unit` numbers the nodes."""
    known = np.clip(chance, TINY, 1.0 - TINY)
    design, at = np.stack([np.ones(len(known)), np.log(known / (1.0 - known))]), np.array([0.0, 1.0])

    def fitted() -> tuple[Floats, Floats]:
        mean = 1.0 / (1.0 + np.exp(-(at @ design)))
        return mean, (design * (mean * (1.0 - mean))) @ design.T

    for _ in range(MOST_STEPS):
        mean, information = fitted()
        step = np.linalg.solve(information, design @ (failed - mean))
        at = at + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < SETTLED:
            break
    mean, information = fitted()
    scores = np.stack([np.bincount(unit, row * (failed - mean)) for row in design])
    inverse = np.linalg.inv(information)
    return float(at[1]), float(np.sqrt((inverse @ scores @ scores.T @ inverse)[1, 1]))


def reliability(told: pl.DataFrame) -> list[Reliability]:
    """The bins of each horizon, the least probable first."""
    return [one for hours in HORIZONS for one in _bins(hours, *_columns(apart(told, hours)))]


def _bins(hours: int, chance: Floats, failed: Floats) -> list[Reliability]:
    total = float(chance.sum())
    if not total > 0:
        return []
    count = int(np.clip(total / FEWEST_A_BIN, 1, BINS))
    order = np.argsort(chance, kind="stable")
    place = np.minimum((np.cumsum(chance[order]) - chance[order] / 2.0) / total * count, count - 1).astype(np.intp)
    sizes, foretold, seen = (np.bincount(place, each, count) for each in (None, chance[order], failed[order]))
    return [
        Reliability(hours, float(told / size), float(own / size), *_wilson(own, size), int(size))
        for size, told, own in zip(sizes, foretold, seen, strict=True)
        if size
    ]


def _wilson(count: float, of: float) -> tuple[float, float]:
    share, spread = count / of, NORMAL_95**2 / of
    middle = (share + spread / 2.0) / (1.0 + spread)
    reach = NORMAL_95 / (1.0 + spread) * np.sqrt(share * (1.0 - share) / of + spread / of / 4.0)
    return float(max(middle - reach, 0.0)), float(middle + reach)
