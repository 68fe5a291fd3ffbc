"""The tenant's own leases with their exact outcomes: how large they were, how long they ran, and what failed.

Only leases whose nodes and end are known are there: the provider's grant says how many nodes a lease has, and the
attempts on it when it ended. Nothing here leaves by itself.
"""

from collections import defaultdict
from collections.abc import Mapping, Set as AbstractSet
from dataclasses import dataclass

from federation.base.clock import SECONDS_PER_HOUR
from federation.base.sqlite import Connection
from federation.protocol.causes import CAUSES, Domain
from tenant_client.doctor.records.journal import Journal


@dataclass(frozen=True)
class OwnLease:
    """A lease until it ended, or until now; `failures` are those of the infrastructure. Hours as in the journal."""

    labels: Mapping[str, str]
    nodes: int
    start_h: float
    end_h: float
    failures: int


def own_leases(connection: Connection, now_h: float) -> list[OwnLease]:
    """All of the journal, in order of their beginning."""
    journal = Journal(connection)
    failures: defaultdict[str, int] = defaultdict(int)
    for one in journal.failures(0.0, now_h):
        cause = CAUSES.get(one.failure.reason)
        failures[one.failure.unit] += cause is not None and cause.domain is Domain.INFRASTRUCTURE
    nodes, ends = journal.nodes(), _ends(connection, now_h)
    return [
        OwnLease(unit.labels, nodes[unit.unit], unit.start_h, ends[unit.unit], failures[unit.unit])
        for unit in journal.units()
        if unit.unit in nodes and ends.get(unit.unit, unit.start_h) > unit.start_h
    ]


def answered_hours(connection: Connection, rounds: AbstractSet[bytes]) -> list[tuple[float, float]]:
    """The hours that own answers to these rounds count."""
    rows = connection.execute("SELECT round_id, start_h, end_h FROM charges JOIN outbox USING (round_id)")
    return [(start_h, end_h) for round_id, start_h, end_h in rows if round_id in rounds]


def _ends(connection: Connection, now_h: float) -> dict[str, float]:
    """The hour at which the last attempt of each unit ended; now, where one runs."""
    rows = connection.execute("SELECT unit, MAX(ended_at_s), SUM(state = 'running') FROM attempts GROUP BY unit")
    return {
        unit: now_h if running else ended_at_s / SECONDS_PER_HOUR
        for unit, ended_at_s, running in rows
        if running or ended_at_s is not None
    }
