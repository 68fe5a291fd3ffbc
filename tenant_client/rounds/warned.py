"""What came of the provider's warnings about own leases: for the table of warnings and outcomes.

A unit is a lease in a window. It shows, each as one observation of which at most one counts (`rounds.counts`):

    a hint of this window that a failure followed while it was open, `LEAD_H` later   hint, failed
    one that was cleared or grew too old within the window, without a failure         hint, fine
    a failure that no hint of this window came before                                 none, failed
    the same, or none, of a lease of which the bundle warned and that began here      check, failed or fine

Failures are those that the infrastructure causes. A lease of which nothing was said and that did not fail shows
nothing: precision and recall need no such count. A hint counts from when it was received, by the clock here, so one
that is dated back foretells nothing; nor does one of a failure that came sooner than `LEAD_H`: that failure is one
without a hint. It is open until it is cleared, or for `STANDS_H`; one that is still open when the window ends is
undecided and shows nothing. The check is that of the bundle in force at the lease's start, whoever asked.

All of it is of one lease in one window: hints and failures of others, and of other windows, change nothing. So one unit
more or less moves the table by one (docs/privacy.md has the proof). Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from federation.protocol.plan import Plan
from federation.protocol.service_messages import Hint, HintState
from federation.protocol.subjects import CHECK, FAILED, FINE, HINT, NO_WARNING, Subject
from tenant_client.doctor.advice.hints import STANDS_H
from tenant_client.rounds.counts import Observation

LEAD_H = 0.5  # time to save a checkpoint; a provider's own sensors tell it of a failure within minutes


@dataclass(frozen=True)
class ReceivedHint:
    """A hint, and the hour at which it came."""

    hint: Hint
    at_h: float


@dataclass(frozen=True)
class WarnedLease:
    """A lease, when it began, whether a check warned of it then, its hints in order, and hours of its failures."""

    unit: str
    start_h: float
    checked: bool
    hints: Sequence[ReceivedHint]
    failed_h: Sequence[float]


def warnings(lease: WarnedLease, plan: Plan) -> Iterator[Observation]:
    """What the lease shows in each window up to the plan's end."""
    for begin_h, end_h in pairwise(plan.windows):
        if end_h <= plan.end_hour:
            yield from _within(lease, float(begin_h), float(end_h))


def _within(lease: WarnedLease, begin_h: float, end_h: float) -> Iterator[Observation]:
    hints = [one for one in lease.hints if begin_h <= max(one.at_h, one.hint.at_h) < end_h]
    left = sorted(at_h for at_h in lease.failed_h if begin_h <= at_h < end_h)
    failed, began_here = bool(left), begin_h <= lease.start_h < end_h
    spans = list(_open(hints))

    def shown(at_h: float, warning: str, outcome: str) -> Observation:
        return Observation(Subject.WARNINGS, lease.unit, at_h, ((warning, outcome),))

    for from_h, until_h in spans:
        late = any(from_h <= at_h < from_h + LEAD_H for at_h in left)
        hit = [at_h for at_h in left if from_h + LEAD_H <= at_h <= until_h]
        left = [at_h for at_h in left if at_h not in hit]
        if hit or (until_h < end_h and not late):
            yield shown(from_h, HINT, FAILED if hit else FINE)
    warned = CHECK if lease.checked and began_here else NO_WARNING
    for at_h in left:
        yield shown(at_h, warned, FAILED)
    if warned is CHECK and not failed and not spans:
        yield shown(lease.start_h, CHECK, FINE)


def _open(hints: Sequence[ReceivedHint]) -> Iterator[tuple[float, float]]:
    """From when to when warnings were open, by the hints of one window."""
    from_h = until_h = None
    for one in hints:
        at_h = max(one.at_h, one.hint.at_h)
        is_over = one.hint.state is HintState.CLEARED
        if from_h is not None and until_h is not None and (is_over or at_h > until_h):
            yield from_h, min(at_h, until_h)
            from_h = None
        if not is_over:
            from_h, until_h = (at_h if from_h is None else from_h), at_h + STANDS_H
    if from_h is not None and until_h is not None:
        yield from_h, until_h
