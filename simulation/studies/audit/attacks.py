"""The best attacks on releases: the likelihood ratio of all that is seen of a unit, in all marginals of its window.

An attack turns what is seen into one score per canary: the larger, the more likely is the failure there. Its tests are
thresholds, fixed before anything is seen; the first is the middle between with and without.

Both know the law of the noise as the plan states it. If the noise is narrower in truth, the order of the ratios is
nearly the same, so that the attack stays good; a bound never depends on it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from scipy.stats import norm

from federation.protocol.life_table import Floats
from federation.protocol.noise import Integers
from federation.protocol.plan import Mechanism, Plan
from federation.protocol.privacy_cost import plan_loss, zcdp_epsilon
from simulation.studies.audit.path import at_canaries

_REACH = 20.0  # in scales b: counts beyond tell no more than this one
_CIRCLE = 2**14  # of so many numbers, on which laws are worked out
_GRAIN, _MOST_GRAINS = 0.001, 1500


@dataclass(frozen=True)
class GaussianAttack:
    """Scores are in standard deviations of the noise: around 0 without the failure, around `shift` with it."""

    plan: Plan
    held: float

    @cached_property
    def shift(self) -> float:
        """μ: the root of 2ρ as the noise of all honest shares has it."""
        return float(sum(1 / scale**2 for scale in self._scales) ** 0.5)

    @property
    def _scales(self) -> list[float]:
        left = self.held**0.5
        return [left * marginal.noise_scale for marginal in self.plan.marginals]

    @property
    def thresholds(self) -> Floats:
        """From the middle to far out, where a small δ asks for them."""
        return self.shift / 2 + np.arange(0, 4, 0.25)

    def scores(self, seen: Iterable[Floats], canaries: int) -> Floats:
        """A weighted sum over marginals."""
        precision = 1 / np.array(self._scales) ** 2 / self.shift
        return np.concatenate([precision @ at_canaries(self.plan, flat, canaries) for flat in seen])

    def rates(self, factor: float) -> tuple[Floats, Floats]:
        """By the normal law, from which a sum of shares differs by less than any count shows."""
        return norm.sf((self.thresholds - self.shift) / factor), norm.sf(self.thresholds / factor)

    def claimed(self, delta: float) -> float:
        """With fewer honest shares than the noise needs, ρ grows by as much (docs/privacy.md)."""
        return zcdp_epsilon(plan_loss(self.plan).rho * max(1.0, 1 / self.held), delta)


@dataclass(frozen=True)
class LaplaceAttack:
    """Scores are logarithms of likelihood ratios, between -ε and ε while all shares are there."""

    plan: Plan
    held: float

    @property
    def thresholds(self) -> Floats:
        """From about the middle to beyond the claim; none where many scores are equal."""
        return np.linspace(0.005, 1.305, 27)

    def scores(self, seen: Iterable[Floats], canaries: int) -> Floats:
        """Summed over marginals."""
        counts = np.concatenate([at_canaries(self.plan, flat, canaries) for flat in seen], axis=1)
        cells = np.rint(counts).astype(np.int64)
        total: Floats = np.sum([self._ratios(at, counts) for at, counts in enumerate(cells)], axis=0)
        return total

    def _ratios(self, marginal: int, counts: Integers) -> Floats:
        scale = self.plan.marginals[marginal].noise_scale
        law = _log_law(scale, self._part)
        near = np.clip(counts, -int(_REACH * scale), int(_REACH * scale))
        return law[near - 1] - law[near]

    @property
    def _part(self) -> float:
        return self.held

    def rates(self, factor: float) -> tuple[Floats, Floats]:
        """By the law of the shares that are left, with scores rounded to a thousandth in each marginal."""
        return self._rate(factor, 1), self._rate(factor, 0)

    def _rate(self, factor: float, failures: int) -> Floats:
        law = reduce(np.convolve, (self._score_law(at, factor, failures) for at in range(len(self.plan.marginals))))
        middle = len(law) // 2
        above = np.cumsum(law[::-1])[::-1]
        return np.clip(above[middle + np.ceil(self.thresholds / _GRAIN).astype(np.int64)], 0, 1)

    def _score_law(self, marginal: int, factor: float, failures: int) -> Floats:
        """Chances of the scores of one marginal, in grains from -1.5 to 1.5."""
        scale = self.plan.marginals[marginal].noise_scale
        counts = np.arange(-int(_REACH * scale), int(_REACH * scale) + 1)
        chances = np.exp(_log_law(factor * scale, self._part)[counts - failures])
        grains = np.rint(self._ratios(marginal, counts) / _GRAIN).astype(np.int64) + _MOST_GRAINS
        return np.bincount(grains, chances, 2 * _MOST_GRAINS + 1).astype(np.float64)

    def claimed(self, delta: float) -> float:
        """What the plan claims; with shares missing the project promises nothing in figures."""
        return plan_loss(self.plan).at(delta)


Attack = GaussianAttack | LaplaceAttack


def attack_on(plan: Plan, held: float) -> Attack:
    """The one for the plan's mechanism, when `held` times the noise that the plan asks for is unknown to it."""
    if plan.mechanism is Mechanism.DISCRETE_GAUSSIAN:
        return GaussianAttack(plan, held)
    return LaplaceAttack(plan, held)


def _log_law(scale: float, part: float) -> Floats:
    """Logarithms of the probabilities of 0, 1, …, and by negative index -1, -2, …, of that part of all Pólya shares."""
    decay = np.exp(-1 / scale)
    angles = 2 * np.pi * np.arange(_CIRCLE) / _CIRCLE
    characteristic = np.abs((1 - decay) / (1 - decay * np.exp(1j * angles))) ** (2 * part)
    law: Floats = np.log(np.maximum(np.fft.ifft(characteristic).real, 1e-300))
    return law
