"""What a tenant knows against ranks, hosts and cards on a path: its logs, its watch's findings, hints of the provider.

A root in a log is a fault of what it names; symptoms, findings and culprits of a collective are doubts. A hint is about
a lease and never says which node: it is told beside the path and marks no hop.

Not promised: that what nothing speaks against is healthy.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from federation.base.route import HopHealth
from federation.protocol.service_messages import Hint
from tenant_client.doctor.advice.hints import reason_of
from tenant_client.doctor.diagnosis.collectives.findings import SOURCE as FLIGHT_RECORDER
from tenant_client.doctor.diagnosis.rank_graph import HealthMark, HealthMarks, RankGraph
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.reasons import UNKNOWN, somebody_ended

_CARD = re.compile(r"\b((?:mlx5|mlx4|hfi1|bnxt_re|irdma|efa|rdmap|ibp|roce)[\w-]*:\d{1,3})\b", re.ASCII)
_TEXT = 160


def marks_of(
    graph: RankGraph,
    evidence: Iterable[Evidence],
    findings: Iterable[Mapping[str, Any]] = (),
    hints: Sequence[Hint] = (),
) -> HealthMarks:
    """Everything that speaks against something of the graph."""
    ranks: dict[int, list[HealthMark]] = defaultdict(list)
    hosts: dict[str, list[HealthMark]] = defaultdict(list)
    cards: dict[tuple[str, str], list[HealthMark]] = defaultdict(list)
    for one in evidence:
        if one.role is Role.TEARDOWN or (one.reason == UNKNOWN and one.role is not Role.ROOT):
            continue
        if somebody_ended(one.reason):  # on that host, and for no fault of it
            continue
        is_fault = one.role is Role.ROOT and one.source != FLIGHT_RECORDER  # which tells where, not what
        mark = HealthMark(HopHealth.FAULT if is_fault else HopHealth.DOUBT, _words(one))
        seat = graph.seats.get(one.rank) if one.rank is not None else None
        host = one.host or (seat.host if seat else "")
        card = _CARD.search(one.text)
        if card and host:
            cards[host, card[1]].append(mark)
        elif one.rank is not None:
            ranks[one.rank].append(mark)
        elif host:
            hosts[host].append(mark)
    for finding in findings:
        if finding.get("cleared_at_s") is None and finding.get("kind") != "hint":
            for rank in finding.get("ranks", ()):
                ranks[rank].append(HealthMark(HopHealth.DOUBT, str(finding.get("text", ""))[:_TEXT]))
    told = [f"which node hint {hint.number} means: {reason_of(hint)}" for hint in hints]
    return HealthMarks(ranks, hosts, cards, told)


def _words(one: Evidence) -> str:
    return f"{one.reason} ({one.where}): {one.text[:_TEXT]}"
