"""Hazard ratios from noisy marginals: the piecewise-exponential model with the noise inside its likelihood.

A cell i (a context in an age band, …) has exposure e_i, which the provider knows, and n_i ~ Poisson(e_i exp(x_i θ))
failures, which nobody shows it. Released are marginals y = A n + noise, with known variances Σ. Their mean is A μ and
their covariance V = A diag(μ) Aᵀ + Σ, so θ is found by quasi-scoring (McCullagh & Nelder 1989, §9.3): with
J = A diag(μ) X, repeat θ += (Jᵀ V⁻¹ J + P)⁻¹ (Jᵀ V⁻¹ (y − A μ) − P (θ − θ₀)). P is a weak Gaussian prior on the
contrasts, and on the average log rate around the crude one (not on the intercept, which is but a reference level's): a
level, or a total, whose noisy count is negative stays finite, and its interval is wide.

Guarantees. Without noise and prior, and with the marginal of every term observed, the answer is the Poisson maximum
likelihood (Holford 1980, Laird & Olivier 1981). Marginals may be redundant (all have the same total): V is then
singular, and is read as if each count had `RIDGE` of its own variance as further noise: that much and no more.
Not promised: intervals are normal on the log scale, which needs tens of events per level, or noise that dominates.

    >>> from dataclasses import replace
    >>> table = LifeTable.zeros((Dimension("context", ("a", "b")), Dimension("band", ("young", "old"))))
    >>> table = replace(table, exposure_node_hours=table.events + 1e4, events=np.array([[40.0, 20.0], [80.0, 40.0]]))
    >>> observed = [table.marginal("context"), table.marginal("band")]
    >>> fit = fit_hazard(Cells.from_table(table), observed, Model((("context",), ("band",)), prior_sd=np.inf))
    >>> levels, ratios = fit.ratios("context")
    >>> levels, ratios.value.round(3).tolist()
    ((('b',),), [2.0])
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations_with_replacement, compress, product
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh
from scipy.sparse.linalg import splu
from scipy.special import ndtri

from crypto.errors import Refusal
from federation.protocol.life_table import Dimension, Floats, LifeTable

Ints = NDArray[np.intp]
Axes = tuple[int, ...]
Kind = Literal["population", "noise"]
RIDGE = 1e-9
LEVEL_SD = 5.0  # of the average log rate around the crude one: what keeps a noisy total below zero finite
MAX_STEP = 2.0  # of any log rate, per iteration
CLOSE = 0.2  # steps of every log rate below this are never shortened
WHOLE_STEPS = 25  # iterations before longer steps are shortened
TOLERANCE = 1e-7  # the same, where iteration ends
NEAR = 1.0  # squared distance to the answer, in standard errors, from which Newton's step is taken
FLATTEST = 0.1


class Unsettled(Refusal):
    """A fit that has not converged: its rates would still change from one iteration to the next."""

    default_hint = "nothing was published, and the bundle in force stays; please report it with the newest release"


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells with exposure: `index` (dimensions, cells) holds level positions, `exposure_node_hours` (cells,) is > 0."""

    dimensions: tuple[Dimension, ...]
    index: Ints
    exposure_node_hours: Floats

    def __post_init__(self) -> None:
        if self.index.shape != (len(self.dimensions), len(self.exposure_node_hours)):
            raise ValueError(f"index has shape {self.index.shape}, not one row per dimension and one column per cell")
        if not np.all(self.exposure_node_hours > 0.0):
            raise ValueError("every cell needs positive exposure; leave the others out")

    @classmethod
    def from_table(cls, table: LifeTable) -> "Cells":
        """The cells of a full cube whose exposure is positive."""
        index = np.nonzero(table.exposure_node_hours > 0.0)
        return cls(table.dimensions, np.array(index, dtype=np.intp), table.exposure_node_hours[index])

    def axes(self, names: Iterable[str]) -> Axes:
        """Positions, ascending, of the dimensions called `names`; KeyError where there is no such dimension."""
        known = {dimension.name: position for position, dimension in enumerate(self.dimensions)}
        return tuple(sorted(known[name] for name in names))

    def shape(self, axes: Axes) -> tuple[int, ...]:
        """Number of levels along each of `axes`."""
        return tuple(len(self.dimensions[axis]) for axis in axes)

    def code(self, axes: Axes) -> Ints:
        """Number (cells,) of each cell's combination of levels along `axes`, the last axis fastest."""
        levels = (np.zeros(len(self.exposure_node_hours), np.intp), *self.index[list(axes)])
        return np.asarray(np.ravel_multi_index(levels, (1, *self.shape(axes))), np.intp)


@dataclass(frozen=True)
class Model:
    """log rate = intercept + one term per tuple of dimension names, in treatment coding.

    `reference` names a dimension's reference level (default: its first). A term's levels are exchangeable around a free
    common level, with standard deviation `prior_sd` (inf: no prior at all). `walk_sd` gives, for an ordered dimension,
    that of the step from one level to the next (a random walk; default none). An interaction has contrasts along the
    dimensions without which it is a term (or the intercept) as well. Predictions do not depend on the reference, unless
    a prior meets a main effect and its interaction: main effects are then those at the other's reference.
    """

    terms: tuple[tuple[str, ...], ...]
    reference: Mapping[str, str] = field(default_factory=dict)
    prior_sd: float = 5.0
    walk_sd: Mapping[str, float] = field(default_factory=dict)


class Coefficient(NamedTuple):
    """A contrast: `term` and `level` in the order of the cells' dimensions; both are empty for the intercept."""

    term: tuple[str, ...]
    level: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Estimate:
    """Positive quantities (ratios, or rates per node-hour) and the standard deviations of their logarithms."""

    value: Floats
    log_sd: Floats

    def interval(self, mass: float = 0.95) -> tuple[Floats, Floats]:
        """The bounds, equally far on the log scale, that hold `mass` of the probability."""
        factor = np.exp(ndtri(0.5 + mass / 2.0) * self.log_sd)
        return self.value / factor, self.value * factor


@dataclass(frozen=True, eq=False)
class HazardFit:
    """Estimates (p,), the intercept (log rate per node-hour) first, and two covariances (p, p) of them.

    `covariance` is about the rates of the population: sampling and noise. `noise_covariance` is about the answer that
    the same marginals without noise would give, whose `exact_information` (p, p) is known: what privacy alone costs.
    """

    model: Model
    coefficients: tuple[Coefficient, ...]
    estimate: Floats
    covariance: Floats
    exact_information: Floats
    converged: bool
    iterations: int

    @cached_property
    def noise_covariance(self) -> Floats:
        """See above."""
        return np.asarray(self.covariance - np.linalg.inv(self.exact_information), np.float64)

    def settled(self) -> "HazardFit":
        """The same; Unsettled where it did not converge."""
        if not self.converged:
            raise Unsettled(
                f"the rates of {len(self.coefficients)} effects have not settled in {self.iterations} rounds"
            )
        return self

    def ratios(self, *term: str, kind: Kind = "population") -> tuple[tuple[tuple[str, ...], ...], Estimate]:
        """Levels of a term without its references, and their hazard ratios (levels,)."""
        places = [place for place, coefficient in enumerate(self.coefficients) if coefficient.term == term]
        levels = tuple(self.coefficients[place].level for place in places)
        return levels, Estimate(np.exp(self.estimate[places]), np.sqrt(np.diag(self.spread(kind))[places]))

    def spread(self, kind: Kind) -> Floats:
        """The covariance (p, p) of the given kind."""
        return self.covariance if kind == "population" else self.noise_covariance


@dataclass(frozen=True, eq=False)
class _Design:
    """The levels of every grouping (a set of axes), numbered through by `offsets`; `codes` give each cell's levels.

    With Z (cells, levels) their indicators, X = Z `loadings`, and A is some rows of Zᵀ. Neither is ever built: a step
    needs no more than Zᵀ diag(μ) Z, whose size does not depend on the number of cells.
    """

    groupings: tuple[Axes, ...]
    codes: tuple[Ints, ...]
    offsets: Ints
    coefficients: tuple[Coefficient, ...]
    loadings: sp.csr_array
    precision: Floats

    @classmethod
    def of(cls, cells: Cells, model: Model, others: Iterable[Axes] = ()) -> "_Design":
        """The model's design over `cells`, with groupings for its terms and for `others`."""
        terms = [(), *dict.fromkeys(cells.axes(term) for term in model.terms)]
        groupings = tuple(sorted({*terms, *others}, key=lambda axes: (len(axes), axes)))
        offsets = np.concatenate([[0], np.cumsum([math.prod(cells.shape(axes)) for axes in groupings])])
        rows, names, priors = [], [], []
        for axes in terms:
            kept = _contrasts(cells, model, axes, terms)
            rows.append(offsets[groupings.index(axes)] + np.flatnonzero(kept))
            priors.append(_penalty(cells, model, axes, terms)[np.ix_(kept, kept)])
            term = [cells.dimensions[axis] for axis in axes]
            levels = compress(product(*(dimension.levels for dimension in term)), kept)
            names += [Coefficient(tuple(dimension.name for dimension in term), level) for level in levels]
        row = np.concatenate(rows)
        loadings = sp.csr_array((np.ones(len(row)), (row, np.arange(len(row)))), shape=(offsets[-1], len(row)))
        codes = tuple(cells.code(axes) for axes in groupings)
        return cls(groupings, codes, offsets, tuple(names), loadings, sp.block_diag(priors).toarray())

    def levels(self, axes: Axes) -> Ints:
        """Numbers of the levels of one grouping."""
        place = self.groupings.index(axes)
        return np.arange(self.offsets[place], self.offsets[place + 1])

    def gather(self, values: Floats) -> Floats:
        """Z values: for each cell, the sum of `values` (levels,) over the levels that it has."""
        parts = [values[offset + code] for code, offset in zip(self.codes, self.offsets[:-1], strict=True)]
        return np.asarray(np.sum(parts, axis=0), np.float64)

    def sums(self, values: Floats) -> Floats:
        """Zᵀ values: the sum of `values` (cells,) over the cells of each level (levels,)."""
        sizes = np.diff(self.offsets)
        return np.concatenate([np.bincount(code, values, size) for code, size in zip(self.codes, sizes, strict=True)])

    def squared(self, weights: Floats) -> Floats:
        """Xᵀ diag(weights) X (p, p)."""
        return np.asarray((self.loadings.T @ self.cross_table(weights) @ self.loadings).toarray(), np.float64)

    def cross_table(self, weights: Floats) -> sp.csr_array:
        """Zᵀ diag(weights) Z (levels, levels)."""
        sizes = np.diff(self.offsets)
        blocks = [[sp.csr_array((a, b)) for b in sizes] for a in sizes]
        for j, (code, size) in enumerate(zip(self.codes, sizes, strict=True)):
            total = np.bincount(code, weights, size)
            blocks[j][j] = sp.diags_array(total).tocsr()
            for i in range(j):
                both = np.bincount(self.codes[i] * size + code, weights, sizes[i] * size) if i else total
                blocks[i][j] = sp.csr_array(both.reshape(sizes[i], size))
                blocks[j][i] = blocks[i][j].T.tocsr()
        return sp.csr_array(sp.block_array(blocks))


def _contrasts(cells: Cells, model: Model, axes: Axes, terms: Sequence[Axes]) -> NDArray[np.bool_]:
    """Which of a term's levels (flat) get a coefficient: not its reference, nor what a margin (a term) covers."""
    kept = np.ones(cells.shape(axes), dtype=bool)
    base = []
    for place, dimension in enumerate(cells.dimensions[axis] for axis in axes):
        base.append(dimension.levels.index(model.reference.get(dimension.name, dimension.levels[0])))
        if axes[:place] + axes[place + 1 :] in terms:
            np.moveaxis(kept, place, 0)[base[-1]] = False
    kept[tuple(base)] = not axes
    return kept.ravel()


def _penalty(cells: Cells, model: Model, axes: Axes, terms: Sequence[Axes]) -> Floats:
    """P over all of a term's levels (flat), references included; without a margin, one common level is free."""
    shape, names = cells.shape(axes), [cells.dimensions[axis].name for axis in axes]
    margins = [axes[:k] + axes[k + 1 :] in terms for k in range(len(axes))]
    factors: list[Floats] = [np.eye(size) - margin / size for size, margin in zip(shape, margins, strict=True)]
    total = (_kron(factors) - (not any(margins)) / math.prod(shape)) / model.prior_sd**2
    for name in model.walk_sd.keys() & set(names):
        step = np.diff(np.eye(shape[names.index(name)]), axis=0) / model.walk_sd[name]
        pairs = zip(names, factors, strict=True)
        total += _kron([step.T @ step if name == other else factor for other, factor in pairs])
    return total


def _kron(factors: Sequence[Floats]) -> Floats:
    product_so_far = np.eye(1)
    for factor in factors:
        product_so_far = np.asarray(np.kron(product_so_far, factor), np.float64)
    return product_so_far


class _Slopes(NamedTuple):
    """Of the quasi likelihood: Jᵀ V⁻¹ (y − A μ) (p,), Fisher's information (p, p), what is missing to the actual."""

    score: Floats
    information: Floats
    bend: Callable[[], Floats]


@dataclass(frozen=True, eq=False)
class _Marginals:
    """Rows of Zᵀ that were observed (m,), their counts with noise (m,), and the variance of that noise (m,)."""

    rows: Ints
    counts: Floats
    noise_variance: Floats

    @classmethod
    def of(cls, cells: Cells, design: _Design, tables: Sequence[LifeTable]) -> "_Marginals":
        """The marginals `tables`, without levels that have no exposure: noise is all that their counts can hold."""
        rows, counts, variance = np.empty(0, np.intp), np.empty(0), np.empty(0)
        for table in tables:
            ordered = _ordered(cells, table)
            rows = np.append(rows, design.levels(cells.axes(ordered.names)))
            counts = np.append(counts, ordered.events)
            variance = np.append(variance, ordered.noise_variance)
        exposed = design.sums(cells.exposure_node_hours)[rows] > 0.0
        _check_unexposed(counts[~exposed], variance[~exposed])
        return cls(rows[exposed], counts[exposed], variance[exposed])

    def slopes(self, design: _Design, means: Floats) -> _Slopes:
        """Where cells expect `means` (cells,) events."""
        table, jacobian, sampling = self._parts(design, means)
        noisy = splu((sampling + sp.diags_array(self.noise_variance)).tocsc())
        pull = np.asarray(noisy.solve(self.counts - table.diagonal()[self.rows]), np.float64)

        def bend() -> Floats:
            weights = np.bincount(self.rows, pull, int(design.offsets[-1])).astype(np.float64)
            bent = design.cross_table(means * design.gather(weights))
            more = jacobian.T @ noisy.solve((bent @ design.loadings)[self.rows].toarray())
            return np.asarray(more - (design.loadings.T @ bent @ design.loadings).toarray(), np.float64)

        return _Slopes(jacobian.T @ pull, jacobian.T @ noisy.solve(jacobian), bend)

    def exact_information(self, design: _Design, means: Floats) -> Floats:
        """If there were no noise (p, p)."""
        _, jacobian, sampling = self._parts(design, means)
        return np.asarray(jacobian.T @ splu(sampling.tocsc()).solve(jacobian), np.float64)

    def _parts(self, design: _Design, means: Floats) -> tuple[sp.csr_array, Floats, sp.csr_array]:
        """Zᵀ diag(μ) Z, J (m, p), and the sampling part of V (m, m)."""
        table = design.cross_table(means)
        sampling = table[self.rows][:, self.rows]
        jacobian = (table @ design.loadings)[self.rows].toarray()
        return table, jacobian, sampling + sp.diags_array(RIDGE * sampling.diagonal())


@dataclass(frozen=True, eq=False)
class _CellCounts:
    """Counts of the cells themselves, and the variance of their noise, both (cells,).

    V is diagonal then, so the p×p matrices of a step are sums over cells, and J, a row for each cell, is never built.
    """

    counts: Floats
    noise_variance: Floats

    @classmethod
    def of(cls, cells: Cells, table: LifeTable) -> "_CellCounts":
        """Of a table over all dimensions of the cells."""
        ordered, index = _ordered(cells, table), tuple(cells.index)
        exposed = np.zeros(ordered.shape, np.bool_)
        exposed[index] = True
        _check_unexposed(ordered.events[~exposed], ordered.noise_variance[~exposed])
        return cls(ordered.events[index], ordered.noise_variance[index])

    def slopes(self, design: _Design, means: Floats) -> _Slopes:
        """Where cells expect `means` (cells,) events."""
        weight = 1.0 / (means * (1.0 + RIDGE) + self.noise_variance)
        pull, square = (self.counts - means) * weight, means**2 * weight
        score = design.loadings.T @ design.sums(means * pull)
        return _Slopes(score, design.squared(square), lambda: design.squared((square - means) * pull))

    def exact_information(self, design: _Design, means: Floats) -> Floats:
        """If there were no noise (p, p)."""
        return design.squared(means / (1.0 + RIDGE))


def _ordered(cells: Cells, table: LifeTable) -> LifeTable:
    """The table with its dimensions in the order of the cells; ValueError where levels are not theirs."""
    known = [cells.dimensions[axis] for axis in cells.axes(table.names)]
    ordered = table.marginal(*(dimension.name for dimension in known))
    if list(ordered.dimensions) != known:
        raise ValueError(f"the levels of {list(ordered.names)} are not those of the cells")
    return ordered


def _check_unexposed(counts: Floats, noise_variance: Floats) -> None:
    if np.any(counts[noise_variance == 0.0] != 0.0):
        raise ValueError("exact events where there is no exposure")


def _are_cells(cells: Cells, tables: Sequence[LifeTable]) -> bool:
    """Whether one table has a count for each cell by itself."""
    every = range(len(cells.dimensions))
    if len(tables) > 1 or len(tables[0].dimensions) < len(every):
        return False
    return len(np.unique(cells.code((*every,)))) == len(cells.exposure_node_hours)


def _step(design: _Design, slopes: _Slopes, theta: Floats, crude: Floats) -> tuple[Floats, Floats]:
    """The step from `theta`, and the information with that of the prior.

    Far from the answer the step is Fisher's. Near it, where noise can leave the expected information far from the
    actual curvature, it is Newton's, with curvatures (relative to the former) taken as positive and at least
    `FLATTEST`.
    """
    score = slopes.score - design.precision @ (theta - crude)
    information = slopes.information + design.precision
    step = np.asarray(np.linalg.solve(information, score), np.float64)
    if score @ step < NEAR:
        curvature = information + slopes.bend()
        step = _newton((curvature + curvature.T) / 2.0, information, score)
    return step, information


def _newton(curvature: Floats, information: Floats, score: Floats) -> Floats:
    """Newton's step; where the curvature is not that of a hill, along its axes relative to `information`."""
    try:
        cho_factor(curvature - FLATTEST * information)
        return np.asarray(cho_solve(cho_factor(curvature), score), np.float64)
    except LinAlgError:
        bends, along = eigh(curvature, information)
        return np.asarray(along @ ((along.T @ score) / np.maximum(np.abs(bends), FLATTEST)), np.float64)


def fit_hazard(
    cells: Cells, tables: Sequence[LifeTable], model: Model, *, start: Floats | None = None, max_iterations: int = 100
) -> HazardFit:
    """Fit `model` to the noisy marginals `tables`, each over some of the cells' dimensions, with the same levels.

    `start` (p,) is the estimate of a similar fit. ValueError where levels differ, or where a contrast has neither
    exposure nor prior. Read `converged` before the numbers: without a prior, a count of zero has no finite answer.
    """
    seen: _CellCounts | _Marginals
    if _are_cells(cells, tables):
        design = _Design.of(cells, model)
        seen = _CellCounts.of(cells, tables[0])
    else:
        design = _Design.of(cells, model, [cells.axes(table.names) for table in tables])
        seen = _Marginals.of(cells, design, tables)
    exposed = design.loadings.T @ design.sums(cells.exposure_node_hours)
    if np.any((exposed == 0.0) & (np.diag(design.precision) == 0.0)):
        raise ValueError("a contrast has no exposure, and no prior says anything about it")
    crude = _crude(cells, tables, len(exposed))
    if np.isfinite(model.prior_sd):
        average = exposed / exposed[0]  # of the cells' rows of X, weighted by exposure
        design.precision[:] += np.outer(average, average) / LEVEL_SD**2
    theta, iterations = crude if start is None else start, 0
    while True:
        means = _means(cells, design, theta)
        step, information = _step(design, seen.slopes(design, means), theta, crude)
        change = float(np.abs(design.gather(design.loadings @ step)).max())
        # full steps from far off may oscillate for ever: after `WHOLE_STEPS` long ones are shortened
        share = 1.0 if change < CLOSE else min(1.0, WHOLE_STEPS / (iterations + 1))
        theta = theta + step * share * min(1.0, MAX_STEP / max(change, TOLERANCE))
        iterations += 1
        if change < TOLERANCE or iterations >= max_iterations:
            break
    exact = seen.exact_information(design, means) + design.precision
    covariance = np.asarray(np.linalg.inv(information), np.float64)
    return HazardFit(model, design.coefficients, theta, covariance, exact, change < TOLERANCE, iterations)


def _means(cells: Cells, design: _Design, theta: Floats) -> Floats:
    """Expected events of each cell (cells,)."""
    return cells.exposure_node_hours * np.exp(design.gather(design.loadings @ theta))


def _crude(cells: Cells, tables: Sequence[LifeTable], size: int) -> Floats:
    """The best total over the exposure as intercept, and no contrast."""
    best = min(tables, key=lambda table: float(table.noise_variance.sum()))
    events = max(float(best.events.sum()), float(np.sqrt(best.noise_variance.sum())), 1.0)
    return np.concatenate([[np.log(events / cells.exposure_node_hours.sum())], np.zeros(size - 1)])


def predict(fit: HazardFit, cells: Cells, *, kind: Kind = "population") -> Estimate:
    """Rate per node-hour of each cell (cells,); `cells` has the dimensions of the fit."""
    design = _Design.of(cells, fit.model)
    both = (design.loadings @ fit.spread(kind)) @ design.loadings.T
    places = [offset + code for code, offset in zip(design.codes, design.offsets[:-1], strict=True)]
    variance = np.zeros(len(cells.exposure_node_hours))
    for one, other in combinations_with_replacement(places, 2):
        variance += both[one, other] * (1.0 if one is other else 2.0)
    return Estimate(_means(cells, design, fit.estimate) / cells.exposure_node_hours, np.sqrt(variance))


def predict_levels(fit: HazardFit, cells: Cells, *names: str, kind: Kind = "population") -> Estimate:
    """Rate per node-hour of each level (flat) of the dimensions `names`, averaged over its exposure; nan without."""
    design = _Design.of(cells, fit.model, [cells.axes(names)])
    levels = design.levels(cells.axes(names))
    rows = design.cross_table(_means(cells, design, fit.estimate))[levels]
    expected = np.asarray(rows.sum(axis=1)) / len(design.groupings)  # each grouping holds every cell once
    exposure = design.cross_table(cells.exposure_node_hours).diagonal()[levels]
    with np.errstate(invalid="ignore"):
        gradient = (rows @ design.loadings).toarray() / expected[:, None]
        variance = np.einsum("ij,jk,ik->i", gradient, fit.spread(kind), gradient)
        return Estimate(expected / exposure, np.sqrt(variance))
