"""Whether the provider's warnings come true, from the noisy sums of tenants' outcomes. Pure; both sides compute it.

    cells {none, hint, check} x {failed, fine} of a round ─▶ WarnedSum ─▶ precision, recall, with intervals
    all rounds, and what each plan claimed ─▶ bets against the claims ─▶ alarm

- Precision is the share of hints that came true, recall the share of infrastructure failures that a hint came before.
  Intervals know the noise: shares for which the sums are within 1.96 standard deviations of what one expects.
- A claim is a promise, "at least": it stands in the signed plan, which is made before any sum is known. A round bets
  against it with an e-value: each hint that came true divides the stake by e^alpha, each that did not multiplies it by
  e^beta, so that the stake does not grow if the claim holds, however many hints there are and whenever they are sent.
  The noise is divided out by its own moment generating function, exactly. Over rounds the stakes add up as in a
  Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo, 2023): of T rounds that keep the claim, any reaches `ALARM`
  with probability T / `ALARM` at most.
- The same against the provider's own past: the lower end of the interval of all rounds before.
- Warnings come together where a node is bad: each counts as one of `TOGETHER` that share a fate.

Not promised: that few warnings tell anything. docs/threat-model.md says how many it takes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

GAUSSIAN = "discrete_gaussian"  # as `federation.protocol.plan.Mechanism` names it, which needs what `status` does not
ALARM = 1000.0
TOGETHER = 1.35  # E[m²]/E[m] of units that one bad node fails within a week (regional with node faults: 1.26, 1.35)
INFLATED, HIDDEN = 1 / 1.2, 0.5  # what the bets look for: a fifth more warnings without cause, half of them kept back
LEAST_PROMISE, MOST_PROMISE = 0.01, 0.99
_Z = 1.959964
_REACH = 1.0  # of 1 / (noise of a cell): the largest bet; that of sqrt(2) would be where Laplace noise has no moments

Share = Annotated[float, Meta(ge=0, le=MOST_PROMISE)]


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The least precision and recall of its hints that the provider promises; 0: nothing."""

    precision: Share = 0.0
    recall: Share = 0.0

    @property
    def levels(self) -> tuple[str, ...]:
        """As a plan names them."""
        return f"precision {self.precision:g}", f"recall {self.recall:g}"

    @classmethod
    def of(cls, levels: Sequence[str]) -> "Claims":
        """What these levels of a plan claim; nothing where they are none."""
        try:
            named = {name: float(value) for name, value in (level.split(" ") for level in levels)}
            return msgspec.convert(named, cls)
        except ValueError:
            return cls()


class CellNoise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The noise in a cell, `opened` times as much as planned: by its law, as plans name it, and scale (b or sigma)."""

    law: str
    scale: float
    opened: float

    @property
    def variance(self) -> float:
        """In counts²."""
        if self.law == GAUSSIAN:
            return self.opened * self.scale**2
        kept = math.exp(-1 / self.scale)
        return self.opened * 2 * kept / (1 - kept) ** 2

    def log_moment(self, at: float) -> float:
        """log E exp(at · noise); sums of shares of noise keep this form, as both laws are infinitely divisible."""
        if self.law == GAUSSIAN:
            return self.opened * (at * self.scale) ** 2 / 2
        kept = math.exp(-1 / self.scale)
        odds = (1 - kept * math.exp(at)) * (1 - kept * math.exp(-at))
        return self.opened * (2 * math.log1p(-kept) - math.log(odds))

    @property
    def largest_bet(self) -> float:
        """How much a count may weigh."""
        return _REACH / math.sqrt(self.variance)


class WarnedSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The noisy counts of a round, [start_hour, end_hour), by warning and outcome, and what its plan claimed."""

    start_hour: int
    end_hour: int
    came_true: float
    in_vain: float
    unwarned: float
    checks_came_true: float
    checks_in_vain: float
    claims: Claims
    noise: CellNoise


class Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A share with its 95% interval, what is claimed, and the stake against the claim and against the own past."""

    share: float | None
    low: float
    high: float
    claimed: float
    against_claim: float
    against_past: float

    @property
    def below_claim(self) -> bool:
        """Whether the claim is refuted."""
        return self.against_claim >= ALARM

    @property
    def below_past(self) -> bool:
        """Whether it is less than in the rounds before."""
        return self.against_past >= ALARM


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all rounds say of hints; `checks` is the share of jobs that failed of those that a check warned of."""

    rounds: int
    until_hour: int
    precision: Estimate
    recall: Estimate
    checks: Estimate

    @property
    def alarm(self) -> bool:
        """Whether anything is refuted."""
        return any(one.below_claim or one.below_past for one in (self.precision, self.recall))


class _Pair(msgspec.Struct, frozen=True):
    """Noisy counts of what speaks for a claim and against it, the latter of so many cells together."""

    good: float
    bad: float
    bad_cells: int
    noise: CellNoise
    claimed: float = 0.0


class _Pooled(msgspec.Struct, frozen=True):
    """Such counts of several rounds, with the variances of their noise."""

    good: float = 0.0
    bad: float = 0.0
    of_good: float = 0.0
    of_bad: float = 0.0

    def plus(self, pair: _Pair) -> "_Pooled":
        variance = pair.noise.variance
        return _Pooled(
            self.good + pair.good,
            self.bad + pair.bad,
            self.of_good + variance,
            self.of_bad + pair.bad_cells * variance,
        )


def judged(sums: Iterable[WarnedSum]) -> Verdict | None:
    """The verdict over rounds in the order of their windows; None without any."""
    verdicts = course(sorted(sums, key=lambda one: one.start_hour))
    return verdicts[-1] if verdicts else None


def course(sums: Sequence[WarnedSum]) -> list[Verdict]:
    """The verdict after each of these rounds, which are in order."""
    precision = _estimates(map(_precision, sums), INFLATED)
    recall = _estimates(map(_recall, sums), HIDDEN)
    checks = _estimates(map(_checks, sums), 1.0)
    of_rounds = zip(sums, precision, recall, checks, strict=True)
    return [Verdict(number, one.end_hour, *found) for number, (one, *found) in enumerate(of_rounds, 1)]


def line_of(verdict: Verdict) -> str:
    """The verdict in one line, for a person."""
    precision, recall = verdict.precision, verdict.recall
    claims = ", ".join(f"{one.claimed:.0%}" if one.claimed else "nothing" for one in (precision, recall))
    alarms = [
        f"{name} is below {whose}"
        for name, one in (("precision", precision), ("recall", recall))
        for whose, is_below in (("its claim", one.below_claim), ("its own past", one.below_past))
        if is_below
    ]
    said = f"{_shown(precision)} came true; it warned of {_shown(recall)} of failures; it claims {claims}"
    return f"{said}; {', '.join(alarms)}" if alarms else said


def _shown(one: Estimate) -> str:
    known = "an unknown share" if one.share is None else f"{one.share:.0%}"
    return f"{known} ({100 * one.low:.0f}–{100 * one.high:.0f})"


def _precision(one: WarnedSum) -> _Pair:
    return _Pair(one.came_true, one.in_vain, 1, one.noise, one.claims.precision)


def _recall(one: WarnedSum) -> _Pair:
    """A failure after a check alone is one without a hint."""
    return _Pair(one.came_true, one.unwarned + one.checks_came_true, 2, one.noise, one.claims.recall)


def _checks(one: WarnedSum) -> _Pair:
    return _Pair(one.checks_came_true, one.checks_in_vain, 1, one.noise)


def _estimates(pairs: Iterable[_Pair], fallen: float) -> Iterator[Estimate]:
    claim, past, pooled = 0.0, 0.0, _Pooled()
    for pair in pairs:
        _, before, _ = interval(pooled)
        claim, past = _staked(claim, pair, pair.claimed, fallen), _staked(past, pair, before, fallen)
        pooled = pooled.plus(pair)
        yield Estimate(*interval(pooled), pair.claimed, claim, past)


def interval(pooled: _Pooled) -> tuple[float | None, float, float]:
    """The share over these rounds, None where counts are not above 0, and its 95% interval: 0 to 1 where all is open.

    A share s fits if (1 - s) good - s bad is within `_Z` standard deviations of 0: a quadratic inequality in s.
    """
    good, bad = pooled.good, pooled.bad
    of_good, of_bad = _Z**2 * pooled.of_good, _Z**2 * pooled.of_bad
    many = good + bad
    drawn = _Z**2 * TOGETHER * max(many, 0.0)
    square, half = many**2 + drawn - of_good - of_bad, good * many + drawn / 2 - of_good
    root = half**2 - square * (good**2 - of_good)
    share = min(1.0, max(0.0, good / many)) if many > 0 else None
    if share is None or square <= 0 or root < 0:
        return share, 0.0, 1.0
    low, high = ((half + sign * math.sqrt(root)) / square for sign in (-1, 1))
    return (share, max(0.0, low), min(1.0, high)) if low < 1 and high > 0 else (share, 0.0, 1.0)


# ---- bets ------------------------------------------------------------------------------------------------------------


def _staked(stake: float, pair: _Pair, promised: float, fallen: float) -> float:
    """The stakes of all rounds so far that began a bet, this one included; no more than `ALARM`, so that it can fall.

    A round without a promise is no bet, and changes nothing.
    """
    if promised < LEAST_PROMISE or fallen == 1.0:
        return stake
    grown = log_e(pair, min(promised, MOST_PROMISE), fallen) + math.log1p(stake)
    return ALARM if grown >= math.log(ALARM) else math.exp(grown)


def log_e(pair: _Pair, promised: float, fallen: float) -> float:
    """The logarithm of a round's e-value against `promised`, made for a share that fell to `fallen` times that.

    E[exp(log_e)] <= 1 while each warning, given all before, comes true with probability `promised` or more.
    """
    alpha, beta = _weights(promised, fallen, pair.noise.largest_bet)
    noise = pair.noise.log_moment(-alpha) + pair.bad_cells * pair.noise.log_moment(beta)
    return beta * pair.bad - alpha * pair.good - noise


def _weights(promised: float, fallen: float, largest: float) -> tuple[float, float]:
    """alpha and beta with promised · e^-(m alpha) + (1 - promised) · e^(m beta) = 1 for m = `TOGETHER`."""

    def alpha(beta: float) -> float:
        return -math.log((1 - (1 - promised) * math.exp(TOGETHER * beta)) / promised) / TOGETHER

    best = math.log((1 - promised * fallen) / (1 - promised)) / TOGETHER  # the likelihood ratio's: more gains nothing
    low, high = 0.0, min(best, largest)
    if alpha(high) <= largest:
        return alpha(high), high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if alpha(middle) <= largest else (low, middle)
    return alpha(low), low
