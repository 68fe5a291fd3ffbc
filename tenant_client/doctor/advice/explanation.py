"""Ranks causes of a failed or slow attempt over both sides, each with the clues for it and against it.

    reason, findings, own runs, tests (the tenant's) ─┐
    hints (the provider's), bundle (all tenants') ────┴─ clues ─▶ explain ─▶ Explanation

Every clue has weights by cause, logarithms of likelihood ratios from `explanation.toml`; a cause's weight is their sum.
`UNDECIDED` is a candidate of a fixed weight, so what is weaker than that is not named, and neither is the better of a
cause of the provider's side and one of the tenant's that weigh about the same. So a hint of the provider explains what
only symptoms tell, and does not outweigh an error that names itself.

Pure. It is computed at the tenant, from what the tenant has; nobody is told. Not promised: a cause; calibrated
probabilities. Hints say which organ and not which node, so a hint may be about another node of the lease.

>>> from tenant_client.doctor.advice.clues import HintFact
>>> hints = (HintFact("interconnect", 12.0, 25.0, hours_before=0.5),)
>>> found = explain(FailureFacts("collective_timeout", "all-reduce timed out", hints=hints))
>>> found.cause, found.side, explain(FailureFacts("key_error", "KeyError: 'x'", hints=hints)).cause
(<FailureCause.NETWORK: 'network'>, <FailureSide.PROVIDER: 'provider'>, <FailureCause.CODE: 'code'>)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from tenant_client.doctor.advice.clues import HARDWARE, Clue, FailureFacts, clues_of
from tenant_client.doctor.diagnosis.wording import without_folder

UNDECIDED_WEIGHT = 1.6  # what a cause must weigh to be named
CLOSE = 0.4  # two causes of different sides that differ less are not told apart


class FailureSide(StrEnum):
    """Whose part it is to act."""

    PROVIDER = "provider"
    TENANT = "tenant"
    BOTH = "both"
    NOBODY = "nobody"


class FailureCause(StrEnum):
    """What a failure came from, as far as both sides together can tell."""

    GPU = "gpu"
    NVLINK = "nvlink"
    NETWORK = "network"
    STORAGE = "storage"
    HOST = "host"
    CODE = "code"
    SOFTWARE = "software"
    CAPACITY = "capacity"
    MISMATCH = "mismatch"
    ENDED = "ended"
    UNDECIDED = "undecided"


_TENANTS = ("code", "software", "capacity")
SIDES: Mapping[FailureCause, FailureSide] = MappingProxyType(
    {
        **{FailureCause(name): FailureSide.PROVIDER for name in HARDWARE},
        **{FailureCause(name): FailureSide.TENANT for name in _TENANTS},
        FailureCause.MISMATCH: FailureSide.BOTH,
        FailureCause.ENDED: FailureSide.NOBODY,
        FailureCause.UNDECIDED: FailureSide.NOBODY,
    }
)
_OPPOSED = {FailureSide.PROVIDER, FailureSide.TENANT}
WORDS: Mapping[FailureCause, str] = MappingProxyType(
    {
        FailureCause.GPU: "a GPU, its memory or its link to the host",
        FailureCause.NVLINK: "NVLink within a node",
        FailureCause.NETWORK: "the network between nodes",
        FailureCause.STORAGE: "storage",
        FailureCause.HOST: "a host",
        FailureCause.CODE: "the job's code, data or settings",
        FailureCause.SOFTWARE: "libraries that do not fit",
        FailureCause.CAPACITY: "more memory or disk needed than there is",
        FailureCause.MISMATCH: "this kind of workload on this hardware group",
        FailureCause.ENDED: "stopped by a person or the scheduler",
        FailureCause.UNDECIDED: "undecided",
    }
)


# ---- the ranking -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankedCause:
    """A cause with its weight, and the clues for and against it, the weightiest first."""

    cause: FailureCause
    side: FailureSide
    weight: float
    evidence_for: tuple[str, ...]
    evidence_against: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """Causes, the most probable first; the first is `UNDECIDED` where none is clear."""

    ranked: tuple[RankedCause, ...]

    @property
    def cause(self) -> FailureCause:
        """The first."""
        return self.ranked[0].cause

    @property
    def side(self) -> FailureSide:
        """Whose part it is."""
        return self.ranked[0].side

    @property
    def sentence(self) -> str:
        """For a person, in one line."""
        first = self.ranked[0]
        if first.cause is FailureCause.UNDECIDED:
            others = [one for one in self.ranked[1:3] if one.weight > 0]
            near = " or ".join(WORDS[one.cause] for one in others)
            return f"undecided{f': perhaps {near}' if near else ': nothing known names a cause'}"
        whose = {"both": " (both sides' side)", "nobody": ""}.get(first.side, f" (the {first.side}'s side)")
        return f"probably {WORDS[first.cause]}{whose}: {'; '.join(map(without_folder, first.evidence_for[:2]))}"


def explain(facts: FailureFacts) -> Explanation:
    """All causes that something speaks for, and `UNDECIDED`, in their order."""
    clues = list(clues_of(facts))
    ranked = [_ranked(FailureCause(name), clues) for name in (*HARDWARE, *_TENANTS, "mismatch", "ended")]
    found = sorted((one for one in ranked if one.evidence_for), key=lambda one: -one.weight)
    undecided = RankedCause(FailureCause.UNDECIDED, FailureSide.NOBODY, UNDECIDED_WEIGHT, (), ())
    rival = next((one for one in found if {one.side, found[0].side} == _OPPOSED), None)
    is_close = rival is not None and found[0].weight - rival.weight < CLOSE
    place = 0 if is_close else sum(one.weight > UNDECIDED_WEIGHT for one in found)
    return Explanation((*found[:place], undecided, *found[place:]))


def _ranked(cause: FailureCause, clues: Sequence[Clue]) -> RankedCause:
    said = sorted(((clue.weights.get(cause, 0.0), clue.text) for clue in clues), key=lambda pair: -abs(pair[0]))
    weight = math.fsum(value for value, _ in said)
    pro, contra = (tuple(text for value, text in said if value * sign > 0) for sign in (1, -1))
    return RankedCause(cause, SIDES[cause], round(weight, 3), pro, contra)
