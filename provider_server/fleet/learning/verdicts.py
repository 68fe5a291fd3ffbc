"""One verdict for each pair of workload and context, with evidence, reason and alternative contexts.

- *Worse* and *suspected*: by `federation.protocol.judgement`, from the probabilities of `analysis.mismatch`.
- *In a block* of pairs that share a defect (`analysis.blocks`) only a pair whose own data support it is called worse;
  others are suspected. A block may be false as a whole, so it counts as one pair, the most probable of it, where false
  ones are weighed against all that are called worse: many pairs of one block leave no room for unsure ones elsewhere.
- *Over many bundles*: bundles follow one another, and each would have its own false ones. So a pair is called worse for
  the first time only while the charges of all that ever were, 1 − probability at that first time, are 4% of their
  number or less (`within_budget`); others are suspected.
- *Confounded* instead of worse: the negative control fires, since script errors, which hardware cannot cause, are more
  frequent, too (`analysis.quasi_experiment`), and by so much that they explain half of the effect or more. Before,
  a seventh of the hardware failures is taken off the script errors, as if tenants had taken so many for them (with the
  cap on both: of a unit that fails often, one counts as either): where both are more frequent by the same factor,
  that changes nothing. The quasi-experiment compares the workload with
  itself on other contexts, whose hours are weighted by what their hazards explain; its net outcome, sign test and Γ
  are reported as evidence.
- *Not worse*: only if the pair's own failures exclude twice the expected rate; the model alone would say so of every
  pair without data.

Alternatives of a pair that is worse or suspected: contexts where the workload fails less and is not suspected, whose
upper bound of the rate is below the pair's rate (or below its upper bound, where the pair's probability is below ½);
lowest bound first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from federation.protocol.bundle import PairJudgement
from federation.protocol.judgement import FALSE_SHARE, HARMFUL_RATIO, LIKELY, surest, suspected
from federation.protocol.life_table import Floats, LifeTable
from provider_server.fleet.analysis import quasi_experiment
from provider_server.fleet.analysis.blocks import MOST_BLOCKS, NO_BLOCK
from provider_server.fleet.analysis.mismatch import Mismatches

CONTROL_LEVEL = 0.01  # share of true mismatches that the negative control calls confounded by chance
MOST_ALTERNATIVES = 3
MISREPORTED = 0.15  # of hardware failures, as a share of those that were told as such
EXPLAINS = 0.5  # of the logarithm of a pair's ratio: less is what misreported hardware failures make of script errors
CRITERIA = quasi_experiment.Criteria(control_level=CONTROL_LEVEL)
PAIRING_SEED = 0  # which node-hours are paired at random: the same releases give the same verdicts

Pair = tuple[str, str]  # a workload row and a context


@dataclass(frozen=True)
class PairFinding:
    """A workload row on a context, both as tokens.

    `risk_ratio` is the rate over what workload and context explain. `low` to `high` is the 95% interval of the pair by
    itself, `likely_low` to `likely_high` the central 95% of what is known of it among all pairs (`analysis.mismatch`),
    by which it is judged. `rate` and `rate_high` are infrastructure failures per node-hour, and the upper bound of what
    is likely; `compared` is the quasi-experiment. `alternatives` are tokens of contexts, the best first, of pairs that
    are likely worse.
    """

    workload: str
    context: str
    probability_worse: float
    risk_ratio: float
    low: float
    high: float
    likely_low: float
    likely_high: float
    expected_failures: float
    rate: float
    rate_high: float
    judgement: PairJudgement
    compared: quasi_experiment.PairVerdict
    alternatives: tuple[str, ...]

    @property
    def key(self) -> Pair:
        """Its workload and its context."""
        return self.workload, self.context

    @property
    def reason(self) -> str:
        """The verdict in a sentence."""
        interval = (
            f"its own counts alone: {self.low:.1f} to {self.high:.1f} at 95%,"
            f" {self.expected_failures:.0f} failures were expected"
        )
        seen = f"fails {self.risk_ratio:.1f} times as often as expected ({interval})"
        return f"{seen}; {_SAID[self.judgement]}{self._doubt()}"

    def _doubt(self) -> str:
        control, gamma = self.compared.control, self.compared.gamma
        if self.judgement is PairJudgement.CONFOUNDED:
            return f": script errors differ too, by a factor of {control.ratio:.1f}"
        if self.judgement is not PairJudgement.WORSE:
            return ""
        checked = "script errors do not differ" if control.sees else "too few script errors to check"
        hidden = f"a hidden cause would have to change the odds by a factor of {gamma:.1f}" if gamma > 1 else ""
        return "; ".join(
            filter(None, (f", probability among all pairs {self.probability_worse:.0%}; {checked}", hidden))
        )


_SAID = {
    PairJudgement.WORSE: "a mismatch with this hardware group",
    PairJudgement.CONFOUNDED: "the hardware may not be the cause",
    PairJudgement.SUSPECTED: "a possible mismatch: use another hardware group if that costs little",
    PairJudgement.NOT_WORSE: "no worse than expected",
    PairJudgement.TOO_LITTLE: "too little evidence to call this normal",
}


def within_budget(pairs: Sequence[PairFinding], charges: Mapping[Pair, float]) -> list[PairFinding]:
    """The pairs, with as many called worse for the first time as the share of false ones among all ever called allows.

    `charges` are what those called worse by earlier bundles of the epoch cost when they first were: the probability
    that they are not worse. That probability is the expected number of false ones at any time at which one may stop,
    however it was chosen, so over all bundles together E[false] ≤ `FALSE_SHARE` · E[called] (docs/learning.md).
    """
    first = [pair for pair in pairs if pair.judgement is PairJudgement.WORSE and pair.key not in charges]
    first.sort(key=lambda pair: -pair.probability_worse)
    many = affordable(np.array([pair.probability_worse for pair in first]), list(charges.values()))
    late = {pair.key for pair in first[many:]}
    return [replace(pair, judgement=PairJudgement.SUSPECTED) if pair.key in late else pair for pair in pairs]


def affordable(falling: Floats, charges: Sequence[float]) -> int:
    """How many pairs of these probabilities, the highest first, can be called worse after those of these charges."""
    cost = sum(charges) + np.cumsum(1.0 - falling)
    within = np.flatnonzero(cost <= FALSE_SHARE * (len(charges) + 1.0 + np.arange(len(falling))))
    return int(within[-1]) + 1 if len(within) else 0


def judge_pairs(
    found: Mismatches, counted: LifeTable, control: LifeTable, node_hours: Floats, misreported: Floats | None = None
) -> list[PairFinding]:
    """Verdicts on all pairs of `found`.

    `counted` holds the released failures by (workload, context), its exposure what the hazards let one expect to count;
    `control` script errors over the same cells, without exposure where nobody counted them; `node_hours` has the shape
    of both. So has `misreported`, how many script errors may be hardware failures; without it, `MISREPORTED` of those
    that counted, which under a cap are fewer than those that failed.
    """
    cells, control = (found.workload, found.context), _without_misreported(control, counted, misreported)
    scale = node_hours.sum() / max(counted.exposure_node_hours.sum(), np.finfo(float).tiny)
    compared = {
        (one.workload, one.context): one
        for one in quasi_experiment.judge(
            _per_average_hour(counted, scale), control, np.random.default_rng(PAIRING_SEED), CRITERIA
        )
    }
    accused, likely = _accused(found), found.probability_worse >= LIKELY
    doubted = suspected(found.probability_worse, node_hours[cells])
    per_hour = found.expected / np.maximum(node_hours[cells], np.finfo(float).tiny)
    rate, rate_high = found.ratio * per_hour, found.likely_high * per_hour
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
                float(found.likely_low[place]),
                float(found.likely_high[place]),
                float(found.expected[place]),
                float(rate[place]),
                float(rate_high[place]),
                _judgement(bool(accused[place]), bool(doubted[place]), found, place, twin),
                twin,
                tuple(contexts[found.context[other]] for other in better[:MOST_ALTERNATIVES]),
            )
        )
    return findings


def _accused(found: Mismatches) -> NDArray[np.bool_]:
    """Which pairs (P,) are called worse: sure enough each by itself, and with every block as one."""
    own = np.where((found.block == NO_BLOCK) | found.supported, found.probability_worse, 0.0)
    unit = np.where(found.block == NO_BLOCK, np.arange(len(own)) + MOST_BLOCKS, found.block)
    falling = np.argsort(-own, kind="stable")
    surest_of_unit = falling[np.unique(unit[falling], return_index=True)[1]]
    units = unit[surest_of_unit[surest(own[surest_of_unit])]]
    accused = np.zeros(len(own), np.bool_)
    accused[surest(own)] = True
    return np.asarray(accused & np.isin(unit, units), np.bool_)


def _judgement(
    accused: bool,  # noqa: FBT001
    doubted: bool,  # noqa: FBT001
    found: Mismatches,
    place: int,
    compared: quasi_experiment.PairVerdict,
) -> PairJudgement:
    if doubted and not _explained(compared.control, float(found.ratio[place])):
        return PairJudgement.WORSE if accused else PairJudgement.SUSPECTED
    if found.probability_worse[place] >= LIKELY:
        return PairJudgement.CONFOUNDED
    settled = compared.judgement is PairJudgement.NOT_WORSE and found.likely_high[place] < HARMFUL_RATIO
    return PairJudgement.NOT_WORSE if settled else PairJudgement.TOO_LITTLE


def _explained(control: quasi_experiment.Control, ratio: float) -> bool:
    """Whether script errors differ so much that whatever does it may well have made the pair's ratio, too."""
    return control.fires and control.ratio > 1.0 and np.log(control.ratio) >= EXPLAINS * np.log(max(ratio, 1.0))


def _without_misreported(control: LifeTable, counted: LifeTable, misreported: Floats | None) -> LifeTable:
    """Script errors less those that may be hardware failures; counts without noise stay whole."""
    looked = control.exposure_node_hours > 0.0
    taken = MISREPORTED * counted.events if misreported is None else misreported
    left, variance = control.events - looked * taken, control.noise_variance
    if misreported is None:
        variance = variance + MISREPORTED**2 * looked * counted.noise_variance
    return replace(
        control, events=np.where(variance > 0.0, left, np.maximum(np.round(left), 0.0)), noise_variance=variance
    )


def _per_average_hour(counted: LifeTable, scale: float) -> LifeTable:
    """Exposure in node-hours of average hazard, which is what pairs of node-hours are made of."""
    return replace(counted, exposure_node_hours=scale * counted.exposure_node_hours)
