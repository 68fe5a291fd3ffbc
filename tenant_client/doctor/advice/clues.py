"""Makes clues of what is known about a failed or slow attempt: a text, and what it says for and against causes.

Weights are natural logarithms of likelihood ratios, from `explanation.toml` beside this file, by causes named there.
Pure: facts come in (`failure_facts`), clues go out (`explanation` adds them up).

- A hint counts by its ratio, shrunk towards the lower end of its interval, and by when it came: less after the end, and
  nothing from six hours on; one that was cleared before the end hardly counts.
- A hint about computing or memory that begins with an error of the job's own kernel, or after it, says little: such an
  error leaves Xids 13, 31, 43 and 45, of which NVIDIA's catalogue says to check the application first.
- A job of few ranks has one node, as a rule, and no network between nodes.
- Own runs that failed so on other contexts speak for the job's code and against hardware; failures here only, while
  runs elsewhere worked, speak the other way. Where an error code of a GPU showed before counts instead, if it is known:
  that is the same, node by node.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import msgspec

from federation.protocol.causes import Domain
from federation.protocol.toml_tables import convert, loads, shipped
from federation.protocol.xid_judge import CodeVerdict
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN, somebody_ended

HARDWARE = ("gpu", "nvlink", "network", "storage", "host")
_TEXT = 200
_OF_DOMAIN: Mapping[Domain | None, float] = MappingProxyType({Domain.SCRIPT: 5.0, Domain.FRAMEWORK: 4.0})
_ENDED, _STALLED = 9.0, "cancelled_stalled"
_STOPPED, _STOPPED_IN_A_HANG = 2.0, 1.0
_MOST_OF_A_HINT, _ESCALATED, _CLEARED = 3.5, 0.3, 0.15
_LATE = ((0.0, 1.0), (1.0, 0.8), (6.0, 0.3))  # hours after the end up to which a hint still counts, and how much
_OF_KERNELS = frozenset({"illegal_memory_access", "device_side_assert", "gpu_page_fault", "cuda_error"})
_OF_GPUS, _AT_ONCE_H, _OWN_ACT = ("compute", "memory"), 0.1, 0.2
_ONE_NODE = 8  # GPUs: what NVIDIA's HGX boards have
_FAILED_TEST, _PASSED_TEST = 3.5, -2.5
_EARLY_H, _EARLY = 0.1, 0.7
_ELSEWHERE, _ONLY_HERE, _NOT_CODE = 1.2, 0.6, 0.8
_MISMATCH, _ONLY_HERE_MISMATCH, _WARNING = 0.5, 0.8, 0.3
_OF_CODES, _MOST_OF_A_CODE = ("gpu", "code", "software"), 3.5  # of hardware, program, driver


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
    """What the tenant has about one attempt; `age_h` since it began, `verdict` and `ratio` of the bundle.

    `ranks` is how many it had, None where that is not known; `domain` is the evidence's own, "" for that of the reason;
    `codes` are what error codes of its GPUs come from; `has_failed` is false for one that succeeded or runs.
    """

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
    ranks: int | None = None
    domain: str = ""
    codes: Sequence[CodeVerdict] = ()
    has_failed: bool = True


@dataclass(frozen=True)
class Clue:
    """Something known, in words, and what it says of each cause."""

    text: str
    weights: Mapping[str, float]


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
    return convert(loads(shipped("tenant_client.doctor.advice", file), file), _Table, file)


def clues_of(facts: FailureFacts) -> Iterator[Clue]:
    """Everything that the facts say of causes."""
    yield from _of_reason(facts)
    for finding in facts.findings:
        yield from _of_finding(finding)
    for hint in facts.hints:
        yield _of_hint(hint, facts)
    for organ, passed in facts.tests:
        value = _PASSED_TEST if passed else _FAILED_TEST
        yield Clue(f"own test of {organ} {'passed' if passed else 'failed'}", _scaled(organ, value))
    of_codes = list(_of_codes(facts.codes))
    yield from of_codes or _of_runs(facts)
    yield from _of_bundle(facts)


def _of_reason(facts: FailureFacts) -> Iterator[Clue]:
    text = facts.sentence[:_TEXT] or facts.reason
    text = text if text.startswith(facts.reason) else f"{facts.reason}: {text}"
    if somebody_ended(facts.reason) and facts.reason != _STALLED:
        yield Clue(text, {"ended": _ENDED})
        return
    if facts.is_stopped:
        hung = facts.reason == _STALLED or any(finding.kind.endswith("hang") for finding in facts.findings)
        yield Clue("it was asked to end", {"ended": _STOPPED_IN_A_HANG if hung else _STOPPED})
    weights = _weights_of(facts.reason, facts.domain)
    if weights:
        yield Clue(text, weights)
    yield from _of_words(_table().words, facts.sentence, "the log says")
    if facts.has_failed and facts.age_h is not None and facts.age_h < _EARLY_H:
        early = {"code": _EARLY, "software": _EARLY}
        minutes = round(60 * facts.age_h)
        when = f"{minutes} minutes after its start" if minutes > 1 else "within a minute of its start"
        yield Clue(f"it failed {when}", early)


def _weights_of(reason: str, domain: str) -> Weights:
    table, known = _table().reasons, REASONS.get(reason)
    if domain in _OF_DOMAIN and known is not None and domain != known.domain:
        return {"code": _OF_DOMAIN[Domain(domain)]}
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


def _of_hint(hint: HintFact, facts: FailureFacts) -> Clue:
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
    is_own_act = _is_own_act(hint, facts.reason)
    if is_own_act:
        value *= _OWN_ACT
    why = ", as an error of the job's own kernel would have it" if is_own_act else ""
    text = f"the provider suspects {hint.suspicion}: {hint.ratio:.2g} times the usual hazard, {when}{state}{why}"
    weights = _scaled(hint.suspicion, value)
    if facts.ranks is not None and facts.ranks <= _ONE_NODE:
        weights = {cause: value / 2 if cause == "network" else value for cause, value in weights.items()}
    return Clue(text, weights)


def _is_own_act(hint: HintFact, reason: str) -> bool:
    return reason in _OF_KERNELS and hint.suspicion in _OF_GPUS and hint.hours_before <= _AT_ONCE_H


def _of_lateness(late_h: float) -> float:
    return next((share for until_h, share in _LATE if late_h <= until_h), 0.0)


def _scaled(organ: str, value: float) -> Weights:
    return {cause: value * weight for cause, weight in _table().organs.get(organ, {}).items()}


def _of_codes(codes: Sequence[CodeVerdict]) -> Iterator[Clue]:
    """What is known of where else the code showed; what the code itself says is in the reason."""
    telling = max(codes, key=lambda one: -min(one.seen), default=None)
    if telling is not None and any(telling.seen):
        middle = math.fsum(telling.seen) / len(telling.seen)
        values = (max(-_MOST_OF_A_CODE, min(_MOST_OF_A_CODE, value - middle)) for value in telling.seen)
        yield Clue(telling.sentence(), dict(zip(_OF_CODES, values, strict=True)))


def _of_runs(facts: FailureFacts) -> Iterator[Clue]:
    runs = facts.runs
    if runs.away_failed:
        value = _ELSEWHERE * math.log2(1 + runs.away_failed)
        weights = {"code": value, **dict.fromkeys(HARDWARE, -value / 2), "mismatch": -value}
        yield Clue(f"own runs failed so on other contexts too: {runs.away_failed}", weights)
    elif runs.away_worked >= 2 and runs.here_failed:
        value = math.log2(1 + runs.away_worked)
        weights = {**dict.fromkeys(HARDWARE, _ONLY_HERE * value), "code": -_NOT_CODE * value}
        weights |= {"software": -_NOT_CODE * value, "mismatch": _ONLY_HERE_MISMATCH}
        told = f"own runs failed so here only: {runs.here_failed}; elsewhere {runs.away_worked} worked"
        yield Clue(told, weights)


def _of_bundle(facts: FailureFacts) -> Iterator[Clue]:
    much = math.log(max(1.0, facts.ratio))
    often = f"{facts.ratio:.1f} times as often as expected"
    text = f"report: {facts.verdict}: such workloads fail {often} on this hardware group"
    if facts.verdict == "mismatch":
        yield Clue(text, {"mismatch": much + _MISMATCH})
    elif facts.verdict == "warning":
        yield Clue(text, {"mismatch": _WARNING * much})
    elif facts.verdict == "ok":
        yield Clue(text, {"mismatch": -1.0})
