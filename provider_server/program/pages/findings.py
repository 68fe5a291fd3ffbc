"""Findings beside the newest bundle by workload and context, their history, and what changed since the one before.

They are those that operators see (`learning.operators_set`): tenants are told less.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import MappingProxyType

from federation.protocol.bundle import Bundle, MismatchEntry, PairJudgement
from federation.protocol.check import Check
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.program.pages.snapshot import SHORT, Snapshot, natural

MOST_WORKLOADS, MOST_CONTEXTS = 60, 40
SIGNS: Mapping[str, str] = MappingProxyType({"worse": "▲", "confounded": "◆", "suspected": "△"})  # beside the colours
ACCUSED = (PairJudgement.WORSE, PairJudgement.CONFOUNDED)


@dataclass(frozen=True)
class Event:
    """A change from one bundle to the next, `new` or `gone`, or an `alarm`."""

    hour: int
    kind: str
    text: str
    finding: str


@dataclass(frozen=True)
class Day:
    """Events of one hour and kind together."""

    hour: int
    kind: str
    events: tuple[Event, ...]


@dataclass(frozen=True)
class FindingRow:
    """A workload on a context, as operators see it beside the newest bundle; its URL is /findings/<key>."""

    key: str
    workload: str
    context: str
    context_name: str
    judgement: str
    probability_worse: float
    risk_ratio: float
    low: float
    high: float
    expected_failures: float
    reason: str
    better_on: tuple[str, ...]
    history: tuple["Past", ...]

    @property
    def tone(self) -> str:
        """The CSS class of its cell; empty for what nobody need look at."""
        return self.judgement if self.judgement in SIGNS else ""


@dataclass(frozen=True)
class Past:
    """An earlier bundle's finding on the same pair."""

    bundle: int
    until_hour: int
    judgement: str
    probability_worse: float
    risk_ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Matrix:
    """Findings by workload and context, the most probable mismatches first; None where there is no finding."""

    contexts: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[FindingRow | None, ...]], ...]
    workloads_left_out: int
    contexts_left_out: int


Pair = tuple[str, str]


def events(seen: Snapshot) -> tuple[Event, ...]:
    """What changed from one bundle to the next, and alarms, newest first."""
    newest = _entries(seen.learnt[-1]) if seen.learnt else {}
    events = []
    for before, after in pairwise([None, *seen.learnt]):
        old, new = (_accused(one) if one else {} for one in (before, after))
        for kind, pairs in (("new", new.keys() - old.keys()), ("gone", old.keys() - new.keys())):
            for pair in sorted(pairs):
                entry = (new if kind == "new" else old)[pair]
                text = _told(seen, entry, gone=kind == "gone")
                events.append(
                    Event(after.until_hour if after else 0, kind, text, _key(entry) if pair in newest else "")
                )
    events += [Event(alarm.raised_hour + HOURS_PER_WEEK, "alarm", seen.told(alarm), "") for alarm in seen.alarms]
    return tuple(sorted(events, key=lambda event: (-event.hour, event.kind, event.text)))


def days(events: Sequence[Event]) -> tuple[Day, ...]:
    """Events in order, grouped by hour and kind."""
    groups = groupby(events, key=lambda event: (event.hour, event.kind))
    return tuple(Day(*key, tuple(group)) for key, group in groups)


def _entries(bundle: Bundle) -> dict[Pair, MismatchEntry]:
    return {(str(one.workload), str(one.context)): one for one in bundle.mismatches}


def _accused(bundle: Bundle) -> dict[Pair, MismatchEntry]:
    return {pair: one for pair, one in _entries(bundle).items() if one.judgement in ACCUSED}


def _told(seen: Snapshot, entry: MismatchEntry, *, gone: bool) -> str:
    what = f"workload {str(entry.workload)[:SHORT]} on {seen.name(str(entry.context))}"
    if gone:
        return f"{what} is no longer {entry.judgement.value}"
    return f"{what} is {entry.judgement.value}: {entry.risk_ratio:.1f} times as many failures as expected"


def _key(entry: MismatchEntry) -> str:
    return f"{entry.workload}-{entry.context}"


def findings(seen: Snapshot) -> tuple[FindingRow, ...]:
    """All pairs of the newest bundle, the most probable mismatch first."""
    if not seen.learnt:
        return ()
    newest = seen.learnt[-1]
    past = [(one, _entries(one)) for one in seen.learnt[:-1] if one.epoch == newest.epoch]
    made = [_finding(seen, newest.number, entry, past) for entry in newest.mismatches]
    return tuple(sorted(made, key=lambda one: (-one.probability_worse, -one.risk_ratio, one.key)))


def _finding(
    seen: Snapshot, number: int, entry: MismatchEntry, past: Sequence[tuple[Bundle, dict[Pair, MismatchEntry]]]
) -> FindingRow:
    pair = str(entry.workload), str(entry.context)
    before = [(bundle, entries[pair]) for bundle, entries in past if pair in entries]
    return FindingRow(
        key=_key(entry),
        workload=pair[0],
        context=pair[1],
        context_name=seen.name(pair[1]),
        judgement=entry.judgement.value,
        probability_worse=entry.probability_worse,
        risk_ratio=entry.risk_ratio,
        low=entry.risk_ratio_low,
        high=entry.risk_ratio_high,
        expected_failures=entry.expected_failures,
        reason=Check.of(number, entry, ()).reason,
        better_on=tuple(seen.name(str(token)) for token in entry.alternatives),
        history=tuple(_past(bundle, earlier) for bundle, earlier in before),
    )


def _past(bundle: Bundle, entry: MismatchEntry) -> Past:
    interval = entry.risk_ratio, entry.risk_ratio_low, entry.risk_ratio_high
    return Past(bundle.number, bundle.until_hour, entry.judgement.value, entry.probability_worse, *interval)


def matrix(findings: Sequence[FindingRow]) -> Matrix:
    """Findings, most probable mismatch first, as a table; rows and columns beyond the limits are counted."""
    workloads = list(dict.fromkeys(row.workload for row in findings))  # in the order of findings
    contexts = sorted({(row.context_name, row.context) for row in findings}, key=lambda context: natural(context[0]))
    cells = {(row.workload, row.context): row for row in findings}
    shown = contexts[:MOST_CONTEXTS]
    return Matrix(
        tuple((token, name) for name, token in shown),
        tuple(
            (workload, tuple(cells.get((workload, token)) for _, token in shown))
            for workload in workloads[:MOST_WORKLOADS]
        ),
        max(0, len(workloads) - MOST_WORKLOADS),
        max(0, len(contexts) - MOST_CONTEXTS),
    )


ORDERS: Mapping[str, Callable[[FindingRow], object]] = MappingProxyType(
    {
        "probability": lambda one: -one.probability_worse,
        "times as often": lambda one: -one.risk_ratio,
        "workload": lambda one: one.workload,
        "hardware group": lambda one: natural(one.context_name),
    }
)


def filtered(
    findings: Sequence[FindingRow], judgement: str, text: str, order: str = "probability"
) -> tuple[FindingRow, ...]:
    """Findings of a judgement (any if empty) whose tokens or context name contain `text`, in one of `ORDERS`."""
    wanted = text.strip().lower()
    matches = [
        row
        for row in findings
        if judgement in ("", row.judgement) and any(wanted in field for field in (row.key, row.context_name.lower()))
    ]
    return tuple(sorted(matches, key=ORDERS.get(order, ORDERS["probability"])))  # type: ignore[arg-type]
