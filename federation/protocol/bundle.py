"""The bundle: the signed, versioned message in which the provider publishes its findings to all tenants.

- A check against a bundle runs on the tenant's machine, so the provider learns nothing of it.
- Its content is computed only from releases (sums with noise) and from the provider's own records. What it tells of the
  failures among these, which are exact, its statement says.
"""

import math
from enum import StrEnum

from crypto.codec import Count, Few, Many, Message, Number, Record, Text
from crypto.ids import Token
from federation.protocol.evidence import Evidence

SKETCH_BYTES = 8 * 64
LONGEST_NAME = 100


class CatalogueEntry(Record, frozen=True):
    """A workload that the provider knows from its own benchmark jobs: name and MinHash sketch of its operators."""

    name: Text
    sketch: bytes

    def __post_init__(self) -> None:
        if len(self.sketch) != SKETCH_BYTES:
            raise ValueError(f"a sketch has {SKETCH_BYTES} bytes")


class Catalogue(Message, frozen=True, tag="pharoah/catalogue/1"):
    """A catalogue by itself, before there is a bundle: entries in the order of their names. It is public."""

    entries: Many[CatalogueEntry]

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if names != sorted(set(names)):
            raise ValueError("entries are sorted and each name is there once")


class PairJudgement(StrEnum):
    """The judgement of a workload on a context.

    `CONFOUNDED`: failures that hardware cannot cause differ there too. `SUSPECTED`: not certain, but probable enough to
    use another context if that costs little.
    """

    WORSE = "worse"
    CONFOUNDED = "confounded"
    SUSPECTED = "suspected"
    NOT_WORSE = "not worse"
    TOO_LITTLE = "too little evidence"


class MismatchEntry(Record, frozen=True):
    """The failure rate of a workload on a hardware context, relative to the expected rate.

    `risk_ratio` is the failure rate over the expected one, as far as the pair's own failures and those of all pairs
    say; its 95% interval is that of the pair by itself, which holds at any effect. `probability_worse` is the posterior
    probability that the pair fails systematically more often; `expected_failures` the size of the evidence.
    `alternatives` are contexts where the workload fails less, the most certain first.
    """

    workload: Token
    context: Token
    probability_worse: Number
    risk_ratio: Number
    risk_ratio_low: Number
    risk_ratio_high: Number
    expected_failures: Number
    judgement: PairJudgement
    alternatives: Few[Token]

    def __post_init__(self) -> None:
        if not 0 <= self.probability_worse <= 1:
            raise ValueError("probability_worse must lie in [0, 1]")
        if not 0 <= self.expected_failures < math.inf:
            raise ValueError("expected_failures must be finite and not negative")
        _require_interval("risk_ratio", self.risk_ratio_low, self.risk_ratio, self.risk_ratio_high)


class HazardEntry(Record, frozen=True):
    """Infrastructure failures per 1,000 node-hours of a context at a build-up level in an age band, 95% interval."""

    context_level: Token
    band: Text
    rate: Number
    rate_low: Number
    rate_high: Number

    def __post_init__(self) -> None:
        _require_interval("rate", self.rate_low, self.rate, self.rate_high)


class RuleEntry(Record, frozen=True):
    """Software that fails more often on all contexts: its `conditions` as text, and its rate over that of the rest."""

    conditions: Few[Text]
    ratio: Number
    ratio_low: Number
    ratio_high: Number
    failures: Number

    def __post_init__(self) -> None:
        _require_interval("ratio", self.ratio_low, self.ratio, self.ratio_high)


def _require_interval(name: str, low: float, middle: float, high: float) -> None:
    """A comparison with NaN is false, so that NaN is refused here too."""
    if not 0 <= low <= middle <= high < math.inf:
        raise ValueError(f"{name} must be finite, not negative and within its interval")


class ContextName(Record, frozen=True):
    """The public name of a context. It reveals the hardware behind the token."""

    context: Token
    name: Text

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= LONGEST_NAME:
            raise ValueError(f"the name of a context must have 1 to {LONGEST_NAME} characters")


class Statement(Record, frozen=True):
    """The privacy of what is behind a bundle: per unit, with the numbers of rounds and contributions.

    It tells nothing of failures that the provider saw itself.
    """

    epsilon: Number
    delta: Number
    mechanism: Text
    rounds: Count
    contributions_fewest: Count

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf and 0 <= self.delta < 1):
            raise ValueError("epsilon must be positive and finite, delta in [0, 1)")


class Bundle(Message, frozen=True, tag="pharoah/bundle/5"):
    """The findings at one time. Bundle 0 of an epoch has a catalogue and no findings.

    `band_edges_hours` are the ages that bound the bands of `hazards`, from 0 on, one more than there are bands.
    `context_names` are the public names of contexts, if the provider sets any. `evidence` lets tenants join what they
    know themselves.
    """

    number: Count
    epoch: Count
    until_hour: Count
    catalogue: Many[CatalogueEntry]
    mismatches: Many[MismatchEntry]
    hazards: Many[HazardEntry]
    statement: Statement | None
    band_edges_hours: Few[Number] = ()
    rules: Many[RuleEntry] = ()
    context_names: Many[ContextName] = ()
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        if len(self.names) < len(self.context_names):
            raise ValueError("a context must have one name")
        known = self.evidence
        if known and (len(known.pairs), len(known.hazards)) != (len(self.mismatches), len(self.hazards)):
            raise ValueError("evidence must have as many pairs and hazards as the findings")

    @property
    def names(self) -> dict[str, str]:
        """The public names of contexts by token."""
        return {str(one.context): one.name for one in self.context_names}
