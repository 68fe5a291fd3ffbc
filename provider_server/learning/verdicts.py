"""One verdict for each pair of workload and context: with its evidence, its reason, and where to go instead.

Three views of the same pair meet here. The mixture model (`analysis.mismatch`) says how probably the pair is worse, and
decides: of pairs that are more likely worse than not, the surest, as many as leave the mean probability of an error at
4% at most (the posterior expected share of false discoveries; 5% is promised). The quasi-experiment (`analysis.qed`)
compares the workload with itself on other contexts, whose hours are weighted by what their hazards explain; its net
outcome, sign test and Γ are evidence. Its negative control may overrule: where script errors, which hardware cannot
cause, differ as well, the pair is confounded, not worse. Nothing is called not worse before the pair's own failures
exclude twice the rate: the model alone would say so of every pair of which nothing is known.

Of the others those are suspected that are more likely worse than not, and below these the likeliest, down to 3%, for as
long as they hold, with all that is called worse, at most 4.5% of the node-hours on pairs that are not worse (expected,
by the posterior). So who leaves all of them avoids the most for a known price in vain moves.

Pairs that are worse or suspected come with a counter-proposal: contexts where the workload itself fails less, no
suspicious one among them, whose rate's upper bound is below what the pair suffers (below the pair's own upper bound,
where it is not even likely to suffer), the lowest bound first.

    >>> surest(np.array([0.2, 0.99, 0.6, 0.97])).tolist()
    [1, 3]
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from federation.protocol.bundle import PairJudgement
from federation.protocol.life_table import Floats, LifeTable
from provider_server.analysis import quasi_experiment
from provider_server.analysis.mismatch import Mismatches

FALSE_SHARE = 0.04  # of the pairs called worse, expected: below the 5% that is promised, since the model is but a model
VAIN_SHARE = 0.045  # of node-hours on pairs that are not worse, expected to be suspected: below the 5% that users bear
CONTROL_LEVEL = 0.01  # of the negative control: of true mismatches it takes so many for confounded, by chance
LIKELY = 0.5
LEAST_SUSPICION = 0.03  # at eight times the failures, a fifth more than usual is expected: hardly worth a move
HARMFUL_RATIO = 2.0  # has to be excluded before a pair is called not worse
MOST_ALTERNATIVES = 3
CRITERIA = quasi_experiment.Criteria(control_level=CONTROL_LEVEL)
PAIRING_SEED = 0  # which node-hours are paired at random: the same releases give the same verdicts


@dataclass(frozen=True)
class PairFinding:
    """A workload row on a context, both as tokens.

    `risk_ratio` is the rate over what workload and context explain, with its 95% interval (`analysis.mismatch`);
    `rate` and `rate_high` are infrastructure failures per node-hour, and the upper bound; `compared` is the
    quasi-experiment. `alternatives` are tokens of contexts, the best first, of pairs that are likely worse.
    """

    workload: str
    context: str
    probability_worse: float
    risk_ratio: float
    low: float
    high: float
    expected_failures: float
    rate: float
    rate_high: float
    judgement: PairJudgement
    compared: quasi_experiment.PairVerdict
    alternatives: tuple[str, ...]

    @property
    def reason(self) -> str:
        """The verdict in a sentence."""
        interval = (
            f"95% interval {self.low:.1f} to {self.high:.1f}; {self.expected_failures:.0f} failures were expected"
        )
        seen = f"fails {self.risk_ratio:.1f} times as often as expected ({interval})"
        return f"{seen}; {_SAID[self.judgement]}{self._doubt()}"

    def _doubt(self) -> str:
        control, gamma = self.compared.control, self.compared.gamma
        if self.judgement is PairJudgement.CONFOUNDED:
            return f": script errors differ too, {control.ratio:.1f} times"
        if self.judgement is not PairJudgement.WORSE:
            return ""
        checked = "script errors do not differ" if control.sees else "script errors are too few to check"
        hidden = f"a hidden cause would have to change the odds {gamma:.1f}-fold" if gamma > 1 else ""
        return "; ".join(filter(None, (f", probability {self.probability_worse:.0%}; {checked}", hidden)))


_SAID = {
    PairJudgement.WORSE: "it does not suit this context",
    PairJudgement.CONFOUNDED: "the context need not be the cause",
    PairJudgement.SUSPECTED: "not sure, but probable enough to go elsewhere where that costs little",
    PairJudgement.NOT_WORSE: "not worse than it should be",
    PairJudgement.TOO_LITTLE: "too little is known to say that this is normal",
}


def surest(probability_worse: Floats) -> NDArray[np.intp]:
    """Positions of the pairs that are called worse, the surest first."""
    order = np.argsort(-probability_worse, kind="stable")
    falling = probability_worse[order]
    false_share = 1.0 - np.cumsum(falling) / np.arange(1, len(falling) + 1)
    return np.asarray(order[(false_share <= FALSE_SHARE) & (falling >= LIKELY)], np.intp)


def suspected(probability_worse: Floats, hours: Floats) -> NDArray[np.bool_]:
    """Which pairs, the surest among them, are worth leaving; `hours` (P,) ran on them.

    >>> suspected(np.array([0.9, 0.2, 0.2, 0.01]), np.array([1.0, 2.0, 90.0, 7.0])).tolist()
    [True, True, False, False]
    """
    order = np.argsort(-probability_worse, kind="stable")
    wrong = (hours * (1.0 - probability_worse))[order]
    few = np.cumsum(wrong) <= VAIN_SHARE * max(wrong.sum(), np.finfo(float).tiny)
    chosen = np.zeros(len(order), np.bool_)
    chosen[order] = few & (probability_worse[order] >= LEAST_SUSPICION)
    return np.asarray(chosen | (probability_worse >= LIKELY))


def judge_pairs(found: Mismatches, counted: LifeTable, control: LifeTable, node_hours: Floats) -> list[PairFinding]:
    """Verdicts on all pairs of `found`.

    `counted` holds the released failures by (workload, context), its exposure what the hazards let one expect to count;
    `control` script errors over the same cells, without exposure where nobody counted them; `node_hours` has the shape
    of both.
    """
    cells = found.workload, found.context
    scale = node_hours.sum() / max(counted.exposure_node_hours.sum(), np.finfo(float).tiny)
    compared = {
        (one.workload, one.context): one
        for one in quasi_experiment.judge(
            _per_average_hour(counted, scale), control, np.random.default_rng(PAIRING_SEED), CRITERIA
        )
    }
    accused, likely = np.zeros(len(found.ratio), np.bool_), found.probability_worse >= LIKELY
    accused[surest(found.probability_worse)] = True
    doubted = suspected(found.probability_worse, node_hours[cells])
    per_hour = found.expected / np.maximum(node_hours[cells], np.finfo(float).tiny)
    rate, rate_high = found.ratio * per_hour, found.ratio_high * per_hour
    workloads, contexts = counted.levels("workload"), counted.levels("context")
    findings = []
    for place, (workload, context) in enumerate(zip(*cells, strict=True)):
        twin = compared[workloads[workload], contexts[context]]
        better: Sequence[int] = ()
        if doubted[place]:
            bound = rate[place] if likely[place] else rate_high[place]
            fit = (found.workload == workload) & ~doubted & (rate_high < bound)
            better = sorted(np.flatnonzero(fit).tolist(), key=lambda other: (rate_high[other], other))
        findings.append(
            PairFinding(
                workloads[workload],
                contexts[context],
                min(1.0, float(found.probability_worse[place])),  # a sum of parts of one, rounded
                float(found.ratio[place]),
                float(found.ratio_low[place]),
                float(found.ratio_high[place]),
                float(found.expected[place]),
                float(rate[place]),
                float(rate_high[place]),
                _judgement(bool(accused[place]), bool(doubted[place]), found, place, twin),
                twin,
                tuple(contexts[found.context[other]] for other in better[:MOST_ALTERNATIVES]),
            )
        )
    return findings


def _judgement(
    accused: bool,  # noqa: FBT001
    doubted: bool,  # noqa: FBT001
    found: Mismatches,
    place: int,
    compared: quasi_experiment.PairVerdict,
) -> PairJudgement:
    if doubted and not compared.control.fires:
        return PairJudgement.WORSE if accused else PairJudgement.SUSPECTED
    if found.probability_worse[place] >= LIKELY:
        return PairJudgement.CONFOUNDED
    settled = compared.judgement is PairJudgement.NOT_WORSE and found.ratio_high[place] < HARMFUL_RATIO
    return PairJudgement.NOT_WORSE if settled else PairJudgement.TOO_LITTLE


def _per_average_hour(counted: LifeTable, scale: float) -> LifeTable:
    """Exposure in node-hours of average hazard, which is what pairs of node-hours are made of."""
    return replace(counted, exposure_node_hours=scale * counted.exposure_node_hours)
