"""What is audited: releases and single contributions, honest and not, and what the project claims of each.

A case makes one tally per run; `judged` turns the sum of its tallies into a row of the report.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property

import numpy as np

from crypto.masking import Words
from federation.protocol.noise import Integers, SystemSampler
from federation.protocol.plan import Mechanism, Plan
from simulation.studies.audit.attacks import Attack, attack_on
from simulation.studies.audit.bounds import (
    Tally,
    chance_of_conviction,
    gaussian_epsilon,
    gaussian_shift,
    is_sure,
    largest_ratio,
    proven_epsilon,
    threshold_tally,
)
from simulation.studies.audit.masks import (
    bits_tally,
)
from simulation.studies.audit.parties import Parties
from simulation.studies.audit.path import Coins, seen_of_epoch

AUDIT_DELTA = 0.01  # where few runs prove much without a model
FOUND = 0.999
GAUSSIAN = Mechanism.DISCRETE_GAUSSIAN


class Verdict(StrEnum):
    """What an audit says of a claim."""

    WITHIN = "within"
    CONVICTED = "convicted"
    UNDECIDED = "undecided"  # too few units to expect a conviction


@dataclass(frozen=True)
class Row:
    """One line of the report. Nothing in a field: it makes no sense there.

    `by_counts` and `by_law` are proven lower bounds on epsilon, without a model and under the Gaussian one, `at_most`
    the upper one under it; all of them at the plan's δ. `finds` is the largest scale of noise, as a part of what it
    should be, that so many canaries convict with probability .999; `power` their chance to convict what is convicted
    here, or in an honest row noise that is halved.
    """

    setting: str
    canaries: int
    claimed: float
    by_counts: float
    by_law: float | None
    at_most: float | None
    claimed_at_audit_delta: float
    by_counts_at_audit_delta: float
    finds: float | None
    power: float | None
    verdict: Verdict
    expected: Verdict
    cpu_s: float = 0.0


class InsecureScale:
    """The product's sampler at `factor` times the scale that it is asked for."""

    def __init__(self, factor: float) -> None:
        self._factor, self._exact = factor, SystemSampler()

    def gaussian(self, scale: float, size: int) -> Integers:
        """As `SystemSampler`, but for the scale."""
        return self._exact.gaussian(self._factor * scale, size)

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        """As `SystemSampler`, but for the scale."""
        return self._exact.laplace_share(self._factor * scale, shares, size)


def toss(canaries: int) -> Coins:
    """One fair coin for each."""
    return np.unpackbits(np.frombuffer(os.urandom(-(-canaries // 8)), np.uint8))[:canaries].astype(np.bool_)


# ---- releases --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfReleases:
    """All releases of an epoch, or of one round with so many canaries, when some of the tenants that answer collude."""

    setting: str
    parties: Parties
    plans: Sequence[Plan]
    canaries: int
    runs: int
    factor: float = 1.0
    colluding: int = 1
    expected: Verdict = Verdict.WITHIN

    @cached_property
    def _attack(self) -> Attack:
        answered, plan = len(self.parties.tenants), self.plans[0]
        return attack_on(plan, (answered - self.colluding) * float(plan.shares.of(plan.honest(answered))))

    def run(self) -> Tally:
        """One epoch."""
        coins = toss(self.canaries * len(self.plans))
        sampler = SystemSampler() if self.factor == 1 else InsecureScale(self.factor)
        seen = seen_of_epoch(self.parties, self.plans, coins, sampler, self.colluding)
        return threshold_tally(self._attack.scores(seen, self.canaries), coins, self._attack.thresholds)

    def judged(self, tally: Tally, risk: float) -> Row:
        """At the plan's δ and at that of audits."""
        plan, each = self.plans[0], risk / 3
        low, high = gaussian_shift(tally, 0, each)
        is_gaussian = plan.mechanism is GAUSSIAN

        def is_convicted(found: Tally) -> bool:
            return self._is_convicted(found, each)

        power = chance_of_conviction(self._attack.rates(self._suspected), tally, is_convicted)
        innocent = Verdict.UNDECIDED if self.expected is Verdict.CONVICTED and power < FOUND else Verdict.WITHIN
        return Row(
            setting=self.setting,
            canaries=tally.members + tally.others,
            claimed=self._attack.claimed(plan.delta),
            by_counts=proven_epsilon(tally, plan.delta, each),
            by_law=gaussian_epsilon(low, plan.delta) if is_gaussian else None,
            at_most=gaussian_epsilon(high, plan.delta) if is_gaussian else None,
            claimed_at_audit_delta=self._attack.claimed(AUDIT_DELTA),
            by_counts_at_audit_delta=proven_epsilon(tally, AUDIT_DELTA, each),
            finds=self._finds(tally, is_convicted),
            power=power,
            verdict=Verdict.CONVICTED if is_convicted(tally) else innocent,
            expected=self.expected,
        )

    @property
    def _suspected(self) -> float:
        """What the power is about."""
        return self.factor if self.expected is Verdict.CONVICTED else 0.5

    def _is_convicted(self, tally: Tally, each: float) -> bool:
        plan = self.plans[0]
        if any(proven_epsilon(tally, delta, each) > self._attack.claimed(delta) for delta in (plan.delta, AUDIT_DELTA)):
            return True
        shift, _ = gaussian_shift(tally, 0, each)
        return plan.mechanism is GAUSSIAN and gaussian_epsilon(shift, plan.delta) > self._attack.claimed(plan.delta)

    def _finds(self, tally: Tally, is_convicted: Callable[[Tally], bool]) -> float:
        """By bisection: narrower noise is easier to find."""
        low, high = 0.0, 1.0
        while high - low > 0.002:
            middle = (low + high) / 2
            found = is_sure(self._attack.rates(middle), tally, is_convicted, 1 - FOUND)
            low, high = (middle, high) if found else (low, middle)
        return low


# ---- single contributions --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfOne:
    """The counts of one contribution, under whatever masks the attacker cannot take off."""

    setting: str
    parties: Parties
    plan: Plan
    canaries: int
    runs: int
    seen: Callable[[Parties, Plan, Coins], Words]
    expected: Verdict = Verdict.WITHIN

    def run(self) -> Tally:
        """One contribution."""
        coins = toss(self.canaries)
        return bits_tally(self.seen(self.parties, self.plan, coins), coins)

    def judged(self, tally: Tally, risk: float) -> Row:
        """The claim is that nothing is seen at all."""
        each = risk / 3
        by_counts, at_most = proven_epsilon(tally, self.plan.delta, each), largest_ratio(tally, each)
        return Row(
            setting=self.setting,
            canaries=tally.members + tally.others,
            claimed=0.0,
            by_counts=by_counts,
            by_law=None,
            at_most=at_most if math.isfinite(at_most) else None,
            claimed_at_audit_delta=0.0,
            by_counts_at_audit_delta=proven_epsilon(tally, AUDIT_DELTA, each),
            finds=None,
            power=None,
            verdict=Verdict.CONVICTED if by_counts > 0 else Verdict.WITHIN,
            expected=self.expected,
        )


Case = OfReleases | OfOne
