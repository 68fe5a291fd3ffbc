"""A lease counts once in each window, whatever the provider shows, hides or sends late, and whatever was set back."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from crypto.codec import decode, digest, encode
from crypto.errors import BudgetExceeded, DecodeError, Equivocation, PeerFault, PlanRefused
from crypto.masking import MaskKey
from crypto.signing import SigningKey
from federation.protocol.directory import Member, next_entry
from federation.protocol.endorsed import EndedRound, EndedRounds
from federation.protocol.noise import from_ring
from federation.protocol.plan import Plan
from federation.protocol.privacy_cost import plan_loss
from federation.protocol.queries import Query
from federation.protocol.round_messages import DirectoryUpdate, Receipt
from tenant_client.rounds.disclosure import owner_view
from tenant_client.rounds.policy import Policy
from tenant_client.rounds.tenant import Tenant
from tests.support.changing import replace
from tests.support.endorsing import QUORUM, ended, shown
from tests.support.factories import (
    POLICY,
    WEEKS_PER_EPOCH,
    Cast,
    InsecureSilence,
    a_failure,
    a_plan,
    a_unit,
    counting,
    keys,
    signed,
)
from tests.tenant_client.rounds.test_tenant import Failing, NoMoreNoise, PowerCut, masks_over, opened
from tests.trustee.test_mask_keys import founders, handed, under, update

OTHERS = (1, 2, 3)


def plan_of(window: int, number: int | None = None) -> Plan:
    """The plan for a window of the first epoch, from 0."""
    return a_plan(1 + window if number is None else number, window=(168 * window, 168 * window + 168))


def failing(cast: Cast, *, policy: Policy = POLICY) -> Tenant:
    """A tenant with a lease that fails in the middle of every window, and whose noise is none."""
    tenant, unit = cast.tenant(sampler=InsecureSilence(), policy=policy), a_unit(1)
    if not tenant.journal.units():
        tenant.journal.add([unit], [a_failure(unit, 168.0 * week + 84.0) for week in range(WEEKS_PER_EPOCH)])
    return tenant


def show(tenant: Tenant, *rounds: bytes) -> None:
    for one in rounds:
        tenant.answer(Query.ENDED, one)


def counted(tenant: Tenant, plan: Plan) -> tuple[int, int]:
    """From which window an answer counts, and how many of them."""
    header, words = opened(tenant.contribute(signed(plan)))
    tables = from_ring(plan, words - masks_over(plan, header))
    return header.start_hour // 168, sum(int(table.sum()) for table in tables) // counting(plan)


def price(tenant: Tenant, windows: int) -> list[float]:
    """What a lease has paid in each of the first windows, of the price of a plan."""
    once = plan_loss(plan_of(0)).epsilon
    return [tenant.ledger.spent(168 * at, 168 * at + 168).epsilon / once for at in range(windows)]


# ---- once, and at one price ----------------------------------------------------------------------------------------


def test_every_window_is_counted_and_paid_once(cast: Cast) -> None:
    tenant = failing(cast)
    for window in range(3):
        assert counted(tenant, plan_of(window)) == (window, 1)
        show(tenant, shown(*(ended(plan_of(one), (0, *OTHERS)) for one in range(window + 1))))
    assert price(tenant, 4) == pytest.approx([1, 1, 1, 0])


def test_an_answer_that_came_after_the_set_counts_again_at_the_same_price(cast: Cast) -> None:
    tenant = failing(cast)
    late = tenant.contribute(signed(plan_of(0)))
    assert price(tenant, 2) == pytest.approx([1, 0])
    show(tenant, shown(ended(plan_of(0), OTHERS)))
    assert price(tenant, 2) == [0, 0]
    assert counted(tenant, plan_of(1)) == (0, 2)
    assert price(tenant, 3) == pytest.approx([1, 1, 0])
    assert tenant.contribute(signed(plan_of(0))) == late  # asked again, it says what it said
    assert [charge.is_given_back for charge in tenant.ledger.charges()] == [True, False]


def test_rounds_that_were_given_up_and_missed_wait_until_one_counts(cast: Cast) -> None:
    tenant = failing(cast)
    tenant.contribute(signed(plan_of(0)))
    gone = [ended(plan_of(0), ()), ended(plan_of(1), OTHERS), ended(plan_of(2), ())]
    show(tenant, shown(*gone[:1]))
    show(tenant, shown(*gone))  # it was away for two rounds
    assert counted(tenant, plan_of(3)) == (0, 4)
    assert price(tenant, 5) == pytest.approx([1, 1, 1, 1, 0])
    show(tenant, shown(*gone, ended(plan_of(3), (0, *OTHERS))))
    assert counted(tenant, plan_of(4)) == (4, 1)
    assert price(tenant, 5) == pytest.approx([1, 1, 1, 1, 1])


def test_the_last_window_of_an_epoch_is_lost_to_who_was_not_counted_in_it(cast: Cast) -> None:
    tenant = failing(cast)
    show(tenant, shown(ended(plan_of(WEEKS_PER_EPOCH - 1), OTHERS)))
    assert counted(tenant, plan_of(WEEKS_PER_EPOCH)) == (WEEKS_PER_EPOCH, 0)


def test_a_charge_without_an_answer_is_given_back_as_well(cast: Cast) -> None:
    """It died between ledger and outbox, and the round ended before it was asked again."""
    failing(cast)
    with pytest.raises(PowerCut):
        cast.tenant(sampler=Failing()).contribute(signed(plan_of(0)))
    tenant = failing(cast)
    assert price(tenant, 1) == pytest.approx([1])
    show(tenant, shown(ended(plan_of(0), OTHERS)))
    assert counted(tenant, plan_of(1)) == (0, 2)
    assert price(tenant, 2) == pytest.approx([1, 1])


def test_what_was_charged_stays_as_it_was_whatever_is_shown_before_the_answer_is_made(cast: Cast) -> None:
    failing(cast)
    with pytest.raises(PowerCut):
        cast.tenant(sampler=Failing()).contribute(signed(plan_of(1)))
    tenant = failing(cast)
    show(tenant, shown(ended(plan_of(0), OTHERS)))
    assert counted(tenant, plan_of(1)) == (1, 1)
    assert price(tenant, 2) == pytest.approx([0, 1])


def test_a_round_that_is_over_is_not_answered_any_more(cast: Cast) -> None:
    tenant = failing(cast)
    show(tenant, shown(ended(plan_of(0), OTHERS)))
    for number in (1, 99):
        with pytest.raises(PlanRefused, match="trustees endorsed a set for its window, and the round is over"):
            tenant.contribute(signed(plan_of(0, number)))
    assert tenant.ledger.charges() == []


def test_sets_are_kept_with_their_proof_over_a_restart(cast: Cast) -> None:
    rounds = [ended(plan_of(0), OTHERS), ended(plan_of(1), ())]
    asked = shown(*rounds)
    assert decode(Receipt, cast.tenant().answer(Query.ENDED, asked)).held == digest(asked)
    again = cast.tenant()
    assert again.endorsed.rounds() == rounds
    assert again.begins(plan_of(2)) == 0


def test_the_budget_of_the_owner_says_what_was_given_back_and_what_a_lease_of_all_windows_paid(cast: Cast) -> None:
    tenant = failing(cast)
    tenant.contribute(signed(plan_of(0)))
    show(tenant, shown(ended(plan_of(0), OTHERS)))
    before = owner_view.preview(tenant, plan_of(1))
    assert before.counts_from_hour == 0
    assert before.epsilon == pytest.approx(1.0, rel=1e-5)
    assert before.whole_job_epsilon == pytest.approx(2.0, rel=1e-5)
    tenant.contribute(signed(plan_of(1)))
    view = owner_view.budget(tenant)
    rows = [(line.window_hours, line.rounds, line.given_back) for line in view.lines]
    assert rows == [((0, 168), 1, 1), ((168, 336), 1, 0)]
    assert [line.epsilon for line in view.lines] == pytest.approx([1.0, 1.0], rel=1e-5)
    assert view.whole_job_epsilon == pytest.approx(2.0, rel=1e-5)


# ---- what a provider shows, and what it hides ----------------------------------------------------------------------


def test_a_provider_that_hides_sets_makes_nothing_count_twice(cast: Cast) -> None:
    """It counts the tenant in the first round, hides that, and shows it as left out of the second."""
    tenant = failing(cast)
    assert counted(tenant, plan_of(0)) == (0, 1)
    assert counted(tenant, plan_of(1)) == (1, 1)
    show(tenant, shown(ended(plan_of(1), OTHERS)))
    assert counted(tenant, plan_of(2)) == (1, 2)
    show(tenant, shown(ended(plan_of(0), (0, *OTHERS)), ended(plan_of(2), (0,))))
    assert price(tenant, 3) == pytest.approx([1, 1, 1])


def test_a_set_that_is_shown_after_a_later_window_was_counted_counts_nothing_again(cast: Cast) -> None:
    tenant = failing(cast)
    tenant.contribute(signed(plan_of(0)))
    tenant.contribute(signed(plan_of(1)))
    show(tenant, shown(ended(plan_of(1), (0, *OTHERS))), shown(ended(plan_of(0), OTHERS)))
    assert counted(tenant, plan_of(2)) == (2, 1)
    assert price(tenant, 3) == pytest.approx([0, 1, 1])


@pytest.mark.parametrize("trustees", [(), (1,), QUORUM[:-1]])
def test_a_set_that_too_few_trustees_signed_changes_nothing(cast: Cast, trustees: Sequence[int]) -> None:
    tenant = failing(cast)
    tenant.contribute(signed(plan_of(0)))
    good, bad = ended(plan_of(1), ()), ended(plan_of(0), OTHERS, trustees)
    for rounds in ((bad,), (good, bad), (bad, good)):
        with pytest.raises(PeerFault, match="trustees endorsed the set that was shown, 4 are needed"):
            tenant.answer(Query.ENDED, shown(*rounds))
    assert tenant.endorsed.rounds() == []
    assert price(tenant, 1) == pytest.approx([1])
    assert counted(tenant, plan_of(1)) == (1, 1)


def test_what_is_no_list_of_rounds_is_refused(cast: Cast) -> None:
    for wrong in (b"", signed(plan_of(0)), encode(Receipt(keys().directory.head))):
        with pytest.raises(DecodeError):
            cast.tenant().answer(Query.ENDED, wrong)


@pytest.mark.parametrize("at_once", [True, False])
def test_two_sets_of_one_round_are_kept_as_proof_and_end_the_epoch_here(cast: Cast, *, at_once: bool) -> None:
    tenant = failing(cast)
    tenant.contribute(signed(plan_of(0)))
    rounds = [ended(plan_of(0), (0, *OTHERS)), ended(plan_of(0), OTHERS)]
    if not at_once:
        show(tenant, shown(rounds[0]))
    with pytest.raises(Equivocation, match="different sets for the window from hour 0 of epoch 0") as fault:
        tenant.answer(Query.ENDED, shown(*rounds) if at_once else shown(rounds[1]))
    assert "kept in tenant.db as proof" in fault.value.hint
    again = cast.tenant(sampler=NoMoreNoise())
    assert sorted(map(encode_one, again.endorsed.rounds())) == sorted(map(encode_one, rounds))
    with pytest.raises(Equivocation):
        again.contribute(signed(plan_of(1)))
    after, (_, chain) = failing(cast), handed(founders().with_new_masks())
    after.follow(update(chain))
    assert after.contribute(signed(under(plan_of(WEEKS_PER_EPOCH), chain.directory)))  # another epoch


def encode_one(one: EndedRound) -> bytes:
    return encode(EndedRounds((one,)))


def test_sets_of_two_rounds_of_one_window_are_as_bad(cast: Cast) -> None:
    """Trustees endorse one request for a window of an epoch, whatever its round is called."""
    tenant = failing(cast)
    show(tenant, shown(ended(plan_of(0), OTHERS)))
    with pytest.raises(Equivocation):
        tenant.answer(Query.ENDED, shown(ended(plan_of(0, 77), OTHERS)))


def test_the_windows_of_an_epoch_do_not_change(cast: Cast) -> None:
    tenant = failing(cast)
    tenant.contribute(signed(plan_of(0)))
    shifted = replace(plan_of(1), end_hour=400, windows=(0, 168, 400, WEEKS_PER_EPOCH * 168))
    for other in (shifted, replace(plan_of(1), windows=plan_of(1).windows[1:])):
        with pytest.raises(PlanRefused, match="its windows of epoch 0 are not those of an earlier plan"):
            tenant.contribute(signed(other))
    assert len(tenant.ledger.charges()) == 1
    assert counted(tenant, plan_of(1)) == (1, 1)


# ---- a ledger that was set back ------------------------------------------------------------------------------------


@pytest.fixture
def set_back(cast: Cast) -> Callable[[], None]:
    """Puts the tenant's database of now in the place of a later one."""
    failing(cast).close()
    backup: Path = cast.root / "backup.db"
    shutil.copyfile(cast.root / "tenant-0.db", backup)

    def restore() -> None:
        for left in cast.root.glob("tenant-0.db*"):
            left.unlink()
        shutil.copyfile(backup, cast.root / "tenant-0.db")

    return restore


def test_an_older_ledger_learns_from_sets_what_it_has_spent(cast: Cast, set_back: Callable[[], None]) -> None:
    with closing(failing(cast)) as tenant:
        for window in range(2):
            tenant.contribute(signed(plan_of(window)))
    set_back()
    tenant = failing(cast)
    assert tenant.ledger.charges() == []
    show(tenant, shown(ended(plan_of(0), (0, *OTHERS)), ended(plan_of(1), (0, *OTHERS))))
    assert [(charge.start_h, charge.end_h) for charge in tenant.ledger.charges()] == [(0, 168), (168, 336)]
    assert price(tenant, 3) == pytest.approx([1, 1, 0], rel=1e-5)
    assert counted(tenant, plan_of(2)) == (2, 1)


def test_an_older_ledger_charges_every_window_that_its_answer_may_have_counted(
    cast: Cast, set_back: Callable[[], None]
) -> None:
    rounds = [ended(plan_of(0), OTHERS), ended(plan_of(1), ()), ended(plan_of(2), (0, *OTHERS))]
    with closing(failing(cast)) as tenant:
        show(tenant, shown(*rounds[:2]))
        assert counted(tenant, plan_of(2)) == (0, 3)
    set_back()
    tenant = failing(cast)
    show(tenant, shown(*rounds[::-1]))
    assert price(tenant, 4) == pytest.approx([1, 1, 1, 0], rel=1e-5)
    assert counted(tenant, plan_of(3)) == (3, 1)


def test_an_older_ledger_that_is_shown_nothing_counts_no_window_but_the_one_that_is_asked_about(
    cast: Cast, set_back: Callable[[], None]
) -> None:
    with closing(failing(cast)) as tenant:
        tenant.contribute(signed(plan_of(0)))
    set_back()
    assert counted(failing(cast), plan_of(1)) == (1, 1)


def test_what_an_older_ledger_was_shown_leaves_no_budget_in_that_window(
    cast: Cast, set_back: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a plan is refused as over; were it not, the ledger would not let it pass."""
    with closing(failing(cast)) as tenant:
        tenant.contribute(signed(plan_of(0)))
    set_back()
    tenant = failing(cast)
    show(tenant, shown(ended(plan_of(0), (0, *OTHERS))))
    monkeypatch.setattr(tenant.endorsed, "refuse_over", lambda _: None)
    with pytest.raises(BudgetExceeded):
        tenant.contribute(signed(plan_of(0, 77)))


# ---- who is relied on ----------------------------------------------------------------------------------------------


def joined_by(tenant: Tenant, many: int) -> Mapping[str, object]:
    """So many more members, under a new head."""
    made = [(SigningKey(bytes([number]) * 32), MaskKey(bytes([number]) * 32)) for number in range(1, many + 1)]
    entry = next_entry(tenant.chain.directory, joined=[Member.of(signing, mask, 0) for signing, mask in made])
    tenant.answer(Query.DIRECTORY, encode(DirectoryUpdate((keys().provider.sign(entry),))))
    return {"directory": tenant.chain.directory.head}


def test_growth_is_relied_on_only_after_a_round_of_the_members_of_before(cast: Cast) -> None:
    """Five members enrolled with it; thirty-five that it does not know join, or are invented."""
    tenant = failing(cast)
    assert tenant.members_seen() == 5
    grown = joined_by(tenant, 35)
    for_all, for_five = (replace(a_plan(1, members=members), **grown) for members in (40, 5))
    assert for_all.shares.full > for_five.shares.full
    with pytest.raises(PlanRefused, match="of the 5 members last seen") as refusal:
        tenant.contribute(signed(for_all))
    assert "set honest_minimum to that number in policy.toml" in refusal.value.hint
    assert tenant.ledger.charges() == []
    tenant.contribute(signed(for_five))
    assert tenant.members_seen() == 40
    tenant.contribute(signed(replace(a_plan(2, window=(168, 336), members=40), **grown)))


def test_an_owner_who_knows_the_new_members_says_how_many_are_honest(cast: Cast) -> None:
    first = failing(cast)
    grown = joined_by(first, 35)
    plan = replace(a_plan(1, members=40), **grown)
    full = plan.shares.full
    with pytest.raises(PlanRefused, match=f"relies on up to {full} honest tenants, the policy on {full - 1}"):
        failing(cast, policy=replace(POLICY, honest_minimum=full - 1)).contribute(signed(plan))
    assert failing(cast, policy=replace(POLICY, honest_minimum=full)).contribute(signed(plan))


# ---- long leases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most_h", "windows"), [(0, 13), (84, 1), (83, 0), (168 + 84, 2), (10**6, 13)])
def test_a_long_lease_counts_up_to_the_age_that_the_policy_says(cast: Cast, most_h: int, windows: int) -> None:
    tenant = failing(cast, policy=replace(POLICY, lease_hours_maximum=most_h))
    last = plan_of(WEEKS_PER_EPOCH - 1)
    show(tenant, shown(*(ended(plan_of(one), OTHERS) for one in range(WEEKS_PER_EPOCH - 1))))
    assert sum(int(table.sum()) for table in tenant.counts(last)) == windows * counting(last)
