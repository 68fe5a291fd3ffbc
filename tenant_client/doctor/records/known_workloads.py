"""Which workload a job is that has not run yet: that of an earlier lease whose tokens are known."""

from collections.abc import Mapping

from federation.base.sqlite import Connection
from federation.protocol.round_messages import LADDER_LABELS
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.journal import Journal

Ladder = Mapping[str, str]


def known_workload(connection: Connection, job: str, *, like: str = "", lease: str = "") -> tuple[str, Ladder] | None:
    """A lease and the tokens of its workload: `lease` itself, `like`, or the newest one of a job of this name.

    `like` may be the start of a lease's name; UnknownUnit or AmbiguousLease where it is none. None: no tokens yet.
    """
    journal = Journal(connection)
    labels = {unit.unit: unit.labels for unit in journal.units()}
    if like:
        candidates = [journal.find(like)]
    else:
        jobs = Attempts(connection).jobs() if job else {}
        candidates = [unit for unit in reversed(labels) if job and jobs.get(unit) == job]
    for unit in (lease, *candidates):
        if ladder := {rung: labels[unit][rung] for rung in LADDER_LABELS if rung in labels.get(unit, {})}:
            return unit, ladder
    return None
