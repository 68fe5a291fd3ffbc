"""Titan: 18,837 old GPUs, columns as tenants, against the hazard ratios that Ostrouchov et al. published (SC '20).

The published model is Cox's on column, row, cage, slot and node: 43 coefficients. Its sufficient statistics under the
piecewise-exponential model are six one-way tables of deaths, which is all that is released. The unit of privacy is
one GPU, and a death counts once in each table.

The judged interval says where the answer lies that the same data give without privacy: published and replayed
coefficients rest on the same deaths, so only noise separates them. The wider interval for the population is reported
too.

With columns held out, the question is another one: which GPUs die first, in columns that no model has seen? Columns
modulo five are folds, old and new GPUs both take part, and one release by fold serves all five models: each is fitted
to the tables of the other four folds. Its interactions are a choice made with the held-out columns in view: eleven were
screened by concordance over all folds; only then did training folds choose among seven sets made of the best ones.
"""

import csv
import gzip
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from federation.base.clock import SECONDS_PER_HOUR
from federation.protocol.life_table import Dimension, Floats, LifeTable
from federation.protocol.plan import Mechanism
from provider_server.fleet.analysis.hazard import Cells, HazardFit, Kind, Model, fit_hazard, predict
from provider_server.fleet.exposure import Slices
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release
from provider_server.rounds.planning import MarginalSpec
from simulation.replay.bands import band_of, bands_from_departures
from simulation.replay.lives import DELTA, DataError, Life, replaying, settings_of

PLACES = {"col": 25, "row": 8, "cage": 3, "slot": 8, "node": 4}
MAX_BANDS = 30
HOURS_PER_DAY = 24.0
# The error of a level's log hazard ratio goes with noise over deaths per level, so a table gets budget in proportion to
# its number of levels; the baseline needs least, since every coefficient averages over it.
WEIGHTS = {"col": 0.5, "row": 0.15, "cage": 0.05, "slot": 0.15, "node": 0.1, "band": 0.05}
PUBLISHED = "published_hazard_ratios.csv"
NEW, OLD = "0", "1"
FOLDS = 5
COVARIATES = {"cage": 3, "row": 8, "slot": 8, "node": 4, "batch": 2}
HOLDOUT_BANDS = 8
INTERACTIONS = (("cage", "node"), ("cage", "slot"))
HOLDOUT_TERMS = (("cage",), ("row",), ("slot",), ("node",), ("batch",), ("band",), *INTERACTIONS)
HOLDOUT_PRIOR_SD = 0.5
HOLDOUT_WEIGHTS = {("cage", "node"): 0.25, ("cage", "slot"): 0.35, ("row",): 0.2, ("batch",): 0.1, ("band",): 0.1}
Published = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class TitanResult:
    """Errors of 43 log hazard ratios; over several seeds, the worst maximum and the mean of the others.

    `guessed_` is of the ratios that departure times alone give, with no budget: who left at a time of its own died.
    """

    data: Literal["titan"] = field(default="titan", init=False)
    epsilon: float | None
    delta: float | None
    seeds: int
    bands: int
    max_abs_log_hr_error: float
    mean_abs_log_hr_error: float
    interval_coverage: float
    population_interval_coverage: float
    guessed_deaths: int
    guessed_max_abs_log_hr_error: float
    guessed_mean_abs_log_hr_error: float
    seconds: float


@dataclass(frozen=True)
class HoldoutResult:
    """Concordance of predicted hazards with deaths in columns that were held out; means over seeds, and the worst."""

    data: Literal["titan"] = field(default="titan", init=False)
    holdout: Literal["column"] = field(default="column", init=False)
    epsilon: float | None
    seeds: int
    folds: int
    gpus: int
    deaths: int
    concordance: float
    worst_seed_concordance: float
    mean_fold_concordance: float
    lifelines_cox_concordance: float
    lifelines_cox_mean_fold_concordance: float
    lifelines_cox_interactions_concordance: float
    lifelines_cox_interactions_mean_fold_concordance: float
    seconds: float


def replay_titan(file: Path, epsilon: float | None, seeds: int) -> Iterator[TitanResult | None]:
    """Yields None after each seed, for progress, then the result. DataError for a file that is not Titan's."""
    began = time.monotonic()
    lives = read_old(file)
    published = read_published(file.parent / PUBLISHED)
    edges = bands_from_departures(np.array([life.hours for life in lives]), MAX_BANDS, day=HOURS_PER_DAY)
    settings = settings_of(
        epsilon,
        Mechanism.DISCRETE_GAUSSIAN,
        edges,
        tuple(MarginalSpec(name, (name,), (), weight) for name, weight in WEIGHTS.items()),
    )
    levels = levels_of(PLACES)
    with replaying(lives, settings, levels, private=epsilon is not None, rounds=seeds) as replay:
        cells, fits = cells_of(replay.slices.leases, replay.slices.node_hours, levels), []
        for _ in range(seeds):
            fits.append(fit_ratios(cells, replay.round().tables))
            yield None
    guessed = guessed_deaths(np.array([life.hours for life in lives]))
    attack = fit_ratios(cells, _one_way(cells, lives, edges, guessed))
    yield _result(fits, published, epsilon, (attack, int(guessed.sum())), len(edges) - 1, time.monotonic() - began)


def levels_of(counts: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The levels' names by dimension."""
    return {name: tuple(str(level) for level in range(count)) for name, count in counts.items()}


def guessed_deaths(hours: Floats) -> NDArray[np.bool_]:
    """Whether each unit left at a time of its own (n,), from its public `hours` (n,): units taken out share theirs."""
    _, own, counts = np.unique(hours, return_inverse=True, return_counts=True)
    return np.asarray(counts[own] == 1, np.bool_)


def _one_way(cells: Cells, lives: Sequence[Life], edges: Floats, died: NDArray[np.bool_]) -> list[LifeTable]:
    """Exact deaths along each dimension of the cells, if those of `died` (lives,) are the deaths."""
    hours = np.array([life.hours for life in lives])
    places = {name: _labels(lives, name) for name in PLACES} | {"band": band_of(hours, edges)}
    counts = {of: np.bincount(places[of.name][died], minlength=len(of)) for of in cells.dimensions}
    return [replace(LifeTable.zeros((of,)), events=count.astype(np.float64)) for of, count in counts.items()]


def replay_titan_holdout(file: Path, epsilon: float | None, seeds: int) -> Iterator[HoldoutResult | None]:
    """Yields None after each seed, for progress, then the result."""
    began = time.monotonic()
    lives = _read_lives(file)
    edges = bands_from_departures(np.array([life.hours for life in lives]), HOLDOUT_BANDS, day=HOURS_PER_DAY)
    settings = settings_of(
        epsilon,
        Mechanism.DISCRETE_LAPLACE,
        edges,
        tuple(MarginalSpec("_".join(term), ("fold", *term), (), weight) for term, weight in HOLDOUT_WEIGHTS.items()),
    )
    levels = levels_of(COVARIATES)
    scores = []
    public = {"fold": tuple(str(fold) for fold in range(FOLDS)), **levels}
    with replaying(lives, settings, public, private=epsilon is not None, rounds=seeds) as replay:
        for _ in range(seeds):
            scores.append(_held_out_scores(replay.slices, levels, lives, replay.round()))
            yield None
    yield _held_out_result(lives, scores, epsilon, began)


def _held_out_scores(
    slices: Slices, levels: Mapping[str, tuple[str, ...]], lives: Sequence[Life], release: Release
) -> Floats:
    """The log hazard (lives,) of each GPU in a model of the columns of all other folds."""
    fold = _labels(lives, "fold")
    where = np.array([*(_labels(lives, name) for name in levels), np.zeros(len(lives), np.intp)])
    scores = np.zeros(len(lives))
    own = np.array([int(life.labels["fold"]) for life in slices.leases], np.intp)
    for number in range(FOLDS):
        kept = own != number
        leases = [lease for lease, of in zip(slices.leases, kept, strict=True) if of]
        cells = cells_of(leases, slices.node_hours[kept], levels)
        others = [str(other) for other in range(FOLDS) if other != number]
        tables = [reduce(add, (table.at("fold", other) for other in others)) for table in release.tables]
        fit = fit_hazard(cells, tables, Model(HOLDOUT_TERMS, prior_sd=HOLDOUT_PRIOR_SD))
        held = fold == number
        scores[held] = np.log(predict(fit, Cells(cells.dimensions, where[:, held], np.ones(held.sum()))).value)
    return scores


def _held_out_result(
    lives: Sequence[Life], scores: Sequence[Floats], epsilon: float | None, began: float
) -> HoldoutResult:
    ours = np.array([_concordances(lives, score) for score in scores])
    cox = _concordances(lives, _cox_scores(lives, ()))
    crossed = _concordances(lives, _cox_scores(lives, INTERACTIONS))
    return HoldoutResult(
        epsilon=epsilon,
        seeds=len(scores),
        folds=FOLDS,
        gpus=len(lives),
        deaths=sum(life.reason is not None for life in lives),
        concordance=float(ours[:, 0].mean()),
        worst_seed_concordance=float(ours[:, 0].min()),
        mean_fold_concordance=float(ours[:, 1].mean()),
        lifelines_cox_concordance=cox[0],
        lifelines_cox_mean_fold_concordance=cox[1],
        lifelines_cox_interactions_concordance=crossed[0],
        lifelines_cox_interactions_mean_fold_concordance=crossed[1],
        seconds=time.monotonic() - began,
    )


def _concordances(lives: Sequence[Life], scores: Floats) -> tuple[float, float]:
    """lifelines' concordance of held-out scores over all GPUs together, and the mean of that of each fold."""
    from lifelines.utils import concordance_index

    hours = np.array([life.hours for life in lives])
    died = np.array([life.reason is not None for life in lives])
    folds = [_labels(lives, "fold") == number for number in range(FOLDS)]
    everywhere = np.ones(len(lives), bool)
    whole, *each = [concordance_index(hours[of], -scores[of], died[of]) for of in (everywhere, *folds)]
    return float(whole), float(np.mean(each))


def _cox_scores(lives: Sequence[Life], interactions: Sequence[tuple[str, str]]) -> Floats:
    """lifelines' Cox model, without privacy, fitted to the pooled rows of the other folds.

    It has our covariates, and those of our interactions that are asked for.
    """
    import pandas as pd
    from lifelines import CoxPHFitter

    single = {name: [(_labels(lives, name) == level) * 1.0 for level in range(1, k)] for name, k in COVARIATES.items()}
    crossed = [one * other for first, second in interactions for one in single[first] for other in single[second]]
    frame = pd.DataFrame(np.array([*(column for columns in single.values() for column in columns), *crossed]).T)
    hours, died = [life.hours for life in lives], [life.reason is not None for life in lives]
    fold, scores = _labels(lives, "fold"), np.zeros(len(lives))
    for number in range(FOLDS):
        train = frame.assign(hours=hours, died=died)[fold != number]
        cox = CoxPHFitter().fit(train, "hours", "died")
        scores[fold == number] = cox.predict_log_partial_hazard(frame[fold == number])
    return scores


def _labels(lives: Sequence[Life], name: str) -> NDArray[np.intp]:
    return np.array([int(life.labels[name]) for life in lives], np.intp)


def fit_ratios(cells: Cells, tables: Sequence[LifeTable]) -> HazardFit:
    """The published model on tables of deaths. Without noise a prior would have nothing to hold in check."""
    quiet = not any(table.noise_variance.any() for table in tables)
    terms = tuple((name,) for name in WEIGHTS)
    return fit_hazard(cells, tables, Model(terms, prior_sd=np.inf) if quiet else Model(terms))


def cells_of(units: Sequence[Lease | Life], hours: Floats, levels: Mapping[str, tuple[str, ...]]) -> Cells:
    """One cell per GPU and band with exposure: the provider's own knowledge, in full resolution.

    `hours` (units, bands) is how long each unit was there; `levels` those of each label.
    """
    unit, band = np.nonzero(hours > 0)
    dimensions = [Dimension(name, of) for name, of in levels.items()]
    dimensions.append(Dimension("band", tuple(str(number) for number in range(hours.shape[1]))))
    places = [np.array([int(one.labels[name]) for one in units], np.intp)[unit] for name in levels]
    return Cells(tuple(dimensions), np.array([*places, band.astype(np.intp)]), hours[unit, band])


def _result(
    fits: list[HazardFit],
    published: Published,
    epsilon: float | None,
    attack: tuple[HazardFit, int],
    bands: int,
    seconds: float,
) -> TitanResult:
    errors = np.array([errors_of(fit, published, "noise") for fit in fits])
    population = np.array([errors_of(fit, published, "population") for fit in fits])
    wide = float(population[..., 1].mean())
    guessed = errors_of(attack[0], published, "population")[:, 0]
    return TitanResult(
        epsilon=epsilon,
        delta=None if epsilon is None else DELTA,
        seeds=len(fits),
        bands=bands,
        max_abs_log_hr_error=float(errors[..., 0].max()),
        mean_abs_log_hr_error=float(errors[..., 0].mean()),
        interval_coverage=wide if epsilon is None else float(errors[..., 1].mean()),
        population_interval_coverage=wide,
        guessed_deaths=attack[1],
        guessed_max_abs_log_hr_error=float(guessed.max()),
        guessed_mean_abs_log_hr_error=float(guessed.mean()),
        seconds=seconds,
    )


def errors_of(fit: HazardFit, published: Published, kind: Kind) -> Floats:
    """Absolute error of each log hazard ratio and whether its interval covers the published one; shape (43, 2)."""
    rows = []
    for place in PLACES:
        names, ratios = fit.ratios(place, kind=kind)
        low, high = ratios.interval()
        for (level,), ratio, below, above in zip(names, ratios.value, low, high, strict=True):
            truth = published[place, level]
            rows.append((abs(np.log(ratio) - np.log(truth)), float(below <= truth <= above)))
    return np.array(rows)


def read_old(file: Path) -> list[Life]:
    """The old batch's lives, of which the published model is. DataError for a file that is not Titan's."""
    return [life for life in _read_lives(file) if life.labels["batch"] == OLD]


def _read_lives(file: Path) -> list[Life]:
    needed = {"SN", "time", "dead", "dead_dbe", "batch", *PLACES}
    with gzip.open(file, "rt", newline="") if file.suffix == ".gz" else file.open(newline="") as text:
        reader = csv.DictReader(text)
        if not needed <= set(reader.fieldnames or ()):
            raise DataError(f"{file}: columns {sorted(needed - set(reader.fieldnames or ()))} are missing")
        return [_life(row, number) for number, row in enumerate(reader)]


def _life(row: Mapping[str, str], number: int) -> Life:
    died_of = "ecc_error" if row["dead_dbe"] == "TRUE" else "cuda_error"
    return Life(
        owner=f"column {int(row['col']):02d}",
        unit=f"{row['SN']}/{number}",
        hours=float(row["time"]) / SECONDS_PER_HOUR,
        reason=died_of if row["dead"] == "TRUE" else None,
        labels={
            **{place: row[place] for place in PLACES},
            "batch": OLD if row["batch"] == "old" else NEW,
            "fold": str(int(row["col"]) % FOLDS),
        },
    )


def read_published(file: Path) -> dict[tuple[str, str], float]:
    """The published hazard ratios beside the lifetimes, by place and level. DataError where they are missing."""
    if not file.exists():
        raise DataError(f"{file} is missing: it holds the published hazard ratios", hint="keep it beside the lifetimes")
    with file.open(newline="") as text:
        return {(row["variable"], row["level"]): float(row["pub_hr"]) for row in csv.DictReader(text)}
