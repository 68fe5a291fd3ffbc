"""Summarises a tenant's home: federation, running jobs, open hints, privacy budget, and what is due.

Read only: nothing is sent, created or changed. The home may be missing. The code that reads what only a home in a
federation holds needs the extra `federation`, and is imported only there.
"""

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from federation.base.clock import SECONDS_PER_HOUR
from federation.base.pinned_directory import is_pinned, pinned
from federation.base.sqlite import Connection, reporting
from federation.protocol.causes import CAUSES, Domain
from federation.protocol.warnings import Verdict, judged
from federation.protocol.xid_judge import CodeVerdict
from tenant_client.doctor.advice.found import hung_before, in_short
from tenant_client.doctor.advice.hints import HintLog, standing
from tenant_client.doctor.advice.own_codes import judged_attempt, own_codes
from tenant_client.doctor.records.attempts import Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.first_causes import DaysToCause, FirstCauses, days_to_cause
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.outbox import Outbox, RefusedPlan
from tenant_client.doctor.records.warned_sums import WarnedSums
from tenant_client.doctor.sources.reasons import REASONS
from tenant_client.rounds.policy import Policy, policy_of


@dataclass(frozen=True)
class LeaseRow:
    """A lease, its job and workload, and the state of its last attempt; `state` is empty without one.

    `undescribed` says why the workload is not known, `found` in short what the watch found and held at the end,
    `hung` where a rank hung if that is why it failed, `code` whether an error code of a GPU is the hardware's or the
    job's; "" where it is not so. `days_to_cause` is the median over its failures from failure to named cause, None
    without one or while that waits.
    """

    lease: str
    job: str
    workload: str
    undescribed: str
    attempts: int
    state: str
    reason: str
    found: str
    hung: str
    code: str
    since_s: float
    days_to_cause: float | None


@dataclass(frozen=True)
class Leases:
    """Leases, oldest first."""

    version: int
    leases: tuple[LeaseRow, ...]


@dataclass(frozen=True)
class Reason:
    """A reason for failures, and what a user does about it.

    A round counts it as its `parent`, "" for none, or as unknown where `counted` is false. `domain` is None where it
    may be any. `observed` and `share_of_lost_gpu_time`, in percent, are Acme's, None for what Acme does not tell apart.
    """

    slug: str
    title: str
    parent: str
    domain: Domain | None
    observed: int | None
    share_of_lost_gpu_time: float | None
    counted: bool
    advice: str


@dataclass(frozen=True)
class Reasons:
    """The taxonomy."""

    version: int
    reasons: tuple[Reason, ...]


def reasons() -> Reasons:
    """Acme's 29 by domain, and the finer reasons behind them."""
    rows = (
        Reason(
            one.slug,
            one.title,
            one.parent,
            one.domain,
            CAUSES[one.slug].observed if one.slug in CAUSES else None,
            CAUSES[one.slug].share_of_lost_gpu_time if one.slug in CAUSES else None,
            counted=one.counted,
            advice=one.advice,
        )
        for one in REASONS.values()
    )
    return Reasons(1, tuple(rows))


@dataclass(frozen=True)
class Federation:
    """The federation that was joined, as this home has pinned it."""

    head: str
    members: int
    trustees: int


@dataclass(frozen=True)
class LastRound:
    """The newest window that this tenant answered for, and the budget of leases in that window."""

    start_hour: int
    end_hour: int
    epsilon_spent: float
    epsilon_left: float


@dataclass(frozen=True)
class TenantStatus:
    """The state of a home. `due` is the next thing to do, or empty.

    `refused_plan` is the newest plan if it was refused; `pilot`: the policy lets plans of a pilot through. `warnings`
    is what proven sums say of the provider's warnings; of `records_owed` rounds that counted them it has shown none.
    """

    version: int
    home: str
    exists: bool
    has_keys: bool
    federation: Federation | None
    leases: int
    running: tuple[LeaseRow, ...]
    last_attempt: LeaseRow | None
    hints_standing: int
    epsilon_limit: float
    delta: float
    last_round: LastRound | None
    refused_plan: RefusedPlan | None
    pilot: bool
    due: str
    days_to_cause: DaysToCause
    warnings: Verdict | None = None
    records_owed: int = 0

    @property
    def exit_code(self) -> int:
        """0: ok. 1: an open hint, the last attempt failed, or the last plan was refused. 3: the home is empty."""
        if not (self.has_keys or self.leases):
            return 3
        failed = self.last_attempt is not None and self.last_attempt.state in (
            AttemptState.FAILED,
            AttemptState.INTERRUPTED,
        )
        return 1 if self.hints_standing or failed or self.refused_plan else 0


_EXPLAINED = AttemptState.FAILED, AttemptState.STOPPED


def leases(connection: Connection) -> list[LeaseRow]:
    """Every lease, oldest first."""
    journal, attempts = Journal(connection), Attempts(connection)
    jobs, described, undescribed = attempts.jobs(), journal.descriptors(), journal.undescribed()
    last, own = {one.unit: one for one in attempts.list()}, own_codes(connection)
    days = FirstCauses(connection).days()
    rows = []
    for unit in journal.units():
        one, what = last.get(unit.unit), described.get(unit.unit)
        rows.append(
            LeaseRow(
                lease=unit.unit,
                job=jobs.get(unit.unit, ""),
                workload=" ".join(filter(None, (what.precision, what.parallelism))) if what else "",
                undescribed=undescribed.get(unit.unit, ""),
                attempts=one.attempt if one else 0,
                state=one.state if one else "",
                reason=one.cause.reason if one and one.state in _EXPLAINED else "",
                found=in_short(one.findings) if one else "",
                hung=hung_before(one.cause.reason, one.findings) if one else "",
                code=_code(judged_attempt(connection, one, own)) if one else "",
                since_s=one.started_at_s if one else unit.start_h * SECONDS_PER_HOUR,
                days_to_cause=days_to_cause(days.get(unit.unit, ())).median_days,
            )
        )
    return rows


def _code(found: Collection[CodeVerdict]) -> str:
    """The surest, in a few words."""
    return max(found, key=lambda one: getattr(one, one.cause)).short() if found else ""


def status(home: Path, now_hour: float) -> TenantStatus:
    """The state of a home."""
    has_keys, policy = (home / "signing.key").exists(), policy_of(home)
    refused: RefusedPlan | None = None
    rows: list[LeaseRow] = []
    days: list[float] = []
    hints, federation, spent = 0, None, None
    warned, owed = None, 0
    if (home / "tenant.db").exists():
        with reporting(), closing(open_database(home / "tenant.db")) as connection:
            rows = leases(connection)
            days = [one for of_lease in FirstCauses(connection).days().values() for one in of_lease]
            log = HintLog(connection)
            hints = len(list(standing(log.hints(), now_hour, log.over())))
            if is_pinned(connection):
                federation, spent = _federation(connection), _last_round(connection, policy)
                refused = Outbox(connection).refused()
                sums = WarnedSums(connection)
                warned, owed = judged(sums.sums()), sums.owed()
    tried = [row for row in rows if row.attempts]
    return TenantStatus(
        version=1,
        home=str(home),
        exists=home.is_dir(),
        has_keys=has_keys,
        federation=federation,
        leases=len(rows),
        running=tuple(row for row in rows if row.state == AttemptState.RUNNING),
        last_attempt=max(tried, key=lambda row: row.since_s, default=None),
        hints_standing=hints,
        epsilon_limit=policy.epsilon_per_window,
        delta=policy.delta,
        last_round=spent,
        refused_plan=refused,
        pilot=policy.owners_minimum < Policy().owners_minimum or policy.cohort_minimum < Policy().cohort_minimum,
        due=_due(federation, hints, refused, has_keys=has_keys),
        days_to_cause=days_to_cause(days),
        warnings=warned,
        records_owed=owed,
    )


def _federation(connection: Connection) -> Federation:
    from federation.protocol.enrolment import fingerprint

    directory = pinned(connection).directory
    return Federation(fingerprint(directory.head), len(directory.members), len(directory.trustees))


def _last_round(connection: Connection, policy: Policy) -> LastRound | None:
    from tenant_client.doctor.records.ledger import Ledger

    ledger = Ledger(connection)
    windows = ledger.windows()
    if not windows:
        return None
    epsilon = ledger.spent(*windows[-1]).at(policy.delta)
    return LastRound(*windows[-1], epsilon, max(0.0, policy.epsilon_per_window - epsilon))


def _due(federation: Federation | None, hints: int, refused: RefusedPlan | None, *, has_keys: bool) -> str:
    if hints:
        return "follow the open hints: `pharoah-tenant watch --once`"
    if federation is None and has_keys:
        return "join with the provider's invitation: `pharoah-tenant join INVITATION`"
    if refused:
        return refused.hint
    return ""
