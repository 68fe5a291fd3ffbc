"""Ranks causes of a failed or slow attempt over both sides, each with the clues for it and against it.

    reason, findings, own runs, tests (the tenant's) ─┐
    hints (the provider's), bundle (all tenants') ────┴─ clues ─▶ explain ─▶ Explanation

Every clue has weights by cause, logarithms of likelihood ratios from `explanation.toml`; a cause's weight is their sum.
`UNDECIDED` is a candidate of a fixed weight, so what is weaker than that is not named, and neither is the better of a
cause of the provider's side and one of the tenant's that weigh about the same. So a hint of the provider explains what
only symptoms tell, and does not outweigh an error that names itself.

Pure. It is computed at the tenant, from what the tenant has; nobody is told. Not promised: a cause; calibrated
probabilities. Hints say which organ and not which node, so a hint may be about another node of the lease.

>>> hints = (HintFact("interconnect", 12.0, 25.0, hours_before=0.5),)
>>> found = explain(FailureFacts("collective_timeout", "all-reduce timed out", hints=hints))
>>> found.cause, found.side, explain(FailureFacts("key_error", "KeyError: 'x'", hints=hints)).cause
(<FailureCause.NETWORK: 'network'>, <FailureSide.PROVIDER: 'provider'>, <FailureCause.CODE: 'code'>)
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType

import msgspec

from federation.protocol.causes import Domain
from federation.protocol.toml_tables import convert, loads, shipped
from tenant_client.sources.reasons import REASONS, UNKNOWN, somebody_ended

_TEXT = 200
UNDECIDED_WEIGHT = 1.6  # what a cause must weigh to be named
CLOSE = 0.4  # two causes of different sides that differ less are not told apart
_OF_DOMAIN: Mapping[Domain | None, float] = MappingProxyType({Domain.SCRIPT: 5.0, Domain.FRAMEWORK: 4.0})
_ENDED = 9.0
_STOPPED = 2.0
_MOST_OF_A_HINT, _ESCALATED, _CLEARED = 3.5, 0.3, 0.15
_LATE = ((0.0, 1.0), (1.0, 0.8), (6.0, 0.3))  # hours after the end up to which a hint still counts, and how much
_FAILED_TEST, _PASSED_TEST = 3.5, -2.5
_EARLY_H, _EARLY = 0.1, 0.7
_ELSEWHERE, _ONLY_HERE, _NOT_CODE = 1.2, 0.6, 0.8
_MISMATCH, _ONLY_HERE_MISMATCH, _WARNING = 0.5, 0.8, 0.3


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


_HARDWARE = ("gpu", "nvlink", "network", "storage", "host")
_TENANTS = ("code", "software", "capacity")
SIDES: Mapping[FailureCause, FailureSide] = MappingProxyType(
    {
        **{FailureCause(name): FailureSide.PROVIDER for name in _HARDWARE},
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
        FailureCause.MISMATCH: "this kind of workload on this context",
        FailureCause.ENDED: "somebody ended it",
        FailureCause.UNDECIDED: "undecided",
    }
)


# ---- what is known ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FindingFact:
    """A finding of the watch that held when the attempt ended."""

    kind: str
    ranks: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class HintFact:
    """An episode of hints about the lease: `hours_before` the end of the attempt it began, negative for after."""

    suspicion: str
    ratio_low: float
    ratio: float
    hours_before: float
    is_escalated: bool = False
    is_cleared: bool = False


@dataclass(frozen=True)
class RunCounts:
    """Own runs of the same structure, this one too: failed for the same reason or worked, on its context or away."""

    here_failed: int = 0
    here_worked: int = 0
    away_failed: int = 0
    away_worked: int = 0


@dataclass(frozen=True)
class FailureFacts:
    """What the tenant has about one attempt; `age_h` since it began, `verdict` and `ratio` of the bundle."""

    reason: str = UNKNOWN
    sentence: str = ""
    is_stopped: bool = False
    age_h: float | None = None
    findings: tuple[FindingFact, ...] = ()
    hints: tuple[HintFact, ...] = ()
    verdict: str = "unknown"
    ratio: float = 1.0
    runs: RunCounts = RunCounts()
    tests: tuple[tuple[str, bool], ...] = ()


# ---- the ranking -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clue:
    """Something known, in words, and what it says of each cause."""

    text: str
    weights: Mapping[str, float]


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
        whose = {"both": "both sides'", "nobody": "nobody's"}.get(first.side, f"the {first.side}'s")
        return f"probably {WORDS[first.cause]} ({whose} side): {'; '.join(first.evidence_for[:2])}"


def explain(facts: FailureFacts) -> Explanation:
    """All causes that something speaks for, and `UNDECIDED`, in their order."""
    clues = list(_clues(facts))
    ranked = [_ranked(FailureCause(name), clues) for name in (*_HARDWARE, *_TENANTS, "mismatch", "ended")]
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


# ---- clues -----------------------------------------------------------------------------------------------------------

Weights = Mapping[str, float]


class _Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str
    weights: dict[str, float]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reasons: dict[str, dict[str, float]]
    words: tuple[_Words, ...]
    kinds: dict[str, dict[str, float]]
    finding_words: tuple[_Words, ...]
    organs: dict[str, dict[str, float]]


@cache
def _table() -> _Table:
    file = "explanation.toml"
    return convert(loads(shipped("tenant_client.advice", file), file), _Table, file)


def _clues(facts: FailureFacts) -> Iterator[Clue]:
    yield from _of_reason(facts)
    for finding in facts.findings:
        yield from _of_finding(finding)
    for hint in facts.hints:
        yield _of_hint(hint)
    for organ, passed in facts.tests:
        value = _PASSED_TEST if passed else _FAILED_TEST
        yield Clue(f"own test of {organ} {'passed' if passed else 'failed'}", _scaled(organ, value))
    yield from _of_runs(facts)
    yield from _of_bundle(facts)


def _of_reason(facts: FailureFacts) -> Iterator[Clue]:
    text = f"{facts.reason}: {facts.sentence[:_TEXT]}" if facts.sentence else facts.reason
    if somebody_ended(facts.reason):
        yield Clue(text, {"ended": _ENDED})
        return
    if facts.is_stopped:
        yield Clue("it was asked to end", {"ended": _STOPPED})
    weights = _weights_of(facts.reason)
    if weights:
        yield Clue(text, weights)
    yield from _of_words(_table().words, facts.sentence, "the log says")
    if facts.age_h is not None and facts.age_h < _EARLY_H:
        early = {"code": _EARLY, "software": _EARLY}
        yield Clue(f"it failed {60 * facts.age_h:.0f} minutes after its start", early)


def _weights_of(reason: str) -> Weights:
    table, known = _table().reasons, REASONS.get(reason)
    if reason in table:
        return table[reason]
    if known is None:
        return {}
    if known.parent in table and known.domain is None:
        return table[known.parent]
    return {"code": _OF_DOMAIN[known.domain]} if known.domain in _OF_DOMAIN else {}


def _of_words(table: Sequence[_Words], text: str, who: str) -> Iterator[Clue]:
    for row in table:
        if found := re.search(row.pattern, text):
            yield Clue(f"{who} “{found[0]}”", row.weights)


def _of_finding(finding: FindingFact) -> Iterator[Clue]:
    text = f"{finding.kind}: {finding.text[:_TEXT]}"
    yield Clue(text, _table().kinds.get(finding.kind, {}))
    yield from _of_words(_table().finding_words, finding.text, f"{finding.kind} says")
    if finding.kind == "nan_loss":
        yield Clue(text, {"gpu": 1.0} if len(finding.ranks) == 1 else {"code": 1.0})


def _of_hint(hint: HintFact) -> Clue:
    when = (
        f"{hint.hours_before:.1f} h before the end"
        if hint.hours_before >= 0
        else f"{-hint.hours_before:.1f} h after it"
    )
    state = ", cleared before it" if hint.is_cleared else ", escalated" if hint.is_escalated else ""
    value = min(math.log(max(1.0, math.sqrt(hint.ratio_low * hint.ratio))), _MOST_OF_A_HINT)
    value = (value + _ESCALATED * hint.is_escalated) * (
        _CLEARED if hint.is_cleared else _of_lateness(-hint.hours_before)
    )
    text = f"the provider suspects {hint.suspicion}: {hint.ratio:.2g} times the usual hazard, {when}{state}"
    return Clue(text, _scaled(hint.suspicion, value))


def _of_lateness(late_h: float) -> float:
    return next((share for until_h, share in _LATE if late_h <= until_h), 0.0)


def _scaled(organ: str, value: float) -> Weights:
    return {cause: value * weight for cause, weight in _table().organs.get(organ, {}).items()}


def _of_runs(facts: FailureFacts) -> Iterator[Clue]:
    runs = facts.runs
    if runs.away_failed:
        value = _ELSEWHERE * math.log2(1 + runs.away_failed)
        weights = {"code": value, **dict.fromkeys(_HARDWARE, -value / 2), "mismatch": -value}
        yield Clue(f"own runs failed so on other contexts too: {runs.away_failed}", weights)
    elif runs.away_worked >= 2 and runs.here_failed:
        value = math.log2(1 + runs.away_worked)
        weights = {**dict.fromkeys(_HARDWARE, _ONLY_HERE * value), "code": -_NOT_CODE * value}
        weights |= {"software": -_NOT_CODE * value, "mismatch": _ONLY_HERE_MISMATCH}
        told = f"own runs failed so here only: {runs.here_failed}; elsewhere {runs.away_worked} worked"
        yield Clue(told, weights)


def _of_bundle(facts: FailureFacts) -> Iterator[Clue]:
    much = math.log(max(1.0, facts.ratio))
    text = f"bundle: {facts.verdict}: such workloads fail {facts.ratio:.1f} times as often on this context as expected"
    if facts.verdict == "mismatch":
        yield Clue(text, {"mismatch": much + _MISMATCH})
    elif facts.verdict == "warning":
        yield Clue(text, {"mismatch": _WARNING * much})
    elif facts.verdict == "ok":
        yield Clue(text, {"mismatch": -1.0})
