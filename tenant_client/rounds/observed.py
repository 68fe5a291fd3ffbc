"""What a tenant's records show of each optional subject that a plan counts."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from federation.base.sqlite import Connection
from federation.protocol.causes import Domain
from federation.protocol.check import Checker
from federation.protocol.plan import Plan
from federation.protocol.service_messages import CheckVerdict
from federation.protocol.subjects import Subject
from tenant_client.doctor.advice.hints import HintLog
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.grant_log import GrantLog
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.paces import Paces
from tenant_client.doctor.records.votes import Votes, parts_of
from tenant_client.rounds import goodputs, speeds, warned
from tenant_client.rounds.counts import Observation, domain_of


@dataclass(frozen=True)
class _Asked:
    """The plan whose subjects are looked for, and which leases count, by their age."""

    plan: Plan
    began_h: Mapping[str, float]
    lease_hours_maximum: float

    def counts(self, unit: str, at_h: float) -> bool:
        """Whether the lease is young enough then."""
        return at_h - self.began_h[unit] <= self.lease_hours_maximum


def observed(
    connection: Connection, plan: Plan, start_h: float, end_h: float, lease_hours_maximum: float = math.inf
) -> list[Observation]:
    """The observations of [start, end) hours for the marginals of the plan, of leases up to that age."""
    began_h = {unit.unit: unit.start_h for unit in Journal(connection).units()}
    asked, subjects = _Asked(plan, began_h, lease_hours_maximum), {marginal.counts for marginal in plan.marginals}
    found = (one for subject, source in _SOURCES.items() if subject in subjects for one in source(connection, asked))
    return [one for one in found if start_h <= one.at_h < end_h]


def _votes(connection: Connection, asked: _Asked) -> Iterable[Observation]:
    """Votes of leases that the provider granted no parts for are none."""
    grants = GrantLog(connection)
    for vote in Votes(connection).within(0.0, math.inf):
        parts = parts_of(vote, grants.parts(vote.unit))
        if parts and asked.counts(vote.unit, vote.at_h):
            yield Observation(Subject.VOTES, vote.unit, vote.at_h, tuple((part,) for part in parts))


def _speeds(connection: Connection, asked: _Asked) -> Iterable[Observation]:
    """A lease that is too old is no reference for another either."""
    workloads = {str(lease): str(ladder.exact) for lease, _, _, ladder in Journal(connection).told()}
    units = speeds.units_of(Paces(connection).all(), _contexts(connection), workloads, asked.plan)
    return speeds.speeds(unit for unit in units if asked.counts(unit.unit, unit.at_h))


def _goodputs(connection: Connection, asked: _Asked) -> Iterable[Observation]:
    units = goodputs.units_of(Attempts(connection).list(), Paces(connection).all(), asked.plan)
    return goodputs.goodputs((unit for unit in units if asked.counts(unit.unit, unit.at_h)), _contexts(connection))


def _warnings(connection: Connection, asked: _Asked) -> Iterable[Observation]:
    """Of leases that the provider granted: hints and failures of others do not count."""
    hints: defaultdict[str, list[warned.ReceivedHint]] = defaultdict(list)
    for hint, at_h in HintLog(connection).received():
        hints[str(hint.lease)].append(warned.ReceivedHint(hint, at_h))
    failed: defaultdict[str, list[float]] = defaultdict(list)
    for one in Journal(connection).failures(asked.plan.first_hour, asked.plan.end_hour):
        if domain_of(one.failure.reason) == Domain.INFRASTRUCTURE:
            failed[one.failure.unit].append(one.failure.at_h)
    checkers = [Checker(bundle) for bundle in BundleLog(connection).bundles()]
    for unit in Journal(connection).units():
        before = [one for one in checkers if one.bundle.until_hour <= unit.start_h]
        said = before[-1].check(unit.labels).verdict if before else CheckVerdict.UNKNOWN
        is_warned = said in (CheckVerdict.WARNING, CheckVerdict.MISMATCH)
        lease = warned.WarnedLease(unit.unit, unit.start_h, is_warned, hints[unit.unit], failed[unit.unit])
        if unit.labels:
            yield from (one for one in warned.warnings(lease, asked.plan) if asked.counts(one.unit, one.at_h))


def _contexts(connection: Connection) -> dict[str, str]:
    units = Journal(connection).units()
    return {unit.unit: unit.labels["context"] for unit in units if "context" in unit.labels}


_SOURCES: Mapping[Subject, Callable[[Connection, _Asked], Iterable[Observation]]] = MappingProxyType(
    {Subject.VOTES: _votes, Subject.SPEED: _speeds, Subject.GOODPUT: _goodputs, Subject.WARNINGS: _warnings}
)
