"""Before a job starts: does this workload belong on this context?

Answered from a signed bundle, on the tenant's own machine: the provider learns nothing from a check. The verdict
follows the posterior probability that the pair fails systematically more often than workload and context alone would
explain; its interval says how sure that is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from crypto.bundle import Bundle, HazardEntry, MismatchEntry
from crypto.messages import finest_row

MISMATCH_PROBABILITY = 0.9
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
    known = {str(entry.context): entry for entry in bundle.mismatches if str(entry.workload) == row}
    entry = known.get(labels.get("context", ""))
    if entry is None:
        reason = f"bundle {bundle.number} knows nothing of this workload on this context"
        return Check(Verdict.UNKNOWN, reason, None, None, hazards)
    verdict = _verdict(entry)
    better = _better(entry, list(known.values())) if verdict is not Verdict.OK else None
    return Check(verdict, _reason(entry), entry, better, hazards)


def _verdict(entry: MismatchEntry) -> Verdict:
    if entry.probability_worse >= MISMATCH_PROBABILITY:
        return Verdict.MISMATCH
    return Verdict.WARNING if entry.probability_worse >= WARNING_PROBABILITY else Verdict.OK


def _reason(entry: MismatchEntry) -> str:
    return (
        f"fails {entry.risk_ratio:.1f} times as often as expected (95% interval {entry.risk_ratio_low:.1f}–"
        f"{entry.risk_ratio_high:.1f}; probability of a mismatch {entry.probability_worse:.0%};"
        f" {entry.expected_failures:.0f} failures were expected)"
    )


def _better(entry: MismatchEntry, others: list[MismatchEntry]) -> str | None:
    """Of the contexts where the workload does well, the one with the lowest upper bound, if that is below this risk."""
    good = [other for other in others if _verdict(other) is Verdict.OK and other.risk_ratio_high < entry.risk_ratio]
    best = min(good, key=lambda other: other.risk_ratio_high, default=None)
    return None if best is None else str(best.context)
