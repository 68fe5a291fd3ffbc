"""The privacy loss of a unit by a plan: pure DP for Laplace noise, zero-concentrated DP for Gaussian noise.

- Neighbours: two histories that differ in the presence of one unit, a lease in a window. A plan counts at most F
  failures of it per marginal, so a marginal of failures has L1 and L2 sensitivity F; of other subjects
  `federation.protocol.subjects.norms` says it. Rho and epsilon add up over the marginals.
- A unit is in one opened round: what an endorsed set shows was not opened counts again at no new price. A lease of
  several windows is a group of so many units.
- A loss is a pair (pure epsilon, rho); it gives (epsilon + epsilon_z(rho, delta), delta)-DP by basic composition of the
  pure part and the converted zCDP part.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from federation.protocol.noise import SCALE_BITS, gaussian_scale
from federation.protocol.plan import Marginal, Mechanism, Plan
from federation.protocol.subjects import norms

_NEGLIGIBLE_EXPONENT = 700.0
_TAU_TERMS = 10_000
_LOWEST_LOG_RHO = math.log(1e-24)
_LOG_ORDERS = math.log(1e-6), math.log(1e12)
_GOLDEN = (math.sqrt(5) - 1) / 2
_NARROW = 1e-7


@dataclass(frozen=True)
class PrivacyLoss:
    """Pure `epsilon` plus `rho` of zCDP. Losses of plans over the same unit add up."""

    epsilon: float
    rho: float

    def __add__(self, other: "PrivacyLoss") -> "PrivacyLoss":
        return PrivacyLoss(self.epsilon + other.epsilon, self.rho + other.rho)

    def at(self, delta: float) -> float:
        """The epsilon of (epsilon, delta)-DP."""
        return self.epsilon + zcdp_epsilon(self.rho, delta)

    def of_group(self, windows: int) -> "PrivacyLoss":
        """The loss of a lease of several windows seen as one unit: pure epsilon grows k-fold, rho k²-fold."""
        return PrivacyLoss(windows * self.epsilon, windows**2 * self.rho)


NO_LOSS = PrivacyLoss(0.0, 0.0)


def plan_loss(plan: Plan) -> PrivacyLoss:
    """The loss of a unit by `plan` at every attendance, if in each group `plan.honest` of the smallest are honest.

    The worst is priced: there the noise that is opened is exactly what the plan asks for (`attendance.Shares`), and at
    every other it is more.
    """
    losses = [_marginal_loss(plan, m, table.events.size) for m, table in zip(plan.marginals, plan.tables, strict=True)]
    return sum(losses, NO_LOSS)


def _marginal_loss(plan: Plan, marginal: Marginal, cells: int) -> PrivacyLoss:
    l1, l2 = norms(marginal.counts, plan.failures_per_unit)
    if plan.mechanism is Mechanism.DISCRETE_LAPLACE:
        return PrivacyLoss(l1 / marginal.noise_scale, 0.0)
    sensitivity = l2 * (1 << SCALE_BITS[plan.mechanism])
    shares = plan.shares
    smallest, addends = min(shares.parts), shares.full * len(shares.parts)
    scales = gaussian_scale(plan, marginal, 1), gaussian_scale(plan, marginal, smallest)
    return PrivacyLoss(0.0, unequal_gaussian_rho(sensitivity, *scales, addends, cells))


def distributed_gaussian_rho(sensitivity: float, share_scale: float, shares: int, cells: int) -> float:
    """rho of a sum of `shares` discrete Gaussians of parameter `share_scale` each (Kairouz, Liu & Steinke 2021, Thm 1).

    `sensitivity` is the L2 sensitivity in ring units. Infinite where the theorem does not apply (share_scale² < 1/2).
    """
    return unequal_gaussian_rho(sensitivity, math.sqrt(shares) * share_scale, share_scale, shares, cells)


def unequal_gaussian_rho(sensitivity: float, scale: float, smallest: float, addends: int, cells: int) -> float:
    """The same for discrete Gaussians of unequal parameters, as many as `addends` and none below `smallest`.

    `scale` is the root of the sum of their squares, at least. The proof is in docs/privacy.md.
    """
    if smallest**2 < 0.5:
        return math.inf
    tau = _tau(smallest, addends)
    ideal = sensitivity / scale
    bound = min(math.sqrt(ideal**2 + 2 * tau * cells), ideal + tau * math.sqrt(cells))
    return bound**2 / 2


def _tau(share_scale: float, shares: int) -> float:
    """The distance of the sum from a discrete Gaussian; terms fall, so the last one bounds all beyond `_TAU_TERMS`.

    Where parameters differ, that of the smallest bounds each term.
    """
    evaluated = min(shares - 1, _TAU_TERMS)
    head = sum(_tau_term(share_scale, k) for k in range(1, evaluated + 1))
    return 10 * (head + (shares - 1 - evaluated) * _tau_term(share_scale, evaluated + 1))


def _tau_term(share_scale: float, k: int) -> float:
    exponent = 2 * math.pi**2 * share_scale**2 * k / (k + 1)
    return math.exp(-exponent) if exponent < _NEGLIGIBLE_EXPONENT else 0.0


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Smallest epsilon such that rho-zCDP implies (epsilon, delta)-DP (Canonne, Kamath & Steinke 2020, Prop. 12)."""
    if rho == 0:
        return 0.0
    if not math.isfinite(rho) or delta <= 0:
        return math.inf

    def at_order(log_excess: float) -> float:
        excess = math.exp(log_excess)
        order = 1 + excess
        return order * rho + (math.log(1 / delta) - math.log(order)) / excess + math.log1p(-1 / order)

    return max(0.0, _lowest(at_order, *_LOG_ORDERS))


def _lowest(cost: Callable[[float], float], low: float, high: float) -> float:
    """The lowest value of a function that falls and then rises, by golden sections; any value of it is a bound."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = cost(left), cost(right)
    while high - low > _NARROW:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = cost(right)
    return min(at_left, at_right)


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Largest rho whose zCDP implies (epsilon, delta)-DP; the inverse of `zcdp_epsilon`."""
    if not (epsilon > 0 and 0 < delta < 1):
        raise ValueError("Gaussian noise needs epsilon above 0 and delta in (0, 1); only Laplace noise allows delta 0")
    highest = epsilon
    while zcdp_epsilon(highest, delta) < epsilon:
        highest *= 2
    low, high = _LOWEST_LOG_RHO, math.log(highest)
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if zcdp_epsilon(math.exp(middle), delta) < epsilon else (low, middle)
    return math.exp(low)


def noise_scales(
    mechanism: Mechanism, epsilon: float, delta: float, failures_per_unit: int, weights: tuple[float, ...]
) -> tuple[float, ...]:
    """Noise scale per marginal such that the whole plan costs (epsilon, delta), split over marginals by `weights`.

    For marginals of failures; that of another subject is larger by the ratio of `federation.protocol.subjects.norms`.
    For Gaussian noise the weights share out rho, for Laplace noise epsilon. The result errs on the private side by one
    part in a million, which covers the distributed sum's distance from the ideal while a share's scale in the ring is
    at least 3; what a plan costs in any case says `plan_loss`.
    """
    shares = np.array(weights) / sum(weights) * (1 - 1e-6)
    if mechanism is Mechanism.DISCRETE_LAPLACE:
        return tuple(float(failures_per_unit / (epsilon * share)) for share in shares)
    rho = zcdp_rho(epsilon, delta)
    return tuple(float(failures_per_unit / math.sqrt(2 * rho * share)) for share in shares)


def spent_by_window(plans: Iterable[Plan]) -> Mapping[tuple[int, int], PrivacyLoss]:
    """By window: what a unit in it pays, if it was counted in the round of that window.

    A unit that waited is paid for once too, and the provider does not know which ones did.
    """
    return {plan.window: plan_loss(plan) for plan in sorted(plans, key=lambda plan: plan.start_hour)}
