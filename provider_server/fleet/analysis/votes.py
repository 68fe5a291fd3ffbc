"""Which part of the fabric tenants' votes point to, from noisy counts and from which leases could use which part.

Rows are parts as tenants know them: a unit of nodes on a rail, that is, a leaf switch with what hangs on it, and the
unit alone for votes that know no rail. A vote for a pair of nodes counts half at each end (docs/fabric.md). Counts are
explained as y = sum of baselines + sum of theta_p a_p + noise: one baseline for votes with a rail and one for those
without, both in proportion to what leases could use, and for each faulty part the pattern a_p that its votes would
make. Suspects are parts with theta_p > 0: leaves, and the spines of a rail together.

- The variance of the noise is in the weights of the fit and in every p-value, beside that of the counts themselves.
- Parts are named one after another, each given those before it: the one that explains most of those whose p-value
  stands the step-down test of Gavrilov, Benjamini & Sarkar (Annals of Statistics 2009) at the false discovery rate
  asked for.
- Where nine tenths of the rows scatter more than noise and counts explain, theirs is the scale (as Efron's empirical
  null, JASA 2004): tenants that vote for nothing do so where their long jobs lie.

Not promised: which link of a leaf, which spine of a rail. No tenant knows that, so no count does; the provider's own
counters of the named part may. Nor that two parts which the same leases use are told apart.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

Floats = NDArray[np.float64]
FALSE_SHARE = 0.1
RAIL_KNOWN = 2 / 3  # of votes, roughly; a pattern that is off by a fifth costs a tenth of its power
HALF = 0.5  # what a vote adds to a row
MISFIT = 0.25  # by how much of itself a named part's pattern may be off in a row: flows are hashed, pairs misnamed
_ROUNDS = 3
_INNER = 0.9  # of the rows tell how much they scatter; the others may be faulty


@dataclass(frozen=True)
class Spread:
    """A lease that ran in so many weeks: the unit of each of its nodes, in the order of nodes."""

    units: tuple[int, ...]
    weeks: int = 1

    def pairs(self) -> Counter[tuple[int, int]]:
        """How many neighbours in the ring of its nodes are of these two units, the smaller first."""
        ring = zip(self.units, (*self.units[1:], self.units[0]), strict=True)
        return Counter((min(pair), max(pair)) for pair in ring)


@dataclass(frozen=True)
class PartName:
    """A leaf (unit and rail), or the spines of a rail (no unit)."""

    rail: int
    unit: int | None = None


@dataclass(frozen=True, eq=False)
class Patterns:
    """What votes would look like: `parts` (parts, rows) by `names`, and `baselines` (2, rows).

    Rows are units × (rails, none known), as `patterns` makes them. `step` is what a vote adds to a row.
    """

    names: tuple[PartName, ...]
    parts: Floats
    baselines: Floats
    step: float = HALF


@dataclass(frozen=True)
class Suspect:
    """A part, the votes that it explains and their standard error, its p-value given those named; if it is named."""

    part: PartName
    votes: float
    error: float
    p_value: float
    is_named: bool


def patterns(spreads: Iterable[Spread], units: int, rails: int) -> Patterns:
    """What votes look like if each lease votes as often as others, and so where a part is faulty that it uses."""
    any_pair, at_leaf, over_spine = np.zeros(units), np.zeros((units, units)), np.zeros(units)
    for spread in spreads:
        pairs = spread.pairs()
        _add(any_pair, pairs, spread.weeks)
        _add(over_spine, {pair: many for pair, many in pairs.items() if pair[0] != pair[1]}, spread.weeks)
        for unit in set(spread.units):
            _add(at_leaf[unit], {pair: many for pair, many in pairs.items() if unit in pair}, spread.weeks)
    return _over_rails(any_pair, at_leaf, over_spine, rails)


def _add(row: Floats, pairs: Counter[tuple[int, int]] | dict[tuple[int, int], int], weeks: int) -> None:
    """Adds a vote for each week, for any of the pairs alike: half at each end, or half in all within one unit."""
    total = sum(pairs.values())
    for pair, many in pairs.items():
        for unit in set(pair):
            row[unit] += HALF * weeks * many / total


def _over_rails(any_pair: Floats, at_leaf: Floats, over_spine: Floats, rails: int) -> Patterns:
    units = len(any_pair)
    baselines = np.zeros((2, units, rails + 1))
    baselines[0, :, :rails], baselines[1, :, rails] = any_pair[:, None] / rails, any_pair
    leaves = np.zeros((units, rails, units, rails + 1))
    spines = np.zeros((rails, units, rails + 1))
    for rail in range(rails):
        leaves[:, rail, :, rail], spines[rail, :, rail] = RAIL_KNOWN * at_leaf, RAIL_KNOWN * over_spine
    leaves[..., rails], spines[..., rails] = (1 - RAIL_KNOWN) * at_leaf[:, None], (1 - RAIL_KNOWN) * over_spine
    names = [PartName(rail, unit) for unit in range(units) for rail in range(rails)]
    names += [PartName(rail) for rail in range(rails)]
    parts = np.concatenate([leaves.reshape(units * rails, -1), spines.reshape(rails, -1)])
    return Patterns(tuple(names), parts, baselines.reshape(2, -1))


def localise(
    expected: Patterns,
    counts: Floats,
    noise_variance: Floats,
    false_share: float = FALSE_SHARE,
    own: Floats | None = None,
) -> tuple[Suspect, ...]:
    """The parts that leases used, most suspect first; those that are named come before all others.

    `counts` and `noise_variance` are in votes, shape (rows,); a row that was not released has infinite variance. `own`
    is the provider's own evidence on each part, as the logarithm of a likelihood ratio, if it has any.
    """
    used = np.flatnonzero(expected.parts[:, np.isfinite(noise_variance)].sum(axis=1) > 0)
    named: list[int] = []
    while True:
        score, votes, errors, normal = _scores(expected, named, used.tolist(), counts, noise_variance)
        p_values = norm.sf(normal if own is None else _with_own(normal, own[used]))
        p_values[np.isin(used, named)] = 1.0
        step = len(named) + 1
        stand = p_values <= step * false_share / (len(used) + 1 - step * (1 - false_share))
        if not stand.any():
            break
        named.append(int(used[np.argmax(np.where(stand, score, -np.inf))]))
    first = [_suspect(expected, part, counts, noise_variance, named) for part in named]
    order = [row for row in np.argsort(p_values) if used[row] not in named]
    later = (
        Suspect(expected.names[used[row]], float(votes[row]), float(errors[row]), float(p_values[row]), is_named=False)
        for row in order
    )
    return (*first, *later)


def _with_own(score: Floats, own: Floats) -> Floats:
    """Scores whose likelihood ratio over chance is the product of both."""
    joined = np.sign(score) * score**2 / 2 + own
    moved: Floats = np.sign(joined) * np.sqrt(2 * np.abs(joined))
    return moved


def _scores(
    expected: Patterns, named: Sequence[int], parts: Sequence[int], counts: Floats, noise_variance: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Each part's z-score given those named, the votes that it would explain, and the standard error of these.

    Also its p-value: few votes are skewed, and a score of them is less than it seems.
    """
    columns = np.stack([*expected.baselines, *expected.parts[list(named)]])
    mean, weights = _fitted(expected, columns, counts, noise_variance)
    root = np.sqrt(weights)
    basis, _ = np.linalg.qr((columns * root).T)
    left = root * counts - basis @ (basis.T @ (root * counts))
    own = expected.parts[list(parts)] * root
    apart = own - (own @ basis) @ basis.T
    length = np.maximum(np.linalg.norm(apart, axis=1), 1e-9 * np.linalg.norm(own, axis=1))
    scale = max(1.0, float(np.quantile(np.abs(left[weights > 0]), _INNER)) / float(norm.ppf((1 + _INNER) / 2)))
    score = apart @ left / length / scale
    skewness = (apart**3) @ (root**3 * expected.step**2 * mean) / length**3
    totals = expected.parts[list(parts)].sum(axis=1)
    votes, errors = score * scale / length * totals, scale / length * totals
    return score, votes, errors, as_normal(score, skewness)


def _fitted(expected: Patterns, columns: Floats, counts: Floats, noise_variance: Floats) -> tuple[Floats, Floats]:
    """Votes that the columns explain, and one over the variance of each row.

    Its variance is that of the noise, of as many votes, and of how far votes may be from a named part's pattern.
    """
    step, chance = expected.step, len(expected.baselines)
    mean = np.full(len(counts), max(float(np.mean(counts)), step))
    of_parts = np.zeros(len(counts))
    weights = np.zeros(len(counts))
    for _ in range(_ROUNDS):
        weights = 1 / (noise_variance + step * np.maximum(mean, step) + (MISFIT * of_parts) ** 2)
        root = np.sqrt(weights)
        fitted, *_ = np.linalg.lstsq((columns * root).T, root * counts, rcond=None)
        fitted = np.maximum(fitted, 0)
        mean, of_parts = fitted @ columns, fitted[chance:] @ columns[chance:]
    return mean, weights


def _suspect(expected: Patterns, part: int, counts: Floats, noise_variance: Floats, named: Sequence[int]) -> Suspect:
    """A named part, given the others that are."""
    others = [other for other in named if other != part]
    _, votes, errors, normal = _scores(expected, others, [part], counts, noise_variance)
    return Suspect(expected.names[part], float(votes[0]), float(errors[0]), float(norm.sf(normal[0])), is_named=True)


# ---- skewness --------------------------------------------------------------------------------------------------------


_LEAST = 1e-3


def as_normal(score: Floats, skewness: Floats) -> Floats:
    """The scores of a normal variable with the p-values of a gamma variable's `score` (Wilson & Hilferty 1931).

    >>> as_normal(np.array([3.0, 3.0]), np.array([0.0, 1.0])).round(2).tolist()
    [3.0, 2.31]
    """
    own = np.maximum(skewness, _LEAST)
    stretched = np.maximum(1 + own * score / 2, 0.0)
    found: Floats = (np.cbrt(stretched) - 1 + own**2 / 36) * 6 / own
    return found
