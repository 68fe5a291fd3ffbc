"""What the provider gives back: one signed, versioned, small message that a tenant can evaluate by itself.

A check against a bundle happens on the tenant's own machine, so it tells the provider nothing at all. Everything in it
was computed from releases, that is from sums with noise, and from the provider's own records.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from crypto.ids import Token

SKETCH_BYTES = 8 * 64


@dataclass(frozen=True)
class CatalogueEntry:
    """A workload that the provider knows from its own benchmark jobs: name and MinHash sketch of its operators."""

    name: str
    sketch: bytes

    def __post_init__(self) -> None:
        if len(self.sketch) != SKETCH_BYTES:
            raise ValueError(f"a sketch has {SKETCH_BYTES} bytes")


@dataclass(frozen=True)
class Catalogue:
    """A catalogue by itself, before there is a bundle: entries in the order of their names. It is public."""

    LABEL: ClassVar[str] = "pharoah/catalogue/1"
    entries: tuple[CatalogueEntry, ...]

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if names != sorted(set(names)):
            raise ValueError("entries are sorted and each name is there once")


class Judgement(StrEnum):
    """What is said of a workload on a context.

    `CONFOUNDED`: something that hardware cannot cause differs there too. `SUSPECTED`: not sure, but probable enough to
    go elsewhere where that costs little.
    """

    WORSE = "worse"
    CONFOUNDED = "confounded"
    SUSPECTED = "suspected"
    NOT_WORSE = "not worse"
    TOO_LITTLE = "too little evidence"


@dataclass(frozen=True)
class MismatchEntry:
    """How a workload does on a hardware context, against what both would lead one to expect.

    `risk_ratio` is observed over expected failure rate with its 95% interval; `probability_worse` the posterior
    probability that the pair fails systematically more often; `expected_failures` the size of the evidence.
    `alternatives` are contexts where the workload fails less, the surest first: where to go instead.
    """

    workload: Token
    context: Token
    probability_worse: float
    risk_ratio: float
    risk_ratio_low: float
    risk_ratio_high: float
    expected_failures: float
    judgement: Judgement
    alternatives: tuple[Token, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.probability_worse <= 1:
            raise ValueError("probability_worse must lie in [0, 1]")
        if not 0 <= self.expected_failures < math.inf:
            raise ValueError("expected_failures must be finite and not negative")
        _require_interval("risk_ratio", self.risk_ratio_low, self.risk_ratio, self.risk_ratio_high)


@dataclass(frozen=True)
class HazardEntry:
    """Infrastructure failures per 1,000 node-hours of a context at a build-up level in an age band, 95% interval."""

    context_level: Token
    band: str
    rate: float
    rate_low: float
    rate_high: float

    def __post_init__(self) -> None:
        _require_interval("rate", self.rate_low, self.rate, self.rate_high)


@dataclass(frozen=True)
class FactorEntry:
    """By what factor infrastructure failures differ at a level of a dimension (size, season), with its 95% interval."""

    dimension: str
    level: str
    ratio: float
    ratio_low: float
    ratio_high: float

    def __post_init__(self) -> None:
        _require_interval("ratio", self.ratio_low, self.ratio, self.ratio_high)


@dataclass(frozen=True)
class RuleEntry:
    """Software that fails more often wherever it runs: all `conditions` as text, and its rate over that of the rest."""

    conditions: tuple[str, ...]
    ratio: float
    ratio_low: float
    ratio_high: float
    failures: float

    def __post_init__(self) -> None:
        _require_interval("ratio", self.ratio_low, self.ratio, self.ratio_high)


def _require_interval(name: str, low: float, middle: float, high: float) -> None:
    """A comparison with NaN is false, so that NaN is refused here too."""
    if not 0 <= low <= middle <= high < math.inf:
        raise ValueError(f"{name} must be finite, not negative and within its interval")


@dataclass(frozen=True)
class Statement:
    """The privacy that the releases behind a bundle had: per job-week, and how many rounds and contributions."""

    epsilon: float
    delta: float
    mechanism: str
    rounds: int
    contributions_fewest: int

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf and 0 <= self.delta < 1):
            raise ValueError("epsilon must be positive and finite, delta in [0, 1)")


@dataclass(frozen=True)
class Bundle:
    """A published state of knowledge. Bundle 0 of an epoch carries a catalogue and no findings yet.

    `band_edges_hours` are the ages that bound the bands of `hazards`, from 0 on, one more than there are bands.
    """

    LABEL: ClassVar[str] = "pharoah/bundle/1"
    number: int
    epoch: int
    until_hour: int
    catalogue: tuple[CatalogueEntry, ...]
    mismatches: tuple[MismatchEntry, ...]
    hazards: tuple[HazardEntry, ...]
    statement: Statement | None
    band_edges_hours: tuple[float, ...] = ()
    factors: tuple[FactorEntry, ...] = ()
    rules: tuple[RuleEntry, ...] = ()
