"""A view for the owner: the journal, read from the database alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from federation.base.sqlite import Connection
from tenant_client.doctor.advice.explanation import Explanation, FailureCause, FailureSide
from tenant_client.doctor.advice.failure_facts import Known, explanations
from tenant_client.doctor.records.attempts import Attempt, Attempts
from tenant_client.doctor.records.incidents import Incident, Incidents
from tenant_client.doctor.records.journal import Journal, LabelledFailure, Unit
from tenant_client.doctor.workload.compare import operator_text
from tenant_client.doctor.workload.descriptor import Descriptor


@dataclass(frozen=True)
class Workload:
    """The workload of a lease, and what its traces lack. Only tokens of it ever leave."""

    lease: str
    precision: str
    parallelism: str
    versions: tuple[str, ...]
    structure: tuple[str, ...]
    lacks: tuple[str, ...]


@dataclass(frozen=True)
class Happened:
    """The journal: leases, workloads, attempts and their outcomes, counted failures, jobs by lease, and incidents.

    `undescribed` says by lease why its workload is not known, `explanations` in a line what both sides together tell of
    an attempt that did not go well.
    """

    leases: tuple[Unit, ...]
    workloads: tuple[Workload, ...]
    attempts: tuple[Attempt, ...]
    failures: tuple[LabelledFailure, ...]
    jobs: Mapping[str, str]
    incidents: tuple[Incident, ...]
    undescribed: Mapping[str, str]
    explanations: tuple["ExplainedAttempt", ...]

    def of(self, lease: str) -> "Happened":
        """What it has of one lease."""
        return Happened(
            leases=tuple(one for one in self.leases if one.unit == lease),
            workloads=tuple(one for one in self.workloads if one.lease == lease),
            attempts=tuple(one for one in self.attempts if one.unit == lease),
            failures=tuple(one for one in self.failures if one.failure.unit == lease),
            jobs={name: job for name, job in self.jobs.items() if name == lease},
            incidents=tuple(one for one in self.incidents if one.lease == lease),
            undescribed={name: why for name, why in self.undescribed.items() if name == lease},
            explanations=tuple(one for one in self.explanations if one.lease == lease),
        )


@dataclass(frozen=True)
class ExplainedAttempt:
    """The explanation of an attempt: its first cause, whose side that is, and a sentence.

    `codes` say of each error code of its GPUs whether it is the hardware's or the job's.
    """

    lease: str
    attempt: int
    cause: FailureCause
    side: FailureSide
    sentence: str
    codes: tuple[str, ...]

    @classmethod
    def of(cls, known: Known, attempt: Attempt, found: Explanation) -> "ExplainedAttempt":
        """By what is known of all attempts."""
        codes = tuple(one.sentence() for one in known.codes.get((attempt.unit, attempt.attempt), ()))
        return cls(attempt.unit, attempt.attempt, found.cause, found.side, found.sentence, codes)


def what_happened(connection: Connection) -> Happened:
    """The whole journal, oldest first."""
    journal, attempts = Journal(connection), Attempts(connection)
    workloads = (_workload(lease, descriptor) for lease, descriptor in journal.descriptors().items())
    failures, known = journal.failures(0.0, math.inf), Known.of(connection)
    return Happened(
        leases=tuple(journal.units()),
        workloads=tuple(workloads),
        attempts=tuple(attempts.list()),
        failures=tuple(failures),
        jobs=attempts.jobs(),
        incidents=tuple(Incidents(connection).kept()),
        undescribed=journal.undescribed(),
        explanations=tuple(ExplainedAttempt.of(known, attempt, found) for attempt, found in explanations(known)),
    )


def _workload(lease: str, descriptor: Descriptor) -> Workload:
    return Workload(
        lease,
        descriptor.precision,
        descriptor.parallelism,
        tuple(" ".join(pair) for pair in descriptor.versions),
        tuple(operator_text(operator) for operator in sorted(descriptor.structure)),
        descriptor.lacks,
    )
