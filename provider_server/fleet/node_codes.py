"""Error codes of own GPUs over the leases of their nodes: whether they are the node's hardware or a lease's job.

    telemetry's Xid events ─┐
    leases with their nodes ┼─ node_codes ─▶ a row for each node and code, the most probable hardware first
    repairs ────────────────┘

A job is what registered one token of a workload, else one lease. An error while nobody had the node counts as another
job's on that node. Codes of a node within an hour count as of one GPU, so that those that follow another are told from
it. A repair after a code, within `REPAIRED_H`, teaches that the code was the hardware's.

A running provider keeps events and rows in its home (`node_codes.json`), for the page; `remember` adds to them.

Not promised: that telemetry shows a code that stood there before (docs/nodes.md, traps).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

import msgspec
import polars as pl

from federation.base import json_files
from federation.protocol.round_messages import LADDER_LABELS
from federation.protocol.xid_codes import Cause, known_codes
from federation.protocol.xid_judge import CodeHistory, CodeLine, judge
from provider_server.fleet.leases import Lease
from provider_server.fleet.telemetry.catalogue import BY_CODE, failing
from provider_server.fleet.telemetry.samples import HOUR_S

FILE = "node_codes.json"
KEPT_H = 90 * 24
REPAIRED_H = 14 * 24
NOBODY = ""


class CodeEvent(NamedTuple):
    """A code on a node, at an hour since 1970."""

    node: str
    code: str
    hour: float


class Held(NamedTuple):
    """A node in a job's hands, in hours since 1970."""

    node: str
    job: str
    start_h: float
    end_h: float


class NodeCodeRow(TypedDict):
    """A code on a node: how often, when last, and how probable it is that its hardware is the cause."""

    node: str
    code: str
    events: int
    last_hour: int
    hardware_probability: float
    judgement: str


class KeptCodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events of the last `KEPT_H`, by time, and the rows that were made of them."""

    events: tuple[CodeEvent, ...] = ()
    rows: tuple[NodeCodeRow, ...] = ()


def load(home: Path) -> KeptCodes:
    """What a running provider has kept; empty before that. DecodeError for a damaged file."""
    return json_files.load(home / FILE, KeptCodes, KeptCodes(), hint="delete it; it is written again within a day")


def remember(
    home: Path, new: Iterable[CodeEvent], leases: Sequence[Held], repairs: Iterable[tuple[str, float]], hour: float
) -> None:
    """Adds events to those that are kept, and judges all of the last `KEPT_H` before the hour anew."""
    events = sorted({*load(home).events, *new}, key=lambda one: (one.hour, one.node, one.code))
    events = [one for one in events if one.hour > hour - KEPT_H]
    json_files.keep(home / FILE, KeptCodes(tuple(events), tuple(node_codes(events, leases, repairs))))


def codes_in(events: pl.DataFrame) -> Iterator[CodeEvent]:
    """The codes among telemetry's events (`HourSummary.events`)."""
    coded = pl.col("metric").is_in([name for name, kind in failing().items() if kind == BY_CODE])
    for node, time_s, code in events.filter(coded).select("node", "time_s", "code").iter_rows():
        yield CodeEvent(node, str(int(code)), time_s / HOUR_S)


def held(placed: Iterable[tuple[Lease, Sequence[str]]]) -> list[Held]:
    """The nodes of leases, under the finest token of the workload that each has registered."""
    return [
        Held(node, lease.labels.get(LADDER_LABELS[0]) or str(lease.lease), lease.start_h, lease.end_h)
        for lease, nodes in placed
        for node in nodes
    ]


def node_codes(
    events: Sequence[CodeEvent], leases: Sequence[Held], repairs: Iterable[tuple[str, float]] = ()
) -> list[NodeCodeRow]:
    """Every known code on every node; `repairs` are nodes and the hours from which they had new hardware."""
    known = [one for one in events if one.code in known_codes()]
    pairs = _pairs(known, leases)
    outcomes = _outcomes(known, repairs)
    newest = {(one.node, one.code): one for one in sorted(known, key=lambda one: one.hour)}
    counts = Counter((one.node, one.code) for one in known)
    rows = [_row(one, counts[key], pairs, leases, known, outcomes) for key, one in newest.items()]
    return sorted(rows, key=lambda row: (-row["hardware_probability"], row["node"], row["code"]))


Pairs = Mapping[tuple[str, str], bool]


def _pairs(events: Sequence[CodeEvent], leases: Sequence[Held]) -> dict[str, dict[tuple[str, str], bool]]:
    """By code, each job and node and whether the code showed while that job had that node."""
    ran = {(one.job, one.node): False for one in leases}
    found: dict[str, dict[tuple[str, str], bool]] = {one.code: dict(ran) for one in events}
    for one in events:
        found[one.code][_job(one, leases), one.node] = True
    return found


def _job(event: CodeEvent, leases: Iterable[Held]) -> str:
    mine = (one for one in leases if one.node == event.node and one.start_h <= event.hour < one.end_h)
    return next((one.job for one in mine), NOBODY)


def _here(pairs: Pairs, node: str) -> Pairs:
    """Without what other nodes showed in nobody's hands: how long they showed nothing is not known."""
    return {pair: seen for pair, seen in pairs.items() if pair[0] != NOBODY or pair[1] == node}


def _outcomes(events: Iterable[CodeEvent], repairs: Iterable[tuple[str, float]]) -> dict[str, Counter[Cause]]:
    found: defaultdict[str, Counter[Cause]] = defaultdict(Counter)
    for node, hour in repairs:
        for code in {one.code for one in events if one.node == node and 0 <= hour - one.hour <= REPAIRED_H}:
            found[code]["hardware"] += 1
    return dict(found)


def _row(
    event: CodeEvent,
    count: int,
    pairs: Mapping[str, Pairs],
    leases: Sequence[Held],
    events: Sequence[CodeEvent],
    outcomes: Mapping[str, Mapping[Cause, int]],
) -> NodeCodeRow:
    job = _job(event, leases)
    history = {code: CodeHistory.of(_here(seen, event.node), job, event.node) for code, seen in pairs.items()}
    near = [one.code for one in events if one.node == event.node and abs(one.hour - event.hour) <= 1.0]
    codes = [*(code for code in dict.fromkeys(near) if code != event.code), event.code]
    lines = [CodeLine(f"NVRM: Xid (PCI:0000:00:00): {code}") for code in codes]
    verdict = next(one for one in reversed(judge(lines, history, outcomes)) if one)
    return NodeCodeRow(
        node=event.node,
        code=event.code,
        events=count,
        last_hour=int(event.hour),
        hardware_probability=round(verdict.hardware, 4),
        judgement=verdict.sentence("the job's code"),
    )
