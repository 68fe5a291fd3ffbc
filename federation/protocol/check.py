"""Checks, before a job starts, whether a workload fits a hardware context.

- The tenant checks against a signed bundle, so that the provider learns nothing; or the provider's online service
  checks, and sees the tokens; or it sends a page about a context, without being told who asks or for which workload.
- Mismatch: the bundle judges the pair as worse. One that is not is a false alarm: at most one in twenty is expected.
- Warning: the pair is suspected, or it fails more often for a reason other than hardware. Avoiding all suspected pairs
  is expected to move fewer than one job in twenty needlessly. A warning is no accusation, so a vain one is no false
  alarm.
- Unknown: the bundle has no evidence, or the pair's own counts leave open anything up to `ANYTHING` times the failures,
  as in the first weeks and of hardware on which hardly anything ran.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from federation.protocol.bundle import Bundle, HazardEntry, MismatchEntry, PairJudgement
from federation.protocol.pass_messages import ContextPage
from federation.protocol.round_messages import finest_row
from federation.protocol.service_messages import CheckVerdict

ANYTHING = 50.0  # times as often as expected: half of what a ratio may be at most (`analysis.ratio_grid`)


@dataclass(frozen=True)
class Check:
    """A verdict with its evidence; `better_context` is the token of a context where this workload fails less.

    `weak_evidence`: no finding against the pair, but its own failures do not yet exclude twice the expected rate.
    Contexts have names if the provider publishes them.
    """

    verdict: CheckVerdict
    reason: str
    evidence: MismatchEntry | None
    better_context: str | None
    hazards: tuple[HazardEntry, ...]
    weak_evidence: bool = False
    context_name: str = ""
    better_context_name: str = ""

    @property
    def word(self) -> str:
        """The verdict for a person."""
        return f"{self.verdict.name.lower()}{', weak evidence' if self.weak_evidence else ''}"

    @classmethod
    def of(cls, bundle: int, evidence: MismatchEntry | None, hazards: tuple[HazardEntry, ...]) -> "Check":
        """The check by the evidence of bundle number `bundle` about the pair; None if it has none."""
        if evidence is None:
            reason = f"report {bundle} has no evidence about this workload on this hardware group"
            return cls(CheckVerdict.UNKNOWN, reason, None, None, hazards)
        verdict = _verdict(evidence)
        if verdict is CheckVerdict.UNKNOWN:
            return cls(verdict, _reason(evidence), evidence, None, hazards)
        better = str(evidence.alternatives[0]) if verdict is not CheckVerdict.OK and evidence.alternatives else None
        weak = verdict is CheckVerdict.OK and evidence.judgement is PairJudgement.TOO_LITTLE
        return cls(verdict, _reason(evidence), evidence, better, hazards, weak)

    def named(self, names: Mapping[str, str], context: str) -> "Check":
        """The same with the names of this context and of the better one."""
        return replace(
            self, context_name=names.get(context, ""), better_context_name=names.get(self.better_context or "", "")
        )


class Checker:
    """A bundle indexed for checks: a check is a few look-ups, whatever the size of the bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._rows = {str(entry.workload) for entry in bundle.mismatches}
        self._pairs = {(str(entry.workload), str(entry.context)): entry for entry in bundle.mismatches}
        hazards: dict[str, list[HazardEntry]] = defaultdict(list)
        for entry in bundle.hazards:
            hazards[str(entry.context_level)].append(entry)
        self._hazards = {level: tuple(entries) for level, entries in hazards.items()}

    def check(self, labels: Mapping[str, str]) -> Check:
        """The verdict for a lease; `labels` has its context tokens and its workload's tokens, by name."""
        pair = finest_row(labels, self._rows), labels.get("context", "")
        hazards = self._hazards.get(labels.get("context_level", ""), ())
        return Check.of(self.bundle.number, self._pairs.get(pair), hazards)


def check(bundle: Bundle | None, labels: Mapping[str, str]) -> Check:
    """One check, as by `Checker`; UNKNOWN without a bundle."""
    if bundle is None:
        return Check(CheckVerdict.UNKNOWN, "no report received yet", None, None, ())
    return Checker(bundle).check(labels)


def check_page(page: ContextPage, labels: Mapping[str, str]) -> Check:
    """The verdict by a page about the lease's context: that of the whole bundle. Its names are not on the page."""
    workload = finest_row(labels, page.rows)
    evidence = next((entry for entry in page.mismatches if str(entry.workload) == workload), None)
    return Check.of(page.bundle, evidence, page.hazards)


def _verdict(entry: MismatchEntry) -> CheckVerdict:
    if entry.judgement is PairJudgement.WORSE:
        return CheckVerdict.MISMATCH
    if entry.judgement in (PairJudgement.CONFOUNDED, PairJudgement.SUSPECTED):
        return CheckVerdict.WARNING
    open_to_all = entry.judgement is PairJudgement.TOO_LITTLE and entry.risk_ratio_high >= ANYTHING
    return CheckVerdict.UNKNOWN if open_to_all else CheckVerdict.OK


def _reason(entry: MismatchEntry) -> str:
    """The interval rests on the pair's own counts alone, estimate and probability on what is known of all pairs."""
    return (
        f"fails {entry.risk_ratio:.1f} times as often as expected (its own counts alone: {entry.risk_ratio_low:.1f}–"
        f"{entry.risk_ratio_high:.1f} at 95%, {entry.expected_failures:.0f} failures were expected; among all pairs,"
        f" probability that it is worse: {entry.probability_worse:.0%}){_SAID[entry.judgement]}"
    )


_SAID = {
    PairJudgement.WORSE: "",
    PairJudgement.CONFOUNDED: ", but script errors are as frequent too: the hardware may not be the cause",
    PairJudgement.SUSPECTED: "; not certain: use another hardware group if it costs little",
    PairJudgement.NOT_WORSE: "",
    PairJudgement.TOO_LITTLE: "; too few failures expected to call this normal",
}
