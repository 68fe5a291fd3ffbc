"""Charged and not heard: what a tenant sent and the provider did not get in time counts in a later round, once.

The parties are real and on disk (`tests/support/federations.py`).
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace as changed
from pathlib import Path

import numpy as np
import pytest

from crypto.codec import decode, digest
from crypto.errors import BadSignature, MemberRefused, PlanRefused
from crypto.ids import RoundId
from crypto.signing import SigningKey, open_signed, reopened
from federation.protocol.plan import Plan
from federation.protocol.queries import Query
from federation.protocol.round_messages import (
    Contribution,
    LateContributions,
    Unheard,
    UnheardRequest,
    UnmaskRequest,
)
from provider_server.rounds.release import Release
from provider_server.rounds.round import Round
from simulation.judge.exactness import exact
from simulation.run.federation import Federation
from tests.support.changing import replace
from tests.support.federations import WEEKS, Answerer, Grounds, hold, is_exact, killed_before_it_keeps

TENANTS = 4
LATE = 2  # whose answers do not arrive


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grounds, Path]:
    root = tmp_path_factory.mktemp("founded") / "home"
    return Grounds.of_failures(root, TENANTS, 4), root


@pytest.fixture
def federation(founded: tuple[Grounds, Path], tmp_path: Path) -> Iterator[Federation]:
    grounds, root = founded
    with grounds.opened(shutil.copytree(root, tmp_path / "home")) as opened:
        yield opened


def unheard(federation: Federation, *verbs: Query) -> dict[int, Answerer]:
    """The answers of one tenant to these questions are lost on the way."""
    own = federation.tenants[LATE].answer

    def lossy(verb: Query, payload: bytes) -> bytes:
        answer = own(verb, payload)
        return b"" if verb in verbs else answer

    return {LATE: lossy}


def late_of(release: Release) -> list[tuple[int, int]]:
    return [(late.start_hour, late.end_hour) for late in release.late]


def charged(federation: Federation) -> list[tuple[int, int]]:
    return [(charge.start_h, charge.end_h) for charge in federation.tenants[LATE].ledger.charges()]


def test_a_contribution_that_did_not_arrive_counts_in_the_next_round_and_costs_nothing_more(
    federation: Federation,
) -> None:
    first, _ = hold(federation, WEEKS[0], unheard(federation, Query.CONTRIBUTION))
    assert first.contributors == TENANTS - 1
    second, _ = hold(federation, WEEKS[1])
    third, _ = hold(federation, WEEKS[2])
    assert [late_of(made) for made in (first, second, third)] == [[], [WEEKS[0]], []]
    assert [late.tenant for late in second.late] == [federation.tenants[LATE].id]
    assert second.contributors == second.smallest_group == TENANTS  # its noise does not count
    assert all(is_exact(federation, made) for made in (first, second, third))
    assert charged(federation) == list(WEEKS)
    hours = [made.tables[0].exposure_node_hours.sum() for made in (first, second, third)]
    assert hours[0] == pytest.approx(hours[1] * 3 / 8, rel=0.02)  # 3 tenants' first week of 8 tenants' weeks
    assert federation.provider.store.rounds.contributors(first.plan.round_id) == set()


def test_two_that_did_not_arrive_are_found_one_after_the_other(federation: Federation) -> None:
    """Each header names the one before it, so the second tells of the first."""
    for window in WEEKS[:2]:
        hold(federation, window, unheard(federation, Query.CONTRIBUTION, Query.UNHEARD))
    release, _ = hold(federation, WEEKS[2])
    assert sorted(late_of(release)) == list(WEEKS[:2])
    assert is_exact(federation, release)
    assert charged(federation) == list(WEEKS)


def test_nobody_is_asked_where_nothing_is_missing(federation: Federation) -> None:
    seen = []

    def watched(verb: Query, payload: bytes) -> bytes:
        seen.append(verb)
        return federation.tenants[0].answer(verb, payload)

    for window in WEEKS:
        hold(federation, window, {0: watched}, silent=[LATE] if window == WEEKS[1] else [])
    assert Query.UNHEARD not in seen


def test_one_that_was_charged_and_not_made_is_made_for_the_next_round(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between its ledger and its outbox: nothing has left, and the plan is not asked about again."""
    tenant = federation.tenants[LATE]
    hold(federation, WEEKS[0], {LATE: killed_before_it_keeps(tenant, monkeypatch)})
    assert charged(federation) == [WEEKS[0]]
    assert tenant.plans() == []
    release, _ = hold(federation, WEEKS[1])
    assert late_of(release) == [WEEKS[0]]
    assert is_exact(federation, release)
    assert charged(federation) == list(WEEKS[:2])


class Loud:
    """Noise that would be seen in every sum that holds it."""

    def gaussian(self, scale: float, size: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        return np.full(size, 10**9, np.int64)


def test_the_noise_of_a_late_contribution_is_never_opened(federation: Federation) -> None:
    tenant = federation.tenants[LATE]
    quiet = tenant._sampler
    tenant._sampler = Loud()  # type: ignore[assignment]  # Laplace noise is in no series
    hold(federation, WEEKS[0], unheard(federation, Query.CONTRIBUTION))
    tenant._sampler = quiet
    release, _ = hold(federation, WEEKS[1])
    assert late_of(release) == [WEEKS[0]]
    assert is_exact(federation, release)


# ---- what a provider may not do --------------------------------------------------------------------------------------


def waiting_request(federation: Federation) -> tuple[Round, UnmaskRequest]:
    """A round with a late contribution, as trustees would be asked."""
    provider = federation.provider
    hold(federation, WEEKS[0], unheard(federation, Query.CONTRIBUTION))
    for tenant in federation.tenants:
        provider.register(tenant.answer(Query.REGISTRATIONS, provider.registration_request(WEEKS[1])))
    round_ = provider.open_round(provider.plan(WEEKS[1]))
    for tenant in federation.tenants:
        provider.receive(round_, tenant.answer(Query.CONTRIBUTION, round_.signed_plan))
    wanted = provider.unheard(round_)
    assert len(wanted) == 1
    for tenant in federation.tenants:
        provider.receive_late(wanted, tenant.answer(Query.UNHEARD, provider.unheard_request(wanted)))
    assert provider.unheard(round_) == frozenset()
    provider.close_round(round_)
    return round_, reopened(UnmaskRequest, round_.request)


def asked(federation: Federation, request: UnmaskRequest, **changes: object) -> bytes:
    return federation.provider._signing_key.sign(replace(request, **changes))


def test_a_contribution_that_was_in_the_set_of_its_round_is_not_counted_again_as_a_late_one(
    federation: Federation,
) -> None:
    round_, request = waiting_request(federation)
    (late,) = request.late
    before = reopened(UnmaskRequest, federation.provider.store.rounds.rounds()[0].request or b"")
    both = tuple(sorted((*late.contributions, before.groups[0][0]), key=lambda signed: headers_tenant(signed)))
    twice = (LateContributions(late.plan, both),)
    with pytest.raises(MemberRefused, match="was opened before"):
        federation.trustees[3].endorse(asked(federation, request, late=twice))
    assert federation.trustees[3].endorse(round_.request)


def headers_tenant(signed: bytes) -> bytes:
    return bytes(LateContributions(b"", (signed,)).headers[0].tenant)


def test_a_late_contribution_counts_in_one_round_only(federation: Federation) -> None:
    _, request = waiting_request(federation)
    hold(federation, WEEKS[1])
    provider = federation.provider
    for tenant in federation.tenants:
        provider.register(tenant.answer(Query.REGISTRATIONS, provider.registration_request(WEEKS[2])))
    third = provider.open_round(provider.plan(WEEKS[2]))
    for tenant in federation.tenants:
        provider.receive(third, tenant.answer(Query.CONTRIBUTION, third.signed_plan))
    provider.close_round(third)
    fresh = reopened(UnmaskRequest, third.request)
    assert fresh.late == ()
    for trustee in federation.trustees[2:]:
        with pytest.raises(MemberRefused, match="was opened before"):
            trustee.endorse(asked(federation, fresh, late=request.late))


def test_a_late_contribution_belongs_to_its_own_plan_and_series(federation: Federation) -> None:
    _, request = waiting_request(federation)
    (late,) = request.late
    plan = reopened(Plan, late.plan)
    key = federation.provider._signing_key
    assert plan.series is not None
    other = replace(plan, series=replace(plan.series, name=RoundId(bytes(16))))
    for wrong, refusal in (
        (key.sign(replace(plan, epsilon=2 * plan.epsilon)), PlanRefused),
        (key.sign(other), PlanRefused),
        (key.sign(replace(plan, round_id=RoundId(bytes(16)))), MemberRefused),
    ):
        changes = (LateContributions(wrong, late.contributions),)
        with pytest.raises(refusal):
            federation.trustees[4].endorse(asked(federation, request, late=changes))


def test_a_tenant_repeats_only_what_it_has_kept_and_only_to_its_provider(federation: Federation) -> None:
    hold(federation, WEEKS[0])
    tenant, key = federation.tenants[LATE], federation.provider._signing_key
    sent = tenant.outbox.messages()
    own = digest(decode(Contribution, sent[0]).header)
    foreign = digest(decode(Contribution, federation.tenants[0].outbox.messages()[0]).header)
    answer = tenant.answer(Query.UNHEARD, key.sign(UnheardRequest((foreign, own))))
    assert [bytes(one) for one in decode(Unheard, answer).contributions] == sent
    assert open_signed(UnheardRequest, key.sign(UnheardRequest((own,))), key.public).wanted == (own,)
    with pytest.raises(BadSignature):
        tenant.answer(Query.UNHEARD, SigningKey.generate(os.urandom).sign(UnheardRequest((own,))))


def test_what_is_exact_knows_late_contributions(federation: Federation) -> None:
    hold(federation, WEEKS[0], unheard(federation, Query.CONTRIBUTION))
    release, _ = hold(federation, WEEKS[1])
    assert is_exact(federation, release)
    assert not is_exact(federation, changed(release, late=()))
    assert sum(table.sum() for table in exact(federation.tenants, release)) > 0
