"""Hazard ratios from noisy marginals: the piecewise-exponential model with the noise inside its likelihood.

A cell i (a context in an age band, …) has exposure e_i, which the provider knows, and n_i ~ Poisson(e_i exp(x_i θ))
failures, which nobody shows it. Released are marginals y = A n + noise, with known variances Σ. Their mean is A μ and
their covariance V = A diag(μ) Aᵀ + Σ, so θ is found by quasi-scoring (McCullagh & Nelder 1989, §9.3): with
J = A diag(μ) X, repeat θ += (Jᵀ V⁻¹ J + P)⁻¹ (Jᵀ V⁻¹ (y − A μ) − P θ). P is a weak Gaussian prior on the contrasts,
never on the intercept: a level whose noisy count is negative stays finite, and its interval is wide.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import splu
from scipy.stats import norm

from crypto.life_table import Dimension, Floats, LifeTable

Ints = NDArray[np.intp]
Axes = tuple[int, ...]
Kind = Literal["population", "noise"]
RIDGE = 1e-9
MAX_STEP = 2.0
TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells with exposure: `index` (dimensions, cells) holds level positions, `exposure_node_hours` (cells,) is > 0."""

    dimensions: tuple[Dimension, ...]
    index: Ints
    exposure_node_hours: Floats

    def __post_init__(self) -> None:
        sizes = np.array([len(dimension) for dimension in self.dimensions], dtype=np.intp)
        if self.index.shape != (len(sizes), len(self.exposure_node_hours)):
            raise ValueError(f"index has shape {self.index.shape}, not one row per dimension and one column per cell")
        if not np.all(self.exposure_node_hours > 0.0):
            raise ValueError("every cell needs positive exposure; leave the others out")
        if np.any(self.index < 0) or np.any(self.index >= sizes[:, None]):
            raise ValueError("index points outside the levels of its dimension")

    @classmethod
    def from_table(cls, table: LifeTable) -> "Cells":
        """The cells of a full cube whose exposure is positive."""
        index = np.nonzero(table.exposure_node_hours > 0.0)
        return cls(table.dimensions, np.array(index, dtype=np.intp), table.exposure_node_hours[index])

    def axes(self, names: Iterable[str]) -> Axes:
        """Positions, ascending, of the dimensions called `names`; KeyError where there is no such dimension."""
        known = {dimension.name: position for position, dimension in enumerate(self.dimensions)}
        return tuple(sorted(known[name] for name in names))


@dataclass(frozen=True)
class Model:
    """log rate = intercept + one term per tuple of dimension names, in treatment coding.

    `reference` names a dimension's reference level (default: its first). `prior_sd` is the prior's standard deviation
    of each contrast; inf for none. `walk_sd` gives, for an ordered dimension, that of the step from one level to the
    next (a random walk; default none). An interaction has contrasts in those dimensions without which it is a term too.
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
    """Positive quantities (ratios, or rates per node-hour) and the standard deviation of their logarithm, same shape."""

    value: Floats
    log_sd: Floats

    def interval(self, mass: float = 0.95) -> tuple[Floats, Floats]:
        """The bounds, equally far on the log scale, that hold `mass` of the probability."""
        factor = np.exp(norm.ppf(0.5 + mass / 2.0) * self.log_sd)
        return self.value / factor, self.value * factor


@dataclass(frozen=True, eq=False)
class HazardFit:
    """Estimates (p,), the intercept (log rate per node-hour) first, and two covariances (p, p) of them.

    `covariance` is about the rates of the population: sampling and noise. `noise_covariance` is about the answer that
    the same marginals without noise would give: what privacy alone costs.
    """

    model: Model
    coefficients: tuple[Coefficient, ...]
    estimate: Floats
    covariance: Floats
    noise_covariance: Floats
    converged: bool
    iterations: int

    def ratios(self, *term: str, kind: Kind = "population") -> tuple[tuple[tuple[str, ...], ...], Estimate]:
        """Levels of a term without its references, and their hazard ratios (levels,)."""
        places = [place for place, coefficient in enumerate(self.coefficients) if coefficient.term == term]
        variance = np.diag(self.spread(kind))[places]
        levels = tuple(self.coefficients[place].level for place in places)
        return levels, Estimate(np.exp(self.estimate[places]), np.sqrt(variance))

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

    @classmethod
    def of(cls, cells: Cells, model: Model, others: Iterable[Axes] = ()) -> "_Design":
        """The model's design over `cells`, with groupings for its terms and for `others`."""
        terms = [(), *dict.fromkeys(cells.axes(term) for term in model.terms)]
        groupings = tuple(sorted({*terms, *others}, key=lambda axes: (len(axes), axes)))
        shapes = [(1, *(len(cells.dimensions[axis]) for axis in axes)) for axes in groupings]
        first = np.zeros((1, cells.index.shape[1]), dtype=np.intp)
        codes = [
            np.ravel_multi_index(tuple(np.vstack([first, cells.index[list(axes)]])), shape)
            for axes, shape in zip(groupings, shapes, strict=True)
        ]
        offsets = np.concatenate([[0], np.cumsum([np.prod(shape) for shape in shapes])])
        rows, names = [], []
        for axes in terms:
            dimensions = [cells.dimensions[axis] for axis in axes]
            kept = _contrasts(dimensions, [axes[:k] + axes[k + 1 :] in terms for k in range(len(axes))], model)
            rows.append(offsets[groupings.index(axes)] + np.flatnonzero(kept))
            combinations = product(*(dimension.levels for dimension in dimensions))
            term = tuple(dimension.name for dimension in dimensions)
            names += [Coefficient(term, level) for level, keep in zip(combinations, kept, strict=True) if keep]
        row = np.concatenate(rows)
        loadings = sp.csr_array((np.ones(len(row)), (row, np.arange(len(row)))), shape=(offsets[-1], len(row)))
        return cls(groupings, tuple(codes), offsets, tuple(names), loadings)

    def levels(self, axes: Axes) -> Ints:
        """Numbers of the levels of one grouping."""
        place = self.groupings.index(axes)
        return np.arange(self.offsets[place], self.offsets[place + 1])

    def linear(self, theta: Floats) -> Floats:
        """X θ (cells,)."""
        values = self.loadings @ theta
        return np.sum([values[offset + code] for code, offset in zip(self.codes, self.offsets, strict=False)], axis=0)

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


def _contrasts(dimensions: Sequence[Dimension], margins: Sequence[bool], model: Model) -> NDArray[np.bool_]:
    """Which of a term's levels (flat) get a coefficient: not its reference, nor what a margin (a term) covers."""
    kept = np.ones((1, *(len(dimension) for dimension in dimensions)), dtype=bool)
    base = []
    for axis, (dimension, margin) in enumerate(zip(dimensions, margins, strict=True), start=1):
        name = model.reference.get(dimension.name)
        base.append(0 if name is None else dimension.levels.index(name))
        if margin:
            np.moveaxis(kept, axis, 0)[base[-1]] = False
    if dimensions:
        kept[(0, *base)] = False
    return kept.ravel()


def _precision(cells: Cells, model: Model, design: _Design) -> Floats:
    """P (p, p): independent contrasts, plus a random walk along each smooth dimension of each term."""
    precision = np.diag([0.0] + [model.prior_sd**-2.0] * (len(design.coefficients) - 1))
    for term, (name, sd) in product(model.terms, model.walk_sd.items()):
        if name in term:
            axes = cells.axes(term)
            steps = [np.eye(len(cells.dimensions[axis])) for axis in axes]
            place = axes.index(*cells.axes([name]))
            steps[place] = np.diff(steps[place], axis=0) / sd
            effect = reduce(np.kron, steps) @ design.loadings[design.levels(axes)].toarray()
            precision += effect.T @ effect
    return precision


@dataclass(frozen=True, eq=False)
class _Observed:
    """Rows of Zᵀ that were observed (m,), their counts with noise (m,), and the variance of that noise (m,)."""

    rows: Ints
    counts: Floats
    noise_variance: Floats

    @classmethod
    def of(cls, cells: Cells, design: _Design, tables: Sequence[LifeTable]) -> "_Observed":
        """The marginals `tables`, without levels that have no exposure: noise is all that their counts can hold."""
        rows, counts, variances = [], [], []
        for table in tables:
            axes = cells.axes(dimension.name for dimension in table.dimensions)
            ordered = table.marginal(*(cells.dimensions[axis].name for axis in axes))
            if ordered.dimensions != tuple(cells.dimensions[axis] for axis in axes):
                raise ValueError(f"levels of {ordered.dimensions} differ from those of the cells")
            rows.append(design.levels(axes))
            counts.append(ordered.events.ravel())
            variances.append(ordered.noise_variance.ravel())
        row, count, variance = np.concatenate(rows), np.concatenate(counts), np.concatenate(variances)
        exposed = design.cross_table(cells.exposure_node_hours).diagonal()[row] > 0.0
        if np.any(count[~exposed & (variance == 0.0)] != 0.0):
            raise ValueError("exact events where there is no exposure")
        return cls(row[exposed], count[exposed], variance[exposed])


def _newton(design: _Design, seen: _Observed, means: Floats, pull: Floats) -> tuple[Floats, Floats, Floats]:
    """Jᵀ V⁻¹ (y − A μ), Jᵀ V⁻¹ J, and the latter without noise, at the cells' expected counts `means` (cells,)."""
    table = design.cross_table(means)
    jacobian = (table @ design.loadings)[seen.rows].toarray()
    residual = seen.counts - table.diagonal()[seen.rows]
    sampling = table[seen.rows][:, seen.rows]
    sampling = sampling + sp.diags_array(RIDGE * sampling.diagonal())
    both = np.column_stack([jacobian, residual])
    weighted = jacobian.T @ splu((sampling + sp.diags_array(seen.noise_variance)).tocsc()).solve(both)
    exact = jacobian.T @ splu(sampling.tocsc()).solve(jacobian)
    return weighted[:, -1], weighted[:, :-1], exact


def fit_hazard(
    cells: Cells, tables: Sequence[LifeTable], model: Model, *, start: Floats | None = None, max_iterations: int = 100
) -> HazardFit:
    """Fit `model` to the noisy marginals `tables`, each over some of the cells' dimensions, with the same levels.

    `start` (p,) is the estimate of a similar fit. ValueError where levels differ, or where a contrast has no exposure
    and no prior. Read `converged` before the numbers: a noisy total below zero has no finite answer.
    """
    groups = [cells.axes(dimension.name for dimension in table.dimensions) for table in tables]
    design = _Design.of(cells, model, groups)
    seen = _Observed.of(cells, design, tables)
    prior = _precision(cells, model, design)
    ...
