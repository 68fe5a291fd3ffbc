"""Collects what the tenant's page shows from the owner's views. Read only.

A home outside any federation has a journal too; the page then says what is missing and why.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from os import environ, urandom
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from crypto.errors import PharoahError
from federation.base.key_files import HomeError
from federation.base.settings import load
from federation.base.sqlite import reporting
from federation.protocol.check import Checker, check
from federation.protocol.service_messages import CheckVerdict
from tenant_client.doctor.advice.after_failure import after_failure
from tenant_client.doctor.advice.hints import HintLog, action_of, end_of, episodes, reason_of
from tenant_client.doctor.advice.own_history import own_history
from tenant_client.doctor.records.attempts import Attempt, Attempts, AttemptState
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.starts import Starts
from tenant_client.doctor.run.run_directory import newest_runs
from tenant_client.doctor.settings import TenantSettings
from tenant_client.program.pages.names import SHORT, job_names, workload_names
from tenant_client.rounds.disclosure.happened import ExplainedAttempt, Happened, what_happened

if TYPE_CHECKING:  # what has to do with rounds needs the extra `federation`
    from tenant_client.rounds.disclosure.owner_view import Budget, Sent
    from tenant_client.rounds.tenant import Tenant

_LAST = 5  # failures on the first page
_WORST_FIRST = (CheckVerdict.MISMATCH, CheckVerdict.WARNING, CheckVerdict.OK, CheckVerdict.UNKNOWN)
WORST_FIRST = tuple(verdict.name.lower() for verdict in _WORST_FIRST)


class NoFederation(PharoahError):
    """This machine has not what a tenant of a federation needs."""

    default_hint = "pip install 'pharoah[federation]'"


@dataclass(frozen=True)
class LeaseView:
    """A lease, what the newest bundle says of its workload there, its newest attempt's state, and its end if told.

    `cause` is the reason of that attempt, if it has one to be told.
    `ratio` is how many times as often its workload fails there as expected, with the interval; None without evidence.
    """

    lease: str
    job: str
    start_h: float
    workload: str
    context: str
    verdict: str
    word: str
    reason: str
    ratio: float | None
    low: float | None
    high: float | None
    better_context: str
    state: str
    cause: str
    end: str


@dataclass(frozen=True)
class Pair:
    """All leases of one workload on one context, which have the same check; `newest` of them has begun last."""

    workload: str
    context: str
    leases: int
    newest: LeaseView


@dataclass(frozen=True)
class HintView:
    """An episode of a lease in danger: the one thing to do and why, and whether it stands."""

    lease: str
    at_h: float
    stands: bool
    action: str
    reason: str


@dataclass(frozen=True)
class House:
    """Everything but the bytes; `bundle` is the number of the newest one.

    `away` says why there is no federation to speak of. `leases` begin with the worst verdicts, `attempts` and `hints`
    with the newest; `failed` are the last attempts after which there is something to do, `running` those that have not
    ended. `jobs` are names by lease. `incidents` are lines about failures, by lease and attempt: how sure, what helped,
    what it is like; `explanations` what both sides together tell of them. `failures` are those, by reason, that the
    next round will count.
    """

    away: str
    bundle: int | None
    leases: tuple[LeaseView, ...]
    verdicts: tuple[tuple[str, int], ...]
    attempts: tuple[Attempt, ...]
    failed: tuple[Attempt, ...]
    running: tuple[Attempt, ...]
    jobs: Mapping[str, str]
    incidents: Mapping[tuple[str, int], tuple[str, ...]]
    explanations: Mapping[tuple[str, int], ExplainedAttempt]
    failures: tuple[tuple[str, int], ...]
    hints: tuple[HintView, ...]
    budget: "Budget | None"
    sent: "Sent | None"


def house(home: Path, now_h: float) -> House:
    """As things are now; HomeError where nothing is journalled, StorageFailed where the disk does not answer."""
    own_names = load(TenantSettings, home / "tenant.toml", environ).names.workloads
    with reporting():
        with closing(open_database(journal(home))) as connection:
            happened = what_happened(connection)
            log = HintLog(connection)
            hints, ends = _hints(log, now_h), {str(lease): end_of(end) for lease, end in log.ends().items()}
            bundle = BundleLog(connection).newest_bundle()
            checker = Checker(own_history(connection, bundle, now_h).bundle) if bundle else None
            happened = replace(happened, jobs=job_names(happened.jobs, Starts(connection).newest()))
        local = _Local(happened, hints, ends, own_names)
        try:
            tenant = opened(home)
        except PharoahError as error:
            return _told(local, None, error.what, (), None, None)
        from tenant_client.rounds.disclosure import owner_view

        with closing(tenant):
            counted = max((end for _, end in tenant.ledger.windows()), default=0)
            next_round = [one.failure.reason for one in happened.failures if one.failure.at_h >= counted]
            return _told(local, checker, "", next_round, owner_view.budget(tenant), owner_view.sent(tenant))


@dataclass(frozen=True)
class _Local:
    """What the journal has, and names of the owner's for workloads."""

    happened: Happened
    hints: tuple[HintView, ...]
    ends: Mapping[str, str]
    own_names: Mapping[str, str]


def called(home: Path) -> dict[str, str]:
    """The names of jobs by lease."""
    with reporting(), closing(open_database(journal(home))) as connection:
        return job_names(Attempts(connection).jobs(), Starts(connection).newest())


def runs(home: Path) -> tuple[str, ...]:
    """Leases of which an attempt left a run directory, the newest first."""
    return tuple(reversed(newest_runs(home)))


def journal(home: Path) -> Path:
    """The home's database; HomeError where there is none."""
    if not (home / "tenant.db").exists():
        raise HomeError(f"the journal is empty: {home}", hint="run a job with `pharoah-tenant run`, or pass --home")
    return home / "tenant.db"


def opened(home: Path) -> "Tenant":
    """The tenant, without trustees: nothing can be asked of anybody. NoFederation where its extra is not installed."""
    try:
        from federation.protocol.noise import SystemSampler
        from tenant_client.rounds.home import open_tenant
    except ModuleNotFoundError as error:
        raise NoFederation(f"the module {error.name} is not installed") from error
    return open_tenant(home, (), urandom, SystemSampler())


def _told(
    local: _Local,
    checker: Checker | None,
    away: str,
    next_round: Sequence[str],
    budget: "Budget | None",
    sent: "Sent | None",
) -> House:
    happened = local.happened
    leases = _leases(local, checker)
    verdicts = Counter(lease.verdict for lease in leases)
    return House(
        away=away,
        bundle=checker.bundle.number if checker else None,
        leases=leases,
        verdicts=tuple((_said(one), verdicts[_said(one)]) for one in _WORST_FIRST),
        attempts=happened.attempts[::-1],
        failed=tuple(one for one in happened.attempts[::-1] if _is_to_do(one))[:_LAST],
        running=tuple(one for one in happened.attempts[::-1] if one.state is AttemptState.RUNNING),
        jobs=happened.jobs,
        incidents={(one.lease, one.attempt): one.words for one in happened.incidents},
        explanations={(one.lease, one.attempt): one for one in happened.explanations},
        failures=tuple(Counter(next_round).most_common()),
        hints=local.hints,
        budget=budget,
        sent=sent,
    )


def _is_to_do(attempt: Attempt) -> bool:
    return len(after_failure(attempt.unit, attempt.state, attempt.cause)) > 1


def _hints(log: HintLog, now_h: float) -> tuple[HintView, ...]:
    """One for each episode, the newest first."""
    over = log.over()
    return tuple(
        HintView(
            str(one.lease),
            one.last.at_h,
            one.stands(now_h) and one.lease not in over,
            action_of(one.last),
            reason_of(one.last),
        )
        for one in sorted(episodes(log.hints()), key=lambda episode: -episode.last.at_h)
    )


def _leases(local: _Local, checker: Checker | None) -> tuple[LeaseView, ...]:
    """All leases, the worst verdict first and then the newest."""
    happened = local.happened
    described = {
        one.lease: ", ".join((one.precision or "precision unknown", one.parallelism)) for one in happened.workloads
    }
    names = checker.bundle.names if checker else {}
    workloads = workload_names(happened.leases, happened.jobs, local.own_names)
    newest = {attempt.unit: attempt for attempt in happened.attempts}
    checks = [(unit, checker.check(unit.labels) if checker else check(None, unit.labels)) for unit in happened.leases]
    checks.sort(key=lambda pair: (_WORST_FIRST.index(pair[1].verdict), -pair[0].start_h))
    return tuple(
        LeaseView(
            lease=unit.unit,
            job=happened.jobs.get(unit.unit, ""),
            start_h=unit.start_h,
            workload=_workload(unit.labels.get("subarchetype", ""), workloads, described.get(unit.unit, "")),
            context=_context(unit.labels.get("context", ""), names),
            verdict=_said(made.verdict),
            word=made.word,
            reason=made.reason,
            ratio=made.evidence.risk_ratio if made.evidence else None,
            low=made.evidence.risk_ratio_low if made.evidence else None,
            high=made.evidence.risk_ratio_high if made.evidence else None,
            better_context=_context(made.better_context or "", names),
            state=newest[unit.unit].state.value if unit.unit in newest else "",
            cause=_cause(newest.get(unit.unit)),
            end=local.ends.get(unit.unit, ""),
        )
        for unit, made in checks
    )


def _cause(newest: Attempt | None) -> str:
    has_failed = newest is not None and after_failure(newest.unit, newest.state, newest.cause)
    return newest.cause.reason if newest and has_failed else ""


def _workload(token: str, names: Mapping[str, str], described: str) -> str:
    return names.get(token) or " ".join(filter(None, (described, token[:SHORT])))


def _context(token: str, names: Mapping[str, str]) -> str:
    """By the provider's public name, if it has one, or else by the first digits."""
    return names.get(token) or token[:SHORT]


ORDERS: Mapping[str, Callable[[Pair], object]] = MappingProxyType(
    {
        "check": lambda pair: (WORST_FIRST.index(pair.newest.verdict), -(pair.newest.low or 0.0), -pair.leases),
        "jobs": lambda pair: -pair.leases,
        "workload": lambda pair: (pair.workload, pair.context),
        "hardware group": lambda pair: (pair.context, pair.workload),
    }
)


def pairs(leases: Sequence[LeaseView], verdict: str = "", order: str = "check") -> tuple[Pair, ...]:
    """Leases by workload and context, those with one verdict or all if it is empty, in one of `ORDERS`."""
    groups: defaultdict[tuple[str, ...], list[LeaseView]] = defaultdict(list)
    for one in leases:
        if verdict in ("", one.verdict):
            groups[one.workload, one.context, one.verdict, one.reason].append(one)
    found = [
        Pair(of[0].workload, of[0].context, len(of), max(of, key=lambda one: one.start_h)) for of in groups.values()
    ]
    return tuple(sorted(found, key=ORDERS.get(order, ORDERS["check"])))  # type: ignore[arg-type]


def _said(verdict: CheckVerdict) -> str:
    return verdict.name.lower()
