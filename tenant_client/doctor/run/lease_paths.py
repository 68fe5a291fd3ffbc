"""The ways between ranks of a lease, from what its newest attempt left and from other logs, for a verb and a page.

    run directory, --log ─ rank_graph ─▶ RankGraph ┐
    journal: findings, hints ──────────────────────┴─ marks_of ─▶ LeasePaths ─ routes ─▶ Route × n

Nothing of it is sent.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from federation.base.reading import SourceError
from federation.base.route import HopHealth, Route
from federation.protocol.service_messages import Hint
from tenant_client.doctor.advice.hints import HintLog, reason_of, standing
from tenant_client.doctor.diagnosis.diagnose import files_in, gather
from tenant_client.doctor.diagnosis.rank_graph import HealthMark, HealthMarks, RankGraph, graph_of, routes
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.run.diagnose_attempt import run_files
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.flight_recorder import rank_in_name, read_dumps
from tenant_client.doctor.sources.flight_recorder_file import SOURCE as FLIGHT_RECORDER
from tenant_client.doctor.sources.nccl_topology import read_topology
from tenant_client.doctor.sources.reasons import UNKNOWN, somebody_ended

MOST_HOST_PAIRS = 12


@dataclass(frozen=True)
class LeasePaths:
    """The graph of a job, and what speaks against something of it."""

    graph: RankGraph
    marks: HealthMarks

    def between(self, start: int, end: int) -> tuple[Route, ...]:
        """All known ways between two ranks."""
        return tuple(routes(self.graph, start, end, self.marks))

    def between_hosts(self, most: int = MOST_HOST_PAIRS) -> tuple[Route, ...]:
        """Ways of the first two connected ranks of each two hosts, of at most so many pairs of hosts."""
        return tuple(route for pair in islice(self._host_pairs(), most) for route in self.between(*pair))

    def _host_pairs(self) -> Iterator[tuple[int, int]]:
        seen: set[frozenset[str]] = set()
        for one, other in sorted(self.graph.ways):
            seats = self.graph.seats.get(one), self.graph.seats.get(other)
            hosts = frozenset(seat.host for seat in seats if seat)
            if len(hosts) == 2 and hosts not in seen:
                seen.add(hosts)
                yield one, other


def lease_paths(
    home: Path,
    lease: str,
    now_h: float,
    logs: Sequence[Path] = (),
    refused: Callable[[SourceError], None] = lambda error: None,
) -> LeasePaths:
    """Of a lease, or of logs alone where its name is ""; `refused` hears of each file that cannot be read."""
    given = [*run_files(home, lease), *logs]
    gathered = gather(given)
    for fault in gathered.faults:
        refused(fault)
    files = [file for one in given for file, _ in files_in(one)]
    dumps = [file for file in files if rank_in_name(file.name) is not None]
    topology = read_topology(file for file in files if file not in dumps)
    read = (dump for file in dumps for dump in read_dumps(file, refused=lambda error: None))
    graph = graph_of(topology, read)
    return LeasePaths(graph, marks_of(graph, gathered.evidence, *_journalled(home, lease, now_h)))


def _journalled(home: Path, lease: str, now_h: float) -> tuple[Sequence[Mapping[str, object]], list[Hint]]:
    """Findings of the newest attempt of the lease, and its open hints; none without a lease."""
    if not lease:
        return (), []
    with closing(open_database(home / "tenant.db")) as connection:
        own = [one for one in Attempts(connection).list() if one.unit == lease]
        hints = list(standing(HintLog(connection).hints(lease), now_h))
    return (own[-1].findings if own else ()), hints


# ---- what speaks against hops ----------------------------------------------------------------------------------------
#
# A root in a log is a fault of what it names; symptoms, findings and culprits of a collective are doubts. A hint is
# about a lease and never says which node: it is told beside the path and marks no hop.
#
# Not promised: that what nothing speaks against is healthy.


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
