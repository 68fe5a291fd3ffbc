"""Is a workload on a context worse than it should be? A quasi-experiment for every pair, with a negative control.

Treated are the workload's hours on the context, untreated its hours on all other contexts, compared only within strata
of equal confounders (`analysis.matching`). The effect is the Mantel–Haenszel ratio of the two rates, R / S with
R = Σ a n₀ / T and S = Σ b n₁ / T over strata (a, b failures, n₁, n₀ exposure, T = n₁ + n₀). At a common ratio φ,

    Var(R − φ S) = φ Σ (a + b) n₁ n₀ / T²  +  Σ (n₀ / T)² σ²_a  +  φ² Σ (n₁ / T)² σ²_b:

the first term is Greenland and Robins' (Biometrics 41, 1985), the others are the known variances of noise in released
counts. The interval is Fieller's, all φ with (R − φ S)² <= z² Var(R − φ S): without bound where the noise could have
made S, and down to zero where it could have made R. The p-value at φ = 1 is that of the conditional law, a sum of
binomials plus noise, whose tails hold for few failures too; hence p < 0.05 need not agree exactly with an interval that
leaves out 1. A verdict takes its upper tail alone; Benjamini–Hochberg covers all pairs with enough failures, which are
chosen by their sum over both arms.

Script errors cannot be caused by hardware. Where the same comparison finds a difference in them, the workload's hours
there differ in something else, and an effect is called confounded instead of worse.

Promised: under independent failures, equal rates within strata and the stated noise, pairs called `WORSE` without being
so are `level` of them at most, on average. Not promised: a cause. A context that is bad for everybody shows too; who
asks what is beyond that gives, as exposure, hours weighted by each context's own hazard. Of pairs that are worse, the
control takes `control_level` for confounded, by chance; and other contexts that are bad make this one look better.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, norm

from federation.protocol.bundle import PairJudgement
from federation.protocol.life_table import Floats, LifeTable
from provider_server.fleet.analysis.matching import Arm, Places, SignTest, sign_test_of_cells, upper_tail


@dataclass(frozen=True)
class Criteria:
    """Where lines are drawn.

    `level` bounds the false discoveries, `control_level` is that of the negative control; `harmful_ratio` has to be
    excluded before a pair is called not worse.
    """

    level: float = 0.05
    control_level: float = 0.05
    harmful_ratio: float = 2.0
    minimum_failures: float = 20.0
    pair_node_hours: float = 168.0
    repeats: int = 50
    most_alternatives: int = 3


@dataclass(frozen=True, eq=False)
class RateRatio:
    """Mantel–Haenszel ratios of P comparisons and what they rest on, every array (P,).

    `failures`, `failures_elsewhere` and `exposure_node_hours` (treated) are those of strata with both arms. `log_sd` is
    that of log ratio (Greenland–Robins, with noise). `p` is two-sided, `p_worse` that of a ratio of 1 or less.
    """

    value: Floats
    low: Floats
    high: Floats
    log_sd: Floats
    p: Floats
    p_worse: Floats
    failures: Floats
    failures_elsewhere: Floats
    exposure_node_hours: Floats


@dataclass(frozen=True)
class PairEvidence:
    """Failures and node-hours on the context, failures elsewhere, and pairs of matched node-hours; matched strata only.

    Released counts carry noise, so failures may be fractional, or negative.
    """

    pairs: float
    failures: float
    failures_elsewhere: float
    exposure_node_hours: float


@dataclass(frozen=True)
class Control:
    """The same comparison of script errors; `fires` where it is significant, `sees` where there were enough of them."""

    ratio: float
    p: float
    fires: bool
    sees: bool


@dataclass(frozen=True)
class Alternative:
    """A context where the workload fails less: its rate there over that elsewhere, and the upper bound."""

    context: str
    ratio: float
    high: float


@dataclass(frozen=True)
class PairVerdict:
    """A workload on a context; `ratio` is its rate there over that on other contexts, with its 95% interval.

    `p` is one-sided, `q` after Benjamini–Hochberg (1 where failures are too few); `net_outcome`, `spread`, `sign_p` and
    `gamma` are the sign test's (`analysis.matching.SignTest`).
    """

    workload: str
    context: str
    judgement: PairJudgement
    evidence: PairEvidence
    ratio: float
    low: float
    high: float
    p: float
    q: float
    net_outcome: float
    spread: float
    sign_p: float
    gamma: float
    control: Control
    alternatives: tuple[Alternative, ...]

    @property
    def reason(self) -> str:
        """The verdict in a sentence."""
        seen = f"{self.evidence.failures:.0f} failures in {self.evidence.exposure_node_hours:.0f} matched node-hours"
        interval = f"95% interval {self.low:.2g} to {self.high:.2g}"
        if self.judgement is PairJudgement.TOO_LITTLE:
            return f"{self.workload} on {self.context} cannot be judged yet: {seen}, {interval}."
        compared = f"{self.workload} on {self.context} fails {self.ratio:.2g} times as often as on other contexts"
        said = f"{compared} ({interval}; {seen}; q = {self.q:.2g})"
        return f"{said}{self._doubt()}{self._proposal()}."

    def _doubt(self) -> str:
        if self.judgement is PairJudgement.NOT_WORSE:
            return ", which is no worse than expected"
        if self.judgement is PairJudgement.CONFOUNDED:
            return (
                f", but so do its script errors ({self.control.ratio:.2g} times), so the hardware may not be the cause"
            )
        control = "script errors do not differ" if self.control.sees else "too few script errors to check"
        return f"; {control}, and a hidden cause would have to change the odds {self.gamma:.1f}-fold"

    def _proposal(self) -> str:
        if not self.alternatives:
            return ""
        best = self.alternatives[0]
        return f"; it fails less on {best.context}, at most {best.high:.2g} times its rate elsewhere"


def mantel_haenszel(treated: Arm, untreated: Arm, *, mass: float = 0.95) -> RateRatio:
    """Rate ratios of treated over untreated, with intervals that hold `mass`; nan in (0, inf) if nothing compares."""
    both = (treated.exposure_node_hours > 0.0) & (untreated.exposure_node_hours > 0.0)
    treated, untreated = treated.where(both), untreated.where(both)
    total = np.where(both, treated.exposure_node_hours + untreated.exposure_node_hours, 1.0)
    share, rest = treated.exposure_node_hours / total, untreated.exposure_node_hours / total
    failures = treated.events + untreated.events
    R, S = (treated.events * rest).sum(axis=1), (untreated.events * share).sum(axis=1)
    chance = np.maximum((failures * share * rest).sum(axis=1), 0.0)
    noise = (treated.noise_variance * rest**2).sum(axis=1), (untreated.noise_variance * share**2).sum(axis=1)
    value = _divide(np.maximum(R, 0.0), np.maximum(S, 0.0))
    low, high = _fieller(R, S, chance, noise, float(norm.ppf(0.5 + mass / 2.0)))
    more, fewer = _tails(R - S, failures, share, noise[0] + noise[1])
    return RateRatio(
        value=value,
        low=low,
        high=high,
        log_sd=_log_sd(R, S, chance, noise),
        p=np.minimum(2.0 * np.minimum(more, fewer), 1.0),
        p_worse=more,
        failures=treated.events.sum(axis=1),
        failures_elsewhere=untreated.events.sum(axis=1),
        exposure_node_hours=treated.exposure_node_hours.sum(axis=1),
    )


def _divide(above: Floats, below: Floats) -> Floats:
    """Ratios: infinite where only `below` is zero, nan where both are."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(above / below, np.float64)


def _log_sd(R: Floats, S: Floats, chance: Floats, noise: tuple[Floats, Floats]) -> Floats:
    """Of log R / S by the delta method; infinite unless both are positive."""
    known = (R > 0.0) & (S > 0.0)
    above, below = np.where(known, R, 1.0), np.where(known, S, 1.0)
    variance = chance / (above * below) + noise[0] / above**2 + noise[1] / below**2
    return np.where(known, np.sqrt(variance), np.inf)


def _fieller(R: Floats, S: Floats, chance: Floats, noise: tuple[Floats, Floats], z: float) -> tuple[Floats, Floats]:
    """The roots of (S² − z² noise_b) φ² − (2 R S + z² chance) φ + (R² − z² noise_a), as bounds of φ >= 0."""
    a, b, c = S**2 - z**2 * noise[1], 2.0 * R * S + z**2 * chance, R**2 - z**2 * noise[0]
    rise = b + np.sqrt(np.maximum(b**2 - 4.0 * a * c, 0.0))
    low = np.where((c > 0.0) & (rise > 0.0), 2.0 * c / np.where(rise > 0.0, rise, 1.0), 0.0)
    return low, np.where(a > 0.0, np.maximum(rise / np.where(a > 0.0, 2.0 * a, 1.0), 0.0), np.inf)


def _tails(excess: Floats, failures: Floats, share: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """P(Σ a as high or higher), P(as low or lower), given a + b: a is Binomial(a + b, share) if there is no effect.

    Noisy sums a + b are raised to zero and scaled back to their total.
    """
    trials = np.maximum(failures, 0.0)
    trials *= np.minimum(_whole_share(np.maximum(failures.sum(axis=1), 0.0), trials.sum(axis=1)), 1.0)[:, None]
    expected = (trials * share).sum(axis=1)
    value = np.where(noise == 0.0, np.round(expected + excess), expected + excess)
    more = upper_tail(value, trials, share, noise)
    fewer = upper_tail(trials.sum(axis=1) - value, trials, 1.0 - share, noise)
    return more, fewer


def _whole_share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.ones(part.shape), where=whole > 0.0)


def arms(table: LifeTable, pairs: Places | None = None) -> tuple[Places, Arm, Arm]:
    """Positions (2, P) of all pairs with exposure, or `pairs`, and for each its own cells and the workload's elsewhere.

    The table is over (workload, context, strata …); cells of all further dimensions become the strata.
    """
    if len(table.dimensions) < 2 or table.names[:2] != ("workload", "context"):
        raise ValueError(f"a table over (workload, context, strata …) is asked for, not over {table.names}")
    cubes = [
        values.reshape(*table.shape[:2], -1)
        for values in (table.events, table.exposure_node_hours, table.noise_variance)
    ]
    pairs = np.array(np.nonzero(cubes[1].sum(axis=2) > 0.0), np.intp) if pairs is None else pairs
    here = [cube[pairs[0], pairs[1]] for cube in cubes]
    elsewhere = [_elsewhere(cube)[pairs[0], pairs[1]] for cube in cubes]
    return pairs, Arm(*here), Arm(*elsewhere)


def _elsewhere(cube: Floats) -> Floats:
    """Sums over every other context, added up and not subtracted: exact zeros must stay zeros."""
    others = 1.0 - np.eye(cube.shape[1])
    return np.asarray(np.einsum("wcs,dc->wds", cube, others), np.float64)


def judge(
    table: LifeTable, control: LifeTable, rng: np.random.Generator, criteria: Criteria | None = None
) -> tuple[PairVerdict, ...]:
    """Verdicts on all pairs with exposure, from tables over the same (workload, context, strata …).

    `table` counts the failures in question, `control` script errors in exposure of its own; where it has none, it sees
    nothing. ValueError where their dimensions differ.
    """
    criteria = criteria or Criteria()
    if control.dimensions != table.dimensions:
        raise ValueError("failures and script errors must be counted over the same cells")
    pairs, here, elsewhere = arms(table)
    signs = sign_test_of_cells(
        here, elsewhere, rng, pair_node_hours=criteria.pair_node_hours, repeats=criteria.repeats, level=criteria.level
    )
    _, control_here, control_elsewhere = arms(control, pairs)
    compared = _Compared(
        pairs, mantel_haenszel(here, elsewhere), signs, mantel_haenszel(control_here, control_elsewhere), criteria
    )
    return compared.verdicts(table.levels("workload"), table.levels("context"))


@dataclass(frozen=True, eq=False)
class _Compared:
    pairs: Places
    ratio: RateRatio
    signs: SignTest
    control: RateRatio
    criteria: Criteria

    def verdicts(self, workloads: Sequence[str], contexts: Sequence[str]) -> tuple[PairVerdict, ...]:
        q, enough = self._q(), self._enough(self.ratio)
        return tuple(
            self._verdict(
                place,
                self._judgement(place, float(q[place])) if enough[place] else PairJudgement.TOO_LITTLE,
                float(q[place]),
                workloads,
                contexts,
            )
            for place in range(len(q))
        )

    def _enough(self, ratio: RateRatio) -> NDArray[np.bool_]:
        """By the sum over both arms, which says nothing about their ratio, so that choosing by it costs no error."""
        sums = ratio.failures + ratio.failures_elsewhere
        return np.asarray((sums >= self.criteria.minimum_failures) & (ratio.exposure_node_hours > 0.0), np.bool_)

    def _q(self) -> Floats:
        """Corrected apart where the control fires: it is independent of `p_worse`, so may choose what is tested."""
        q, enough = np.ones(len(self.ratio.p_worse)), self._enough(self.ratio)
        fires = self._enough(self.control) & (self.control.p <= self.criteria.control_level)
        for group in (enough & fires, enough & ~fires):
            if group.any():
                q[group] = false_discovery_control(self.ratio.p_worse[group])
        return q

    def _control(self, place: int) -> Control:
        p, sees = float(self.control.p[place]), bool(self._enough(self.control)[place])
        return Control(float(self.control.value[place]), p, sees and p <= self.criteria.control_level, sees)

    def _judgement(self, place: int, q: float) -> PairJudgement:
        if q <= self.criteria.level:
            return PairJudgement.CONFOUNDED if self._control(place).fires else PairJudgement.WORSE
        settled = self.ratio.high[place] < self.criteria.harmful_ratio
        return PairJudgement.NOT_WORSE if settled else PairJudgement.TOO_LITTLE

    def _alternatives(self, place: int, contexts: Sequence[str]) -> tuple[Alternative, ...]:
        """Contexts of the same workload whose upper bound is below what it suffers here, the lowest first."""
        ratio = self.ratio
        fit = (self.pairs[0] == self.pairs[0][place]) & self._enough(ratio) & (ratio.high < ratio.value[place])
        fit[place] = False
        found = np.flatnonzero(fit)
        found = found[np.argsort(ratio.high[found], kind="stable")][: self.criteria.most_alternatives]
        return tuple(
            Alternative(contexts[self.pairs[1][at]], float(ratio.value[at]), float(ratio.high[at])) for at in found
        )

    def _verdict(
        self, place: int, judgement: PairJudgement, q: float, workloads: Sequence[str], contexts: Sequence[str]
    ) -> PairVerdict:
        ratio, signs = self.ratio, self.signs
        accused = judgement in (PairJudgement.WORSE, PairJudgement.CONFOUNDED)
        counts = (signs.pairs, ratio.failures, ratio.failures_elsewhere, ratio.exposure_node_hours)
        return PairVerdict(
            workload=workloads[self.pairs[0][place]],
            context=contexts[self.pairs[1][place]],
            judgement=judgement,
            evidence=PairEvidence(*(float(column[place]) for column in counts)),
            ratio=float(ratio.value[place]),
            low=float(ratio.low[place]),
            high=float(ratio.high[place]),
            p=float(ratio.p_worse[place]),
            q=q,
            net_outcome=float(signs.net_outcome[place]),
            spread=float(signs.spread[place]),
            sign_p=float(signs.p[place]),
            gamma=float(signs.gamma[place]),
            control=self._control(place),
            alternatives=self._alternatives(place, contexts) if accused else (),
        )
