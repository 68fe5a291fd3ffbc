"""Correlated noise over the weeks of a series: the variance of a running total grows with the logarithm of time.

Let A be the counting matrix of a horizon of n weeks: lower triangular, all ones. Its square root is the Toeplitz matrix
of f_k = binom(2k, k) / 4^k. The mechanism is defined by integers, F_k = round(256 f_k), so that nothing is rounded
afterwards. In the week at position t one vector is opened,

    O_t = sum over s <= t of F_(t-s) X_s  +  Z_t      (mod 2^64, per cell),

where X_s holds the exact counts of week s, under masks for ever, and Z_t fresh discrete Gaussian noise. As n = 1 gives
256 X + Z, a single round is the same mechanism. Who reads the openings decodes totals: R_t = sum of b_(t-s) O_s, with
B = A F^-1, is X_0 + ... + X_t plus noise of variance sum of b_(t-s)^2 Var(Z_s). Both F and B are Toeplitz, hence a cell
that is first counted at position p is decoded from O_p on, as if its series had begun there.

Guaranteed: a job-week that adds at most D to one week's cells, in the L2 norm, moves all openings together by at most D
times the root of `squared_sensitivity`, in ring units, whichever later weeks depend on earlier openings; what that
costs says `federation.protocol.privacy_cost`. Not promised: anything once an X_s, or two sums of noise of one week,
come off their masks; and totals across two series.

Sources: Henzinger, Upadhyay & Upadhyay, Almost tight error bounds on differentially private continual counting (SODA
2023), for the factors; Denisov, McMahan, Rush, Smith & Thakurta, Improved differential privacy for SGD via optimal
private linear operators on adaptive streams (NeurIPS 2022), for adaptivity.

    >>> weights(4)
    (256, 128, 96, 80)
    >>> weeks = [np.array([count], np.uint64) for count in (5, 0, 2)]
    >>> opened = [combine(weeks[: t + 1], horizon=4).astype(np.float64) for t in range(3)]
    >>> [running_total(opened[: t + 1]).item() for t in range(3)]
    [5.0, 5.0, 7.0]
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from crypto.masking import Words

Floats = NDArray[np.float64]
Births = NDArray[np.int64]

WEIGHT_ONE = 256  # F_0: what a count weighs in its first week, and the scale of a single round
MOST_WEEKS = 520  # beyond, F_k is so small an integer that rounding bends the square root
_BLOCK_CELLS = 2**13


@cache
def weights(horizon: int) -> tuple[int, ...]:
    """F_0, ..., F_(horizon-1): what a count weighs in its own week and in each week after it.

    ValueError for a horizon that is not within 1 and 520.
    """
    if not 1 <= horizon <= MOST_WEEKS:
        raise ValueError(f"a series has a horizon of 1 to {MOST_WEEKS} weeks, not {horizon}")
    binomial, found = 1, []
    for k in range(horizon):
        found.append((2 * WEIGHT_ONE * binomial + 4**k) // (2 * 4**k))
        binomial = binomial * 2 * (2 * k + 1) // (k + 1)
    return tuple(found)


def squared_sensitivity(horizon: int) -> int:
    """By how much one count in the first week moves all openings of the horizon: squared L2 norm, in ring units."""
    return sum(weight**2 for weight in weights(horizon))


@cache
def decoding(carries: tuple[bool, ...]) -> Floats:
    """What each opening of a series, oldest first, adds to its running total, in counts per ring unit; read-only.

    `carries` says of each opening whether it holds the weeks before it, as it should; one that does not (the group that
    carried them was left out) holds its own week alone. Solved from the newest back, by power-series division where all
    carry: a week's counts are in its own opening and in each later one that carries. It is stable: errors are fed back
    through 1/F(x), whose coefficients have a finite sum. A cell that is born later has no openings before its birth, so
    the same numbers serve it.
    """
    weeks = len(carries)
    column, carry = np.array(weights(weeks), np.float64), np.array(carries, np.float64)
    found = np.zeros(weeks)
    for week in reversed(range(weeks)):
        later = np.dot(found[week + 1 :] * carry[week + 1 :], column[1 : weeks - week])
        found[week] = (1 - later) / WEIGHT_ONE
    found.setflags(write=False)
    return found


def combine(tables: Sequence[Words], horizon: int) -> Words:
    """The sum of F_(t-s) times `tables[s]` mod 2^64 over the weeks so far, oldest first; dtype uint64.

    Linear, so it serves counts, masks and masked counts alike. All tables have the layout of the last week (`embed`).
    ValueError for no table, more than `horizon` tables, or tables of different lengths. Makes one vector.
    """
    if not 1 <= len(tables) <= horizon:
        raise ValueError(f"a series with a horizon of {horizon} has 1 to {horizon} weeks, not {len(tables)}")
    if len({table.shape for table in tables}) != 1:
        raise ValueError("the weeks of a series add up in one layout: embed the earlier ones in the last")
    total = np.zeros_like(tables[-1])
    for weight, table in zip(weights(horizon), reversed(tables), strict=False):
        for at in range(0, len(total), _BLOCK_CELLS):  # the product stays in the cache
            total[at : at + _BLOCK_CELLS] += np.uint64(weight) * table[at : at + _BLOCK_CELLS]
    return total


def running_total(observed: Sequence[Floats], carries: Sequence[bool] = ()) -> Floats:
    """What was counted up to the last week, noise included, in counts; same shape as each of `observed`.

    `observed` holds every opening of the series in order, as signed ring units in the layout of the last week, zero
    where a cell did not exist yet (`embed`): there O_s has no noise either, so leaving it out and adding it agree.
    `carries` is as for `decoding`; left out, all openings carry.
    """
    if len({opening.shape for opening in observed}) != 1:
        raise ValueError("openings are decoded in one layout: embed the earlier ones in the last")
    total = np.zeros(observed[-1].shape)
    for share, opening in zip(_shares(len(observed), carries), observed, strict=True):
        total += share * opening
    return total


def running_variance(variances: Sequence[float], births: Births, carries: Sequence[bool] = ()) -> Floats:
    """Variance of the noise in `running_total`, in counts², for cells first counted at the positions `births`.

    `variances` are those of Z_0, Z_1, ... in ring units², one per opening; weeks may differ. Shape as `births`.
    """
    if births.size and not 0 <= births.min() <= births.max() < len(variances):
        raise ValueError(f"cells of {len(variances)} weeks are born at positions 0 to {len(variances) - 1}")
    terms = _shares(len(variances), carries) ** 2 * np.asarray(variances, np.float64)
    since: Floats = np.cumsum(terms[::-1])[::-1]  # since[p] sums over the weeks p, ..., t
    return since[births]


def _shares(weeks: int, carries: Sequence[bool]) -> Floats:
    return decoding(tuple(carries) or (True,) * weeks)
