"""The ways between ranks of a lease, from what its newest attempt left and from other logs, for a verb and a page.

    run directory, --log ─ rank_graph ─▶ RankGraph ┐
    journal: findings, hints ──────────────────────┴─ marks_of ─▶ LeasePaths ─ routes ─▶ Route × n

Nothing of it is sent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from federation.base.reading import SourceError
from federation.base.route import Route
from federation.protocol.service_messages import Hint
from tenant_client.doctor.advice.hints import HintLog, standing
from tenant_client.doctor.advice.path_health import marks_of
from tenant_client.doctor.diagnosis.diagnose import files_in, gather
from tenant_client.doctor.diagnosis.rank_graph import HealthMarks, RankGraph, graph_of, routes
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.run.diagnose_attempt import run_files
from tenant_client.doctor.sources.flight_recorder import rank_in_name, read_dumps
from tenant_client.doctor.sources.nccl_topology import read_topology

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
