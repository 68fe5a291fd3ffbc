"""Before a job starts: does this workload belong on this context?

Answered from a signed bundle, on the tenant's own machine: the provider learns nothing from a check. The verdict is the
bundle's judgement of the pair. One that is called worse is a mismatch: of those, one in twenty is expected to be none.
One that is rather worse than not, or that fails more often for a reason which hardware need not be, is a warning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from crypto.bundle import Bundle, HazardEntry, Judgement, MismatchEntry
from crypto.messages import finest_row

WARNING_PROBABILITY = 0.5


class Verdict(IntEnum):
    """The exit codes of `pharoah-tenant check`."""

    OK = 0
    WARNING = 1
    MISMATCH = 2
    UNKNOWN = 3


@dataclass(frozen=True)
class Check:
    """A verdict with its evidence; `better_context` is the token of a context where this workload does well."""

    verdict: Verdict
    reason: str
    evidence: MismatchEntry | None
    better_context: str | None
    hazards: tuple[HazardEntry, ...]


def check(bundle: Bundle | None, labels: Mapping[str, str]) -> Check:
    """The verdict for a lease whose `labels` hold its context tokens and the tokens of its workload, by name."""
    if bundle is None:
        return Check(Verdict.UNKNOWN, "no bundle has been received yet", None, None, ())
    hazards = tuple(entry for entry in bundle.hazards if str(entry.context_level) == labels.get("context_level"))
    row = finest_row(labels, {str(entry.workload) for entry in bundle.mismatches})
    here = (row, labels.get("context", ""))
    entry = next((one for one in bundle.mismatches if (str(one.workload), str(one.context)) == here), None)
    if entry is None:
        reason = f"bundle {bundle.number} knows nothing of this workload on this context"
        return Check(Verdict.UNKNOWN, reason, None, None, hazards)
    verdict = _verdict(entry)
    better = str(entry.alternatives[0]) if verdict is not Verdict.OK and entry.alternatives else None
    return Check(verdict, _reason(entry), entry, better, hazards)


def _verdict(entry: MismatchEntry) -> Verdict:
    if entry.judgement is Judgement.WORSE:
        return Verdict.MISMATCH
    doubtful = entry.judgement is Judgement.CONFOUNDED or entry.probability_worse >= WARNING_PROBABILITY
    return Verdict.WARNING if doubtful else Verdict.OK


def _reason(entry: MismatchEntry) -> str:
    return (
        f"fails {entry.risk_ratio:.1f} times as often as expected (95% interval {entry.risk_ratio_low:.1f}–"
        f"{entry.risk_ratio_high:.1f}; probability of a mismatch {entry.probability_worse:.0%};"
        f" {entry.expected_failures:.0f} failures were expected){_SAID[entry.judgement]}"
    )


_SAID = {
    Judgement.WORSE: "",
    Judgement.CONFOUNDED: ", but so do its script errors: the context need not be the cause",
    Judgement.NOT_WORSE: "",
    Judgement.TOO_LITTLE: "; too little is known to say that this is normal",
}
