"""The last week of a series is opened a second time, before the next series begins, for what missed the first.

Epochs have two weeks here, so the third week is of the next one. The parties are real and on disk.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from crypto.errors import AlreadyAnswered, MemberRefused, OutOfOrder, PlanRefused, Unreachable
from crypto.ids import RoundId
from crypto.signing import name_of, reopened
from federation.protocol.plan import Plan
from federation.protocol.queries import Query
from federation.protocol.round_messages import ContributionHeader, LateContributions, UnmaskRequest
from provider_server.rounds.release import Release
from provider_server.rounds.round import Round
from provider_server.rounds.spending import spent_by_week
from provider_server.store.round_store import RoundState
from simulation.run.federation import Federation
from tenant_client.records.journal import Failure
from tests.support.changing import replace
from tests.support.federations import WEEKS, Answerer, Grounds, begin, hold, is_exact, killed_before_it_keeps, lease_id

TENANTS = 4
LATE = 2
LAST, NEXT = WEEKS[1], WEEKS[2]
EPOCH_END = NEXT[0]
PLAN = {"weeks_per_epoch": 2, "openings": (1, 2, 2)}


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grounds, Path]:
    root = tmp_path_factory.mktemp("founded") / "home"
    grounds = Grounds.of_failures(root, TENANTS, 2, **PLAN)
    with grounds.opened(root) as federation:
        for number, tenant in enumerate(federation.tenants):
            begin(federation, number, NEXT)
            unit, at = str(lease_id(number, NEXT, 0)), NEXT[0] + 30.0 + number
            tenant.record([Failure(unit, at, at - NEXT[0] - 1.0, "nvlink_error")])
    return grounds, root


@pytest.fixture
def federation(founded: tuple[Grounds, Path], tmp_path: Path) -> Iterator[Federation]:
    grounds, root = founded
    with grounds.opened(shutil.copytree(root, tmp_path / "home")) as opened:
        yield opened


def deaf(federation: Federation) -> dict[int, Answerer]:
    """The contribution of one tenant is lost on the way."""
    own = federation.tenants[LATE].answer
    return {
        LATE: lambda verb, payload: b"" if own(verb, payload) and verb is Query.CONTRIBUTION else own(verb, payload)
    }


def placed(federation: Federation) -> list[tuple[int, int, int]]:
    """The epoch, position and number of answers of each release."""
    return [(made.plan.epoch, made.plan.position, made.contributors) for made in federation.provider.releases()]


def charged(federation: Federation) -> list[tuple[int, int]]:
    """The hours that the late tenant paid for."""
    return [(one.start_h, one.end_h) for one in federation.tenants[LATE].ledger.charges() if one.weeks]


def counted(release: Release) -> float:
    """How many failures a running total has."""
    return float(release.tables[0].events.sum())


def second_of(federation: Federation) -> Release:
    (second,) = (made for made in federation.provider.releases() if made.plan.is_second)
    return second


def test_what_was_charged_at_the_last_opening_and_not_heard_counts_in_the_second_and_costs_nothing_more(
    federation: Federation,
) -> None:
    hold(federation, WEEKS[0])
    first, _ = hold(federation, LAST, deaf(federation))
    new, _ = hold(federation, NEXT)
    second = second_of(federation)
    assert placed(federation) == [(0, 0, 4), (0, 1, 3), (0, 2, 4), (1, 0, 4)]
    assert [(late.tenant, late.start_hour, late.end_hour) for late in second.late] == [
        (federation.tenants[LATE].id, *LAST)
    ]
    assert all(is_exact(federation, made) for made in (first, second, new))
    assert counted(second) == pytest.approx(counted(first) + 1, abs=0.5)
    assert counted(second) == pytest.approx(2 * TENANTS, abs=0.5)
    assert charged(federation) == [WEEKS[0], LAST, NEXT]
    before, after = (made.tables[0].exposure_node_hours.sum() for made in (first, second))
    assert after == pytest.approx(before * 8 / 7, rel=0.01)


def test_who_was_away_at_the_last_opening_answers_the_second_and_pays_once(federation: Federation) -> None:
    hold(federation, WEEKS[0])
    first, _ = hold(federation, LAST, silent=[LATE])
    hold(federation, NEXT)
    second = second_of(federation)
    starts = {answer.tenant: answer.start_hour for answer in second.answered}
    assert second.late == ()
    assert starts.pop(federation.tenants[LATE].id) == LAST[0]
    assert set(starts.values()) == {EPOCH_END}  # the others have nothing left to count
    assert is_exact(federation, second)
    assert counted(second) == pytest.approx(counted(first) + 1, abs=0.5)
    assert charged(federation) == [WEEKS[0], LAST, NEXT]
    others = (tenant for number, tenant in enumerate(federation.tenants) if number != LATE)
    assert not any(table.any() for tenant in others for table in tenant.counts(second.plan))
    spent = spent_by_week(made.plan for made in federation.provider.releases())
    assert [rounds for rounds, _ in spent.values()] == [1, 1, 1]


def test_what_was_charged_and_not_made_at_the_last_opening_is_made_at_the_second(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = federation.tenants[LATE]

    hold(federation, WEEKS[0])
    hold(federation, LAST, {LATE: killed_before_it_keeps(tenant, monkeypatch)})
    hold(federation, NEXT)
    second = second_of(federation)
    assert [(late.start_hour, late.end_hour) for late in second.late] == [LAST]
    assert is_exact(federation, second)
    assert charged(federation) == [WEEKS[0], LAST, NEXT]


def test_what_was_not_heard_before_and_not_repeated_at_the_last_opening_counts_in_the_second(
    federation: Federation,
) -> None:
    """Everybody answers the last opening, and the header of one names what is still missing."""
    own = federation.tenants[LATE].answer
    hold(federation, WEEKS[0], deaf(federation))
    lost = {LATE: lambda verb, payload: b"" if verb is Query.UNHEARD else own(verb, payload)}
    first, _ = hold(federation, LAST, lost)
    assert (first.contributors, first.late) == (TENANTS, ())
    hold(federation, NEXT)
    second = second_of(federation)
    assert [(late.start_hour, late.end_hour) for late in second.late] == [WEEKS[0]]
    assert is_exact(federation, second)
    assert charged(federation) == list(WEEKS)


def test_there_is_no_second_opening_where_nobody_missed_the_first(federation: Federation) -> None:
    for window in WEEKS:
        hold(federation, window)
    assert placed(federation) == [(0, 0, 4), (0, 1, 4), (1, 0, 4)]


def test_a_second_opening_that_is_given_up_is_not_held_again(federation: Federation) -> None:
    for window in WEEKS[:2]:
        hold(federation, window, silent=[LATE])
    provider = federation.provider
    assert provider.unheard_weeks() == LAST
    provider.refuse(provider.open_round(provider.plan(LAST)))
    assert provider.unheard_weeks() is None
    hold(federation, NEXT)
    assert placed(federation) == [(0, 0, 3), (0, 1, 3), (1, 0, 4)]


def test_a_member_that_left_is_not_waited_for(federation: Federation) -> None:
    for window in WEEKS[:2]:
        hold(federation, window, silent=[LATE])
    federation.provider.members.enrol([], left=[federation.tenants[LATE].id])
    assert federation.provider.unheard_weeks() is None


def test_a_second_opening_waits_behind_the_first_while_a_trustee_is_away(federation: Federation) -> None:
    hold(federation, WEEKS[0])
    for window, silent in ((LAST, [LATE]), (NEXT, []), (NEXT, [])):  # the second is collected, then the new series
        with pytest.raises(Unreachable):
            hold(federation, window, trustees=[*federation.trustees[:-1], Lost()], silent=silent)
    provider = federation.provider
    assert [one.state for one in provider.waiting()] == [RoundState.ENDORSING, *[RoundState.COLLECTED] * 2]
    for window in (LAST, NEXT, NEXT):
        hold(federation, window)
    assert placed(federation) == [(0, 0, 4), (0, 1, 3), (0, 2, 4), (1, 0, 4)]
    assert all(is_exact(federation, made) for made in provider.releases())
    assert charged(federation) == [WEEKS[0], LAST, NEXT]


class Lost:
    """A trustee that does not answer."""

    index = 5

    def follow(self, update: bytes) -> bytes:
        raise Unreachable("trustee 5 does not answer")

    endorse = unmask = follow


# ---- what a provider may not do --------------------------------------------------------------------------------------


def second_request(federation: Federation) -> tuple[Round, UnmaskRequest]:
    """The second opening, with a late contribution, as trustees would be asked."""
    provider = federation.provider
    hold(federation, WEEKS[0])
    hold(federation, LAST, deaf(federation))
    round_ = provider.open_round(provider.plan(LAST))
    for tenant in federation.tenants:
        provider.receive(round_, tenant.answer(Query.CONTRIBUTION, round_.signed_plan))
    wanted = provider.unheard(round_)
    for tenant in federation.tenants:
        provider.receive_late(wanted, tenant.answer(Query.UNHEARD, provider.unheard_request(wanted)))
    provider.close_round(round_)
    return round_, reopened(UnmaskRequest, round_.request)


def test_no_answer_of_the_first_opening_is_opened_again_in_the_second(federation: Federation) -> None:
    _, request = second_request(federation)
    (late,) = request.late
    opened = reopened(UnmaskRequest, federation.provider.store.rounds.rounds()[1].request or b"").groups[0][0]
    signed = sorted((*late.contributions, opened), key=lambda one: bytes(reopened(ContributionHeader, one).tenant))
    twice = replace(request, late=(LateContributions(late.plan, tuple(signed)),))
    for trustee in federation.trustees[2:]:
        with pytest.raises(MemberRefused, match="was opened before"):
            trustee.endorse(federation.provider._signing_key.sign(twice))


def test_a_late_answer_is_opened_in_the_second_opening_and_never_again(federation: Federation) -> None:
    """Neither at another second opening, nor in a round after it: there is no place for one."""
    round_, request = second_request(federation)
    provider, plan = federation.provider, round_.plan
    key = provider._signing_key
    assert plan.series is not None
    other = key.sign(replace(plan, round_id=RoundId(b"o" * 16)))
    for trustee in federation.trustees:
        trustee.endorse(round_.request)
    rival = provider.open_round(replace(plan, round_id=RoundId(b"o" * 16)))
    for tenant in federation.tenants:
        with pytest.raises(PlanRefused, match="does not come after the one before"):
            tenant.answer(Query.CONTRIBUTION, rival.signed_plan)
    groups = tuple(tuple(resigned(federation, other, one) for one in group) for group in request.groups)
    for trustee in federation.trustees:
        with pytest.raises(AlreadyAnswered, match="or at its place in its series"):
            trustee.endorse(key.sign(replace(request, plan=other, groups=groups, late=())))
    with pytest.raises(ValueError, match="the position of a round must be that of one of the openings"):
        replace(plan.series, position=plan.series.position + 1)


def resigned(federation: Federation, signed_plan: bytes, header: bytes) -> bytes:
    """A header for another plan, by a tenant that goes along."""
    said = reopened(ContributionHeader, header)
    (tenant,) = (one for one in federation.tenants if one.id == said.tenant)
    changed = replace(said, round_id=reopened(Plan, signed_plan).round_id, plan=name_of(signed_plan))
    return tenant._signing_key.sign(changed)


def test_no_round_of_the_old_series_is_opened_in_place_of_its_second_opening(federation: Federation) -> None:
    """Trustees that have not opened the last week hold no second opening of it: each place has its order."""
    hold(federation, WEEKS[0])
    provider = federation.provider
    begun = provider.open_round(provider.plan(LAST))
    skipped = replace(begun.plan, series=replace(begun.plan.series, position=2))
    signed = provider._signing_key.sign(skipped)
    for tenant in federation.tenants:
        provider.receive(begun, tenant.answer(Query.CONTRIBUTION, begun.signed_plan))
    provider.close_round(begun)
    request = reopened(UnmaskRequest, begun.request)
    groups = tuple(tuple(resigned(federation, signed, one) for one in group) for group in request.groups)
    for trustee in federation.trustees[2:]:
        with pytest.raises(OutOfOrder, match="does not follow"):
            trustee.endorse(provider._signing_key.sign(replace(request, plan=signed, groups=groups)))


def test_a_second_opening_is_priced_as_an_opening(federation: Federation) -> None:
    """Noise that is enough for two openings is too little for three, whatever the third one counts."""
    of = federation.provider.settings
    assert of.opening_weeks(2) == (1, 2, 2)
    hold(federation, WEEKS[0])
    plan = federation.provider.releases()[0].plan
    assert plan.horizon == 3
    cheap = tuple(
        replace(marginal, noise_scale=scale) for marginal, scale in zip(plan.marginals, of.scales(2), strict=True)
    )
    name = RoundId(b"c" * 16)
    assert plan.series is not None
    offered = replace(plan, round_id=name, series=replace(plan.series, name=name), marginals=cheap)
    with pytest.raises(PlanRefused, match="its noise gives"):
        federation.tenants[0].answer(Query.CONTRIBUTION, federation.provider._signing_key.sign(offered))
