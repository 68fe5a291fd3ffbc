"""Entries of a bundle that hardly changed stay as they were last published.

A bundle that is learnt from exact own failures moves every entry a little whenever any of them is counted: main effects
are shared. Entries that moved by less than what matters to a reader are published again as they were, so that a row
without news says nothing of its neighbours'. Not promised: that an entry at the edge stays. It bounds detail, and is no
noise.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from federation.protocol.bundle import Bundle, HazardEntry, MismatchEntry

SMALL_RATIO = 1.1  # of a ratio, a rate or an end of their intervals
SMALL_PROBABILITY = 0.05


def with_small_changes_left_out(before: Bundle | None, now: Bundle) -> Bundle:
    """The bundle, with the entries of the one before where they are near; tokens of another epoch have none before."""
    if before is None or before.epoch != now.epoch:
        return now
    pairs = {(one.workload, one.context): one for one in before.mismatches}
    rates = {(one.context_level, one.band): one for one in before.hazards}
    return replace(
        now,
        mismatches=tuple(_pair(pairs.get((one.workload, one.context)), one) for one in now.mismatches),
        hazards=tuple(_rate(rates.get((one.context_level, one.band)), one) for one in now.hazards),
    )


def _pair(before: MismatchEntry | None, now: MismatchEntry) -> MismatchEntry:
    if before is None or (before.judgement, before.alternatives) != (now.judgement, now.alternatives):
        return now
    is_small = abs(before.probability_worse - now.probability_worse) < SMALL_PROBABILITY
    ends = [(one.risk_ratio, one.risk_ratio_low, one.risk_ratio_high) for one in (before, now)]
    return before if is_small and _alike(*ends) else now


def _rate(before: HazardEntry | None, now: HazardEntry) -> HazardEntry:
    if before is None:
        return now
    return before if _alike(*((one.rate, one.rate_low, one.rate_high) for one in (before, now))) else now


def _alike(before: Sequence[float], now: Sequence[float]) -> bool:
    pairs = zip(before, now, strict=True)
    return all(one <= SMALL_RATIO * other and other <= SMALL_RATIO * one for one, other in pairs)
