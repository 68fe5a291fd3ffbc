"""Titan: 18,837 old GPUs, columns as tenants, against the hazard ratios that Ostrouchov et al. published (SC '20).

The published model is Cox's on column, row, cage, slot and node: 43 coefficients. Its sufficient statistics under the
piecewise-exponential model are six one-way tables of deaths, which is all that is released. The unit of privacy is
one GPU, and a death counts once in each table.

The judged interval says where the answer lies that the same data give without privacy: published and replayed
coefficients rest on the same deaths, so only noise separates them. The wider interval for the population is reported
too.
"""

import csv
import gzip
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from crypto.life_table import Dimension, Floats
from provider_server.analysis.bands import bands_from_departures
from provider_server.analysis.hazard import Cells, HazardFit, Kind, Model, fit_hazard
from provider_server.leases import Slices
from provider_server.planning import MarginalSpec, PlanSettings
from provider_server.release import Release
from simulation.replay import DELTA, DataError, Life, Replay

PLACES = {"col": 25, "row": 8, "cage": 3, "slot": 8, "node": 4}
MAX_BANDS = 30
HOURS_PER_DAY = 24.0
# The error of a level's log hazard ratio goes with noise over deaths per level, so a table gets budget in proportion to
# its number of levels; the baseline needs least, since every coefficient averages over it.
WEIGHTS = {"col": 0.5, "row": 0.15, "cage": 0.05, "slot": 0.15, "node": 0.1, "band": 0.05}
PUBLISHED = "published_hazard_ratios.csv"
NO_PRIVACY_EPSILON = 1.0  # stands in the plan when noise is switched off; nothing depends on it


@dataclass(frozen=True)
class TitanResult:
    """Errors of 43 log hazard ratios; over several seeds, the worst maximum and the mean of the others."""

    epsilon: float | None
    delta: float | None
    seeds: int
    bands: int
    max_abs_log_hr_error: float
    mean_abs_log_hr_error: float
    interval_coverage: float
    population_interval_coverage: float
    seconds: float

    @property
    def json(self) -> Mapping[str, object]:
        """Stable keys."""
        return {"data": "titan", **asdict(self)}


def replay_titan(file: Path, epsilon: float | None, seeds: int) -> Iterator[TitanResult | None]:
    """Yields None after each seed, for progress, then the result. DataError for a file that is not Titan's."""
    began = time.monotonic()
    lives = _read_lives(file)
    published = _read_published(file.parent / PUBLISHED)
    edges = bands_from_departures(np.array([life.hours for life in lives]), MAX_BANDS, day=HOURS_PER_DAY)
    settings = PlanSettings(
        epsilon=NO_PRIVACY_EPSILON if epsilon is None else epsilon,
        delta=DELTA,
        cohort_minimum=1,
        noise_shares=1,
        band_edges_hours=tuple(edges),
        marginals=tuple(MarginalSpec(name, (name,), (), weight) for name, weight in WEIGHTS.items()),
    )
    levels = {name: tuple(str(level) for level in range(count)) for name, count in PLACES.items()}
    with tempfile.TemporaryDirectory() as root:
        replay = Replay(Path(root), lives, settings, levels, private=epsilon is not None, rounds=seeds)
        cells, fits = _cells(replay.slices, levels), []
        with closing(replay):
            for _ in range(seeds):
                fits.append(_fit(cells, replay.round()))
                yield None
    yield _result(fits, published, epsilon, len(edges) - 1, time.monotonic() - began)


def _fit(cells: Cells, release: Release) -> HazardFit:
    """Without noise there is nothing that a prior would have to hold in check."""
    quiet = not any(table.noise_variance.any() for table in release.tables)
    terms = tuple((name,) for name in WEIGHTS)
    return fit_hazard(cells, release.tables, Model(terms, prior_sd=np.inf) if quiet else Model(terms))


def _cells(slices: Slices, levels: Mapping[str, tuple[str, ...]]) -> Cells:
    """One cell per GPU and band with exposure: the provider's own knowledge, in full resolution."""
    lease, band = np.nonzero(slices.node_hours > 0)
    dimensions = [Dimension(name, of) for name, of in levels.items()]
    dimensions.append(Dimension("band", tuple(str(number) for number in range(slices.node_hours.shape[1]))))
    places = [np.array([int(life.labels[name]) for life in slices.leases], np.intp)[lease] for name in levels]
    return Cells(tuple(dimensions), np.array([*places, band.astype(np.intp)]), slices.node_hours[lease, band])


def _result(
    fits: list[HazardFit], published: Mapping[tuple[str, str], float], epsilon: float | None, bands: int, seconds: float
) -> TitanResult:
    errors = np.array([_errors(fit, published, "noise") for fit in fits])
    population = np.array([_errors(fit, published, "population") for fit in fits])
    wide = float(population[..., 1].mean())
    return TitanResult(
        epsilon=epsilon,
        delta=None if epsilon is None else DELTA,
        seeds=len(fits),
        bands=bands,
        max_abs_log_hr_error=float(errors[..., 0].max()),
        mean_abs_log_hr_error=float(errors[..., 0].mean()),
        interval_coverage=wide if epsilon is None else float(errors[..., 1].mean()),
        population_interval_coverage=wide,
        seconds=seconds,
    )


def _errors(fit: HazardFit, published: Mapping[tuple[str, str], float], kind: Kind) -> Floats:
    """Absolute error of each log hazard ratio and whether its interval covers the published one; shape (43, 2)."""
    rows = []
    for place in PLACES:
        names, ratios = fit.ratios(place, kind=kind)
        low, high = ratios.interval()
        for (level,), ratio, below, above in zip(names, ratios.value, low, high, strict=True):
            truth = published[place, level]
            rows.append((abs(np.log(ratio) - np.log(truth)), float(below <= truth <= above)))
    return np.array(rows)


def _read_lives(file: Path) -> list[Life]:
    needed = {"SN", "time", "dead", "dead_dbe", "batch", *PLACES}
    with gzip.open(file, "rt", newline="") if file.suffix == ".gz" else file.open(newline="") as text:
        reader = csv.DictReader(text)
        if not needed <= set(reader.fieldnames or ()):
            raise DataError(f"{file}: columns {sorted(needed - set(reader.fieldnames or ()))} are missing")
        return [_life(row, number) for number, row in enumerate(reader) if row["batch"] == "old"]


def _life(row: Mapping[str, str], number: int) -> Life:
    died_of = "ecc_error" if row["dead_dbe"] == "TRUE" else "cuda_error"
    return Life(
        owner=f"column {int(row['col']):02d}",
        unit=f"{row['SN']}/{number}",
        hours=float(row["time"]) / 3600,
        reason=died_of if row["dead"] == "TRUE" else None,
        labels={place: row[place] for place in PLACES},
    )


def _read_published(file: Path) -> dict[tuple[str, str], float]:
    if not file.exists():
        raise DataError(f"{file} is missing: it holds the published hazard ratios", hint="keep it beside the lifetimes")
    with file.open(newline="") as text:
        return {(row["variable"], row["level"]): float(row["pub_hr"]) for row in csv.DictReader(text)}
