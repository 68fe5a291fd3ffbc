"""How long a hazard model with 40 covariates takes to fit on 30,000 units, beside lifelines. JSON on stdout.

    python benchmarks/hazard.py [FIGURE]…

The units are drawn: four factors with 25, 8, 8 and 3 levels (40 indicator columns: Titan's places without the node),
hazards that fall and rise over eight bands, and censoring. `piecewise` compares with lifelines' proportional hazards
over a piecewise-exponential baseline, which is the same likelihood with the same bands; `cox` with lifelines' Cox model
of the same rows, another likelihood, and the fastest that lifelines has; `grouped` fits the same likelihood from
tables alone, the unit's rows having been counted before (that is the part of the tenants). Times are those of the
fastest of several runs on one thread, from arrays (lifelines: from a data frame) in memory to coefficients.
"""

import warnings
from functools import cache

import numpy as np
import pandas as pd
from lifelines import CoxPHFitter
from numpy.typing import NDArray

from benchmarks.figures import Figure, fastest, main
from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.analysis.hazard import Cells, Model, fit_hazard
from simulation.replay.bands import band_of, time_in_bands
from simulation.replay.federated_newton import PiecewiseExponential, Rows, fit

UNITS = 30_000
FACTORS = {"col": 25, "row": 8, "slot": 8, "cage": 3}
EDGES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, np.inf)
STUDY_YEARS = 6.0
TIGHTEST = 1e-8  # of the gradient of the mean log likelihood; below, lifelines reports that it did not converge
MODEL = PiecewiseExponential(EDGES, sum(FACTORS.values()) - len(FACTORS))


@cache
def units() -> tuple[NDArray[np.intp], Rows]:
    """Levels (factors, units) and rows of the drawn units."""
    rng = np.random.default_rng(5)
    levels = np.array([rng.integers(0, size, UNITS) for size in FACTORS.values()])
    columns = [levels[place] == level for place, k in enumerate(FACTORS.values()) for level in range(1, k)]
    covariates = np.array(columns, np.float64).T
    rate = 0.06 * np.exp(covariates @ rng.normal(0.0, 0.4, covariates.shape[1]))
    dies = (rng.exponential(size=UNITS) / rate) ** 0.8
    leaves = rng.uniform(0.2, STUDY_YEARS, UNITS)
    return levels, Rows(np.minimum(dies, leaves), dies <= leaves, covariates)


def frame() -> pd.DataFrame:
    """The same for lifelines."""
    _, rows = units()
    names = [f"x{number}" for number in range(rows.covariates.shape[1])]
    return pd.DataFrame(rows.covariates, columns=names).assign(time=rows.time, failed=rows.failed)


def piecewise() -> Figure:
    """The same likelihood. lifelines' optimiser stops early by default; `tight` is as near as it converges."""
    default_s, default = _timed_lifelines({})
    tight_s, tight = _timed_lifelines({"gtol": TIGHTEST})
    ours_s, ours = _timed_ours()
    return _compared(ours_s, default_s) | {
        "max_abs_coefficient_difference": float(np.abs(ours - default).max()),
        "lifelines_tight_seconds": tight_s,
        "max_abs_coefficient_difference_tight": float(np.abs(ours - tight).max()),
    }


def cox() -> Figure:
    """Another likelihood, over the same rows."""
    ours_s, ours = _timed_ours()
    lifelines_s, theirs = _timed_cox()
    return _compared(ours_s, lifelines_s) | {"max_abs_coefficient_difference": float(np.abs(ours - theirs).max())}


def grouped() -> Figure:
    """From one-way tables of deaths and the exposure of each combination, against lifelines' Cox over the rows."""
    cells, tables = grouped_tables(*units())
    model = Model(tuple((table.dimensions[0].name,) for table in tables), prior_sd=np.inf)
    found = fit_hazard(cells, tables, model)
    ours = np.concatenate([np.log(found.ratios(name)[1].value) for name in FACTORS])
    return _compared(fastest(lambda: fit_hazard(cells, tables, model)), _timed_cox()[0]) | {
        "cells": len(cells.exposure_node_hours),
        "max_abs_coefficient_difference_to_rows": float(np.abs(ours - _timed_ours()[1]).max()),
    }


def _timed_ours() -> tuple[float, Floats]:
    _, rows = units()
    return fastest(lambda: fit(MODEL, rows)), fit(MODEL, rows).coefficients[MODEL.bands :]


def _timed_lifelines(options: dict[str, float]) -> tuple[float, Floats]:
    """Seconds and coefficients of lifelines' fit of the same likelihood, with options for its optimiser."""
    theirs = CoxPHFitter(baseline_estimation_method="piecewise", breakpoints=list(EDGES[1:-1]))
    data = frame()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own numerics overflow on the way
        seconds = fastest(lambda: theirs.fit(data, "time", "failed", fit_options=options), repeats=2)
    return seconds, theirs.params_["beta_"][list(data)[: MODEL.covariates]].to_numpy()


def _timed_cox() -> tuple[float, Floats]:
    theirs, data = CoxPHFitter(), frame()
    seconds = fastest(lambda: theirs.fit(data, "time", "failed"), repeats=3)
    return seconds, theirs.params_.to_numpy()


def grouped_tables(levels: NDArray[np.intp], rows: Rows) -> tuple[Cells, list[LifeTable]]:
    """What the provider would hold: exposure of every combination of levels and band, deaths by level and by band."""
    edges = np.array(EDGES)
    names = {**FACTORS, "band": len(edges) - 1}
    dimensions = [Dimension(name, tuple(str(level) for level in range(k))) for name, k in names.items()]
    full = LifeTable.zeros(dimensions)
    np.add.at(full.exposure_node_hours, tuple(levels), time_in_bands(rows.time, edges))
    np.add.at(full.events, (*levels, band_of(rows.time, edges)), rows.failed)
    return Cells.from_table(full), [full.marginal(name) for name in names]


def _compared(ours_s: float, lifelines_s: float) -> Figure:
    return {"seconds": ours_s, "lifelines_seconds": lifelines_s, "share_of_lifelines_time": ours_s / lifelines_s}


if __name__ == "__main__":
    main(piecewise, cox, grouped)
