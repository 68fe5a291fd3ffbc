"""What a lease, or a workload that is to come, needs of a host: from the journal, for `show --only resources`."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from crypto.errors import PharoahError
from federation.base.sqlite import reporting
from tenant_client.doctor.advice.resources import Earlier, Resources, resources
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.usages import Usage, Usages
from tenant_client.doctor.workload.describe import describe_files


class NotMeasured(PharoahError):
    """The lease has no described workload, or it and its like were never measured."""

    default_hint = "`pharoah-tenant run` describes and measures; it needs steps of a PyTorch optimiser"


def of_lease(database: Path, lease: str, available_bytes: float) -> Resources:
    """Before, from leases that began earlier; after, from the newest attempt of this one."""
    with reporting(), closing(open_database(database)) as connection:
        journal = Journal(connection)
        unit = journal.find(lease)
        described, usages = journal.descriptors(), Usages(connection).all()
        began = {(one.unit, one.attempt): one.started_at_s for one in Attempts(connection).list()}
    if unit not in described:
        raise NotMeasured(f"lease {unit} has no description of its workload")
    own = [number for other, number in usages if other == unit]
    measured = usages[unit, max(own)] if own else None
    first_s = min((at_s for (other, _), at_s in began.items() if other == unit), default=float("inf"))
    earlier = [
        Earlier(described[other], usage)
        for (other, number), usage in usages.items()
        if other != unit and other in described and began.get((other, number), first_s) < first_s
    ]
    ranks = measured.ranks if measured else _newest(earlier)
    return resources(described[unit], earlier, measured, ranks, available_bytes)


def of_traces(database: Path, traces: Sequence[Path], ranks: int | None, available_bytes: float) -> Resources:
    """Before, from all leases; the workload is what the traces show."""
    workload = describe_files(traces)
    with reporting(), closing(open_database(database)) as connection:
        described, usages = Journal(connection).descriptors(), Usages(connection).all()
    earlier = [Earlier(described[unit], usage) for (unit, _), usage in usages.items() if unit in described]
    return resources(workload, earlier, None, ranks or _newest(earlier), available_bytes)


def _newest(earlier: Sequence[Earlier]) -> int:
    """Ranks of the newest run, 1 without any."""
    usages: list[Usage] = [one.usage for one in earlier]
    return usages[-1].ranks if usages else 1
