"""Hints and failures of journals, through plan, noise, sum and record, to the verdict that every tenant computes."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from crypto.codec import decode, encode
from crypto.errors import PharoahError, PlanRefused
from crypto.ids import LeaseId, SignatureBytes
from crypto.signing import SigningKey, reopened
from federation.protocol.plan import Plan
from federation.protocol.round_messages import UnmaskCall, UnmaskRequest
from federation.protocol.round_record import RoundRecord, opened_record
from federation.protocol.service_messages import Action, Hint, HintState, Suspicion
from federation.protocol.subjects import Subject
from federation.protocol.warnings import Claims, judged, line_of
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release
from provider_server.rounds.network.grid_tenants import GridTenants
from provider_server.rounds.planning import PlanSettings, with_optional
from provider_server.rounds.warned import record_of, verdict
from provider_server.rounds.week import federated_week
from simulation.replay.lives import InsecureSilence
from simulation.run.federation import Federation, found
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.doctor.advice.hints import HintLog
from tenant_client.doctor.records.journal import Failure
from tenant_client.rounds.disclosure import overview
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.policy import Policy, check_plan
from tenant_client.rounds.tenant import StartedLease
from tests.support.changing import replace
from tests.support.factories import a_descriptor

WEEKS = ((0, 168), (168, 336))
TENANTS, COHORT = 8, 6
DIMENSIONS = ("workload", "context", "context_level", "band", "domain", "warning", "outcome", "claim")
NUMBERS = count(1)


def a_federation(root: Path, sampler: InsecureSilence | None) -> Federation:
    settings = PlanSettings(
        1.0,
        1e-8,
        COHORT,
        noise_shares=1,
        owners_minimum=2,
        marginals=with_optional({Subject.WARNINGS: 0.1}),
        windows=(1, 2),
        weeks_per_epoch=2,
        claims=Claims(0.6, 0.35),
    )
    policy = {"owners_minimum": 2, "cohort_minimum": 2, "colluding_share": 0.0, "dimensions": DIMENSIONS}
    return found(root, TENANTS, settings, policy, sampler)


def run(federation: Federation, week: int, leases: str) -> None:
    """Every tenant's leases of a week, by letter: t came true, v in vain, f failed without a hint, - nothing."""
    provider, begun_h = federation.provider, WEEKS[week][0] + 1.0
    for number, tenant in enumerate(federation.tenants):
        for place, what in enumerate(leases):
            name = LeaseId(bytes([week, number, place]) + bytes(13))
            labels = provider.context_labels(0, "hall", 0)
            provider.record_leases([Lease(name, tenant.id, 4, begun_h, begun_h + 100, labels)])
            tenant.start_leases([StartedLease(name, begun_h, labels, a_descriptor())], 0)
            log = HintLog(tenant._connection)
            if what in "tv":
                log.take(a_hint(name, begun_h + 1, HintState.RAISED), 3600 * (begun_h + 1), SignatureBytes(bytes(64)))
            if what in "tf":
                tenant.record([Failure(str(name), begun_h + 9, 9.0, "nvlink_error")])
            if what == "v":
                log.take(a_hint(name, begun_h + 9, HintState.CLEARED), 3600 * (begun_h + 9), SignatureBytes(bytes(64)))


def a_hint(lease: LeaseId, at_h: float, state: HintState) -> Hint:
    ratios = 4.0, 2.0, 8.0
    return Hint(next(NUMBERS), at_h, lease, state, Suspicion.MEMORY, *ratios, 0.3, 24.0, Action.CHECKPOINT, 1)


def hold(federation: Federation, week: int) -> Release:
    apps = {number: client_app(tenant.answer) for number, tenant in enumerate(federation.tenants)}
    with local_task():
        grid = GridTenants(LocalGrid(apps), 0.0, 0.0)
        return federated_week(federation.provider, None, grid, federation.trustees, WEEKS[week])


def test_tenants_compute_the_verdict_from_the_sum_that_the_record_proves(tmp_path: Path) -> None:
    exact = a_federation(tmp_path, InsecureSilence())
    run(exact, 0, "tttvvffff-")
    release = hold(exact, 0)
    table = release.table("warnings")
    assert table.events.tolist() == [[32, 0], [24, 16], [0, 0]]
    tenant, store = exact.tenants[3], exact.provider.store.rounds
    (proven,) = tenant.warned.sums()
    assert (proven.came_true, proven.in_vain, proven.unwarned, proven.claims) == (24, 16, 32, Claims(0.6, 0.35))
    assert proven.noise.variance == pytest.approx(table.noise_variance[0, 0])
    found = verdict([release])
    assert found is not None
    assert found == judged([proven])
    assert line_of(found).startswith("60% (")
    assert "it warned of 43% (" in line_of(found)
    assert line_of(found).endswith("of failures; it claims 60%, 35%")
    status = overview.status(tmp_path / "tenants" / "003", 200.0)
    assert (status.warnings, status.records_owed) == (found, 0)

    run(exact, 1, "ttf")
    second = hold(exact, 1).plan.round_id
    assert (record_of(store, release.plan.round_id), len(store.contributors(second))) == (None, TENANTS)
    assert [(one.start_hour, one.came_true, one.in_vain, one.unwarned) for one in tenant.warned.sums()] == [
        (0, 24, 16, 32),
        (168, 16, 0, 8),
    ]

    plan = reopened(Plan, tenant.outbox.signed_plans()[0])
    assert not set(Policy().dimensions) & {"warning", "outcome", "claim"}  # as shipped
    with pytest.raises(PlanRefused, match="warning"):
        check_plan(plan, replace(tenant.policy, dimensions=DIMENSIONS[:-3]), tenant.chain.at(plan.directory), 200.0, 8)
    exact.close()


def test_under_real_noise_a_record_proves_the_release_and_one_that_was_bent_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = a_federation(tmp_path, None)
    run(federation, 0, "tvf")
    monkeypatch.setattr("provider_server.rounds.week.record_of", lambda *_: None)
    release = hold(federation, 0)
    tenant, store = federation.tenants[0], federation.provider.store.rounds
    assert (tenant.warned.sums(), tenant.warned.owed()) == ([], 1)
    assert overview.status(tmp_path / "tenants" / "000", 200.0).records_owed == 1

    data = record_of(store, release.plan.round_id)
    assert data is not None
    proven = opened_record(data, tenant.chain)
    for table, events in zip(release.tables, proven.tables, strict=True):
        assert np.array_equal(table.events, events)
    assert proven.tables[-1].tolist() != [[8, 0], [8, 8], [0, 0]]  # noise
    for what, bent in bends(data, federation.provider._signing_key):
        with pytest.raises(PharoahError):
            tenant.take_record(encode(bent))
        assert not tenant.warned.sums(), what
    tenant.take_record(data)
    assert (len(tenant.warned.sums()), tenant.warned.owed()) == (1, 0)
    federation.close()


def bends(data: bytes, provider: SigningKey) -> Iterator[tuple[str, RoundRecord]]:
    """What a provider might change to show another sum, with its own key and nobody else's."""
    record = decode(RoundRecord, data)
    first, *others = record.contributions
    call = decode(UnmaskCall, record.call)
    yield "a cell", replace(record, contributions=(first[:-1] + bytes([first[-1] ^ 1]), *others))
    yield "one left out", replace(record, contributions=tuple(others))
    yield "one twice", replace(record, contributions=(first, first, *others[1:]))
    yield "another order", replace(record, contributions=record.contributions[::-1])
    share = record.shares[0]
    yield "a mask", replace(record, shares=(share[:-1] + bytes([share[-1] ^ 1]), *record.shares[1:]))
    yield "a share twice", replace(record, shares=(share, *record.shares[1:], share))
    yield "a share missing", replace(record, shares=record.shares[1:])
    yield "no quorum", replace(record, call=encode(replace(call, endorsements=call.endorsements[:2])))
    asked = reopened(UnmaskRequest, call.request)
    fewer = provider.sign(replace(asked, groups=tuple(group[1:] for group in asked.groups)))
    yield "a set of its own", RoundRecord(encode(replace(call, request=fewer)), tuple(others), record.shares)
    richer = replace(reopened(Plan, asked.plan), epsilon=2.0)
    kinder = provider.sign(replace(asked, plan=provider.sign(richer)))
    yield "another plan", replace(record, call=encode(replace(call, request=kinder)))
