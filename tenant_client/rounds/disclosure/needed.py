"""What a lease, or a workload that is to come, needs of a host: from the journal, for `show --only resources`."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from crypto.errors import PharoahError
from federation.base.sqlite import Connection, reporting
from tenant_client.doctor.advice.gpu_memory import GpuWanted, batch_of, requests, wanted
from tenant_client.doctor.advice.resources import Earlier, Resources, resources
from tenant_client.doctor.records.attempts import Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.excerpts import Excerpts
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.starts import Starts
from tenant_client.doctor.records.usages import Usage, Usages
from tenant_client.doctor.workload.describe import describe_files
from tenant_client.doctor.workload.descriptor import Descriptor


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
        gpu = _gpu(connection, unit, described, usages)
    if unit not in described and gpu is not None:
        return Resources(1, None, (), None, available_bytes, wants_memory=False, gpu=gpu)
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
    return replace(resources(described[unit], earlier, measured, ranks, available_bytes), gpu=gpu)


def _gpu(
    connection: Connection, unit: str, described: Mapping[str, Descriptor], usages: Mapping[tuple[str, int], Usage]
) -> GpuWanted | None:
    """What the newest attempt wanted of its GPU, if it ran out of its memory."""
    attempts = Attempts(connection).list(unit)
    if not attempts or attempts[-1].state is AttemptState.SUCCEEDED:
        return None
    kept = Excerpts(connection).of(unit, attempts[-1].attempt).lines
    told = requests([*(line.text for line in kept), attempts[-1].cause.sentence])
    batches = {other: batch_of(start.command) for other, start in Starts(connection).newest().items()}
    own = described.get(unit)
    earlier = [
        (batch, usage.gpu_bytes)
        for (other, _), usage in usages.items()
        if (batch := batches.get(other)) and usage.gpu_bytes and other != unit and _alike(own, described.get(other))
    ]
    return wanted(told[0], batches.get(unit), earlier) if told else None


def _alike(one: Descriptor | None, other: Descriptor | None) -> bool:
    return one is not None and other is not None and one.structure == other.structure


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
