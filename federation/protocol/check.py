"""Before a job starts: does this workload belong on this context?

Answered from a signed bundle, by the tenant itself, so that the provider learns nothing; or by the provider's online
service, which then learns the tokens. The verdict is the bundle's judgement of the pair. One that is called worse is a
mismatch: of those, one in twenty is expected to be none. A warning is one that is suspected, so that who heeds it too
avoids most of what mismatches cost, and is expected to leave fewer than one job in twenty in vain; or one that fails
more often for a reason which hardware need not be.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from federation.protocol.bundle import Bundle, HazardEntry, MismatchEntry, PairJudgement
from federation.protocol.round_messages import finest_row
from federation.protocol.service_messages import CheckVerdict


@dataclass(frozen=True)
class Check:
    """A verdict with its evidence; `better_context` is the token of a context where this workload does well.

    `weak_evidence`: nothing speaks against the pair, but its own failures do not exclude twice the expected rate yet.
    Contexts have names where the provider chooses to tell them.
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
        """What follows from what bundle number `bundle` says of the pair; None where it says nothing."""
        if evidence is None:
            reason = f"bundle {bundle} knows nothing of this workload on this context"
            return cls(CheckVerdict.UNKNOWN, reason, None, None, hazards)
        verdict = _verdict(evidence)
        better = str(evidence.alternatives[0]) if verdict is not CheckVerdict.OK and evidence.alternatives else None
        weak = verdict is CheckVerdict.OK and evidence.judgement is PairJudgement.TOO_LITTLE
        return cls(verdict, _reason(evidence), evidence, better, hazards, weak)

    def named(self, names: Mapping[str, str], context: str) -> "Check":
        """The same with the provider's names of this context and of the better one, by token."""
        return replace(
            self, context_name=names.get(context, ""), better_context_name=names.get(self.better_context or "", "")
        )


class Checker:
    """A bundle laid out so that a check is a few look-ups, whatever its size."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._rows = {str(entry.workload) for entry in bundle.mismatches}
        self._pairs = {(str(entry.workload), str(entry.context)): entry for entry in bundle.mismatches}
        hazards: dict[str, list[HazardEntry]] = defaultdict(list)
        for entry in bundle.hazards:
            hazards[str(entry.context_level)].append(entry)
        self._hazards = {level: tuple(entries) for level, entries in hazards.items()}

    def check(self, labels: Mapping[str, str]) -> Check:
        """The verdict for a lease whose `labels` hold its context tokens and those of its workload's rungs, by name."""
        pair = finest_row(labels, self._rows), labels.get("context", "")
        hazards = self._hazards.get(labels.get("context_level", ""), ())
        return Check.of(self.bundle.number, self._pairs.get(pair), hazards)


def check(bundle: Bundle | None, labels: Mapping[str, str]) -> Check:
    """One check, as by `Checker`; without a bundle nothing is known."""
    if bundle is None:
        return Check(CheckVerdict.UNKNOWN, "no bundle has been received yet", None, None, ())
    return Checker(bundle).check(labels)


def _verdict(entry: MismatchEntry) -> CheckVerdict:
    if entry.judgement is PairJudgement.WORSE:
        return CheckVerdict.MISMATCH
    return (
        CheckVerdict.WARNING
        if entry.judgement in (PairJudgement.CONFOUNDED, PairJudgement.SUSPECTED)
        else CheckVerdict.OK
    )


def _reason(entry: MismatchEntry) -> str:
    return (
        f"fails {entry.risk_ratio:.1f} times as often as expected (95% interval {entry.risk_ratio_low:.1f}–"
        f"{entry.risk_ratio_high:.1f}; probability of a mismatch {entry.probability_worse:.0%};"
        f" {entry.expected_failures:.0f} failures were expected){_SAID[entry.judgement]}"
    )


_SAID = {
    PairJudgement.WORSE: "",
    PairJudgement.CONFOUNDED: ", but so do its script errors: the context need not be the cause",
    PairJudgement.SUSPECTED: "; that is not sure, but go elsewhere if it costs little",
    PairJudgement.NOT_WORSE: "",
    PairJudgement.TOO_LITTLE: "; too little is known to say that this is normal",
}
