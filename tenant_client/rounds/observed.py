"""What a tenant's records show of each optional subject that a plan counts."""

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from federation.protocol.plan import Plan
from federation.protocol.subjects import Subject
from federation.runtime.sqlite import Connection
from tenant_client.records.attempts import Attempts
from tenant_client.records.grant_log import GrantLog
from tenant_client.records.journal import Journal
from tenant_client.records.paces import Paces
from tenant_client.records.votes import Votes, parts_of
from tenant_client.rounds import goodputs, speeds
from tenant_client.rounds.counts import Observation


def observed(connection: Connection, plan: Plan, start_h: float, end_h: float) -> list[Observation]:
    """The observations of [start, end) hours for the marginals of the plan."""
    asked = {marginal.counts for marginal in plan.marginals}
    found = (one for subject, source in _SOURCES.items() if subject in asked for one in source(connection))
    return [one for one in found if start_h <= one.at_h < end_h]


def _votes(connection: Connection) -> Iterable[Observation]:
    """Votes of leases that the provider granted no parts for are none."""
    grants = GrantLog(connection)
    for vote in Votes(connection).within(0.0, math.inf):
        parts = parts_of(vote, grants.parts(vote.unit))
        if parts:
            yield Observation(Subject.VOTES, vote.unit, vote.at_h, tuple((part,) for part in parts))


def _speeds(connection: Connection) -> Iterable[Observation]:
    workloads = {str(lease): str(ladder.exact) for lease, _, _, ladder in Journal(connection).told()}
    return speeds.speeds(speeds.weeks_of(Paces(connection).all(), _contexts(connection), workloads))


def _goodputs(connection: Connection) -> Iterable[Observation]:
    weeks = goodputs.weeks_of(Attempts(connection).list(), Paces(connection).all())
    return goodputs.goodputs(weeks, _contexts(connection))


def _contexts(connection: Connection) -> dict[str, str]:
    units = Journal(connection).units()
    return {unit.unit: unit.labels["context"] for unit in units if "context" in unit.labels}


_SOURCES: Mapping[Subject, Callable[[Connection], Iterable[Observation]]] = MappingProxyType(
    {Subject.VOTES: _votes, Subject.SPEED: _speeds, Subject.GOODPUT: _goodputs}
)
