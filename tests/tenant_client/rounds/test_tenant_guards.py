"""What a tenant finds out before it pays: hours to come, keys that hide nothing, other bundles, an older database."""

import shutil
from collections.abc import Sequence
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from crypto.codec import decode, digest
from crypto.errors import DecodeError, PeerFault, PlanRefused
from crypto.ids import MaskPublicKey
from crypto.masking import Words
from federation.base.clock import date
from federation.protocol.bundle import Bundle
from federation.protocol.directory import Chain
from federation.protocol.noise import Integers, SystemSampler
from federation.protocol.plan import HOURS_PER_WEEK, Plan, PublishedBundle
from federation.protocol.privacy_cost import NO_LOSS
from federation.protocol.queries import Query
from federation.protocol.round_messages import ContributionHeader, Receipt
from tenant_client.rounds.policy import CLOCKS_DIFFER_H
from tenant_client.rounds.tenant import Tenant
from tests.support.changing import replace
from tests.support.factories import WEEKS_PER_EPOCH, Cast, a_plan, keys, signed
from tests.support.hiding import looks_hidden
from tests.tenant_client.rounds.test_tenant import WIDE, NoMoreNoise, a_wide_plan, masks_over, opened

EPOCH_HOURS = WEEKS_PER_EPOCH * HOURS_PER_WEEK
FAR = (2966 - 1970) * 52 // WEEKS_PER_EPOCH  # an epoch


def nothing_paid(tenant: Tenant, plan: Plan) -> bool:
    return tenant.ledger.charges() == [] and tenant.outbox.sent(plan.round_id) is None


# ---- the clock -----------------------------------------------------------------------------------------------------


def a_plan_of(epoch: int) -> Plan:
    """The plan for the first window of an epoch."""
    start_hour = epoch * EPOCH_HOURS
    return a_plan(window=(start_hour, start_hour + HOURS_PER_WEEK))


def test_a_plan_for_the_year_2966_costs_no_window_of_the_time_until_then(cast: Cast) -> None:
    plan = a_plan_of(FAR)
    tenant = cast.tenant(sampler=NoMoreNoise())
    with pytest.raises(PlanRefused, match=f"its window ends on {date(plan.end_hour)}, and by the clock here it is"):
        tenant.contribute(signed(plan))
    assert nothing_paid(tenant, plan)
    assert tenant.ledger.spent(0, plan.end_hour) == NO_LOSS
    assert cast.tenant().contribute(signed(a_plan(2)))  # there is the whole budget still


def test_when_the_year_has_come_it_pays_for_its_own_window_and_for_no_other(cast: Cast) -> None:
    plan = a_plan_of(FAR)
    tenant = cast.tenant(clock=lambda: float(plan.end_hour))
    header, _ = opened(tenant.contribute(signed(plan)))
    assert header.start_hour == plan.start_hour
    assert [(charge.start_h, charge.end_h) for charge in tenant.ledger.charges()] == [plan.window]
    assert tenant.ledger.spent(0, plan.start_hour) == NO_LOSS


@pytest.mark.parametrize("early", [0.0, 0.5, CLOCKS_DIFFER_H])
def test_a_window_that_is_over_by_a_clock_an_hour_ahead_is_answered(cast: Cast, early: float) -> None:
    tenant = cast.tenant(clock=lambda: 168.0 - early)
    assert tenant.contribute(signed(a_plan()))
    assert len(tenant.ledger.charges()) == 1


def test_a_window_is_refused_until_it_is_over(cast: Cast) -> None:
    hours = [0.0]
    tenant = cast.tenant(clock=lambda: hours[0])
    for hour in (0.0, 84.0, 168 - CLOCKS_DIFFER_H - 0.01):
        hours[0] = hour
        with pytest.raises(PlanRefused, match="its window ends on 1970-01-08"):
            tenant.contribute(signed(a_plan()))
        assert nothing_paid(tenant, a_plan())
    hours[0] = 168.0
    first = tenant.contribute(signed(a_plan()))
    hours[0] = 0.0
    assert tenant.contribute(signed(a_plan())) == first  # what was answered stays so, whatever the clock does


# ---- mask keys -----------------------------------------------------------------------------------------------------


def masked_by_zero() -> Plan:
    """A plan whose first trustee has a key that agrees on zero with every other, past the type that refuses it."""
    first, *others = a_plan().trustees
    zero = bytes.__new__(MaskPublicKey, bytes(32))
    return replace(a_plan(), trustees=(replace(first, mask_key=zero), *others))


def test_a_plan_whose_trustee_has_a_key_that_agrees_on_nothing_is_none_and_costs_nothing(cast: Cast) -> None:
    tenant = cast.tenant(sampler=NoMoreNoise())
    with pytest.raises(DecodeError, match=r"Plan\.trustees\[0\]\.mask_key"):
        tenant.contribute(signed(masked_by_zero()))
    assert nothing_paid(tenant, masked_by_zero())


def test_every_mask_is_tried_before_anything_is_paid(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were such a key in directory and plan after all, the answer would be none, and the budget whole."""
    plan, tenant = masked_by_zero(), cast.tenant(sampler=NoMoreNoise())
    changed = {trustee.index: trustee.mask_key for trustee in plan.trustees}
    known = keys().directory
    records = [replace(one, mask_key=changed.get(one.index, one.mask_key)) for one in known.trustees]
    tenant.chain = Chain(tenant.chain.entries, {known.head: replace(known, trustees=tuple(records))})
    monkeypatch.setattr(tenant, "open_plan", lambda _: plan)
    with pytest.raises(PeerFault, match="is of small order"):
        tenant.contribute(signed(plan))
    assert nothing_paid(tenant, plan)


# ---- bundles -------------------------------------------------------------------------------------------------------


def a_bundle(number: int = 1, epoch: int = 0) -> bytes:
    return keys().provider.sign(Bundle(number, epoch, 168 * number, (), (), (), None))


TOLD, OTHER = a_bundle(), a_bundle(epoch=1)


def naming(bundle: bytes, number: int = 1, of: int = 1) -> Plan:
    """A plan for week `number` that says that `bundle` is what all tenants have."""
    window = (168 * (number - 1), 168 * number)
    return replace(a_plan(number, window=window), bundle=PublishedBundle(of, digest(bundle)))


def test_a_tenant_that_holds_what_the_plan_names_answers_and_so_does_one_that_was_told_nothing(cast: Cast) -> None:
    told, away = cast.tenant(0), cast.tenant(1)
    told.accept(TOLD)
    for tenant in (told, away):
        assert tenant.contribute(signed(naming(TOLD)))
    assert decode(Receipt, away.answer(Query.BUNDLE, TOLD)).held == digest(TOLD)
    for tenant in (told, away):
        tenant.accept(a_bundle(2))
        assert tenant.contribute(signed(naming(a_bundle(2), 2, of=2)))


def test_a_tenant_that_was_told_another_bundle_refuses_the_plan(cast: Cast) -> None:
    cast.tenant().accept(OTHER)
    tenant = cast.tenant(sampler=NoMoreNoise())  # reopened
    for _ in range(2):
        with pytest.raises(PeerFault, match="names another bundle 1 than") as fault:
            tenant.contribute(signed(naming(TOLD)))
        assert "compare" in fault.value.diagnostics()
        assert nothing_paid(tenant, naming(TOLD))


def test_a_tenant_that_is_told_another_bundle_after_the_plan_finds_out_and_answers_no_more_of_them(cast: Cast) -> None:
    tenant = cast.tenant()
    tenant.contribute(signed(naming(TOLD)))
    again = cast.tenant(sampler=NoMoreNoise())
    with pytest.raises(PeerFault, match="names another bundle 1 than"):
        again.answer(Query.BUNDLE, OTHER)
    with pytest.raises(PeerFault, match="names another bundle 1 than"):
        again.contribute(signed(naming(TOLD, 2)))
    assert [charge.round_id for charge in again.ledger.charges()] == [naming(TOLD).round_id]


@pytest.mark.parametrize("held", [[], [TOLD]], ids=["told nothing", "told one"])
def test_two_plans_that_name_different_bundles_are_not_both_answered(cast: Cast, held: Sequence[bytes]) -> None:
    """Or a plan that comes to nothing would name to each tenant what it was told, and the next one anything."""
    tenant = cast.tenant()
    for bundle in held:
        tenant.accept(bundle)
    tenant.contribute(signed(naming(TOLD)))
    again = cast.tenant(sampler=NoMoreNoise())
    with pytest.raises(PeerFault, match="different digests for bundle 1"):
        again.contribute(signed(naming(OTHER, 2)))
    assert [charge.round_id for charge in again.ledger.charges()] == [naming(TOLD).round_id]


def test_a_plan_that_is_refused_for_its_noise_says_nothing_about_bundles(cast: Cast) -> None:
    """Only what the tenant would have answered is kept as the provider's word."""
    tenant = cast.tenant()
    with pytest.raises(PlanRefused):
        tenant.contribute(signed(replace(naming(OTHER), epsilon=0.1)))
    assert decode(Receipt, tenant.accept(TOLD)).held == digest(TOLD)


# ---- a database that was set back ----------------------------------------------------------------------------------


class Kept(SystemSampler):
    """Remembers what it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Integers] = []

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        self.drawn.append(super().laplace_share(scale, shares, size))
        return self.drawn[-1]


def answers_of_one_backup(
    cast: Cast, plan: Plan, count: int, sampler: SystemSampler
) -> list[tuple[ContributionHeader, Words]]:
    """The answers to one plan of a tenant whose database is set back to before each of them."""
    cast.tenant(policy=WIDE).close()
    backup: Path = cast.root / "backup.db"
    shutil.copyfile(cast.root / "tenant-0.db", backup)
    answers = []
    for _ in range(count):
        for left in cast.root.glob("tenant-0.db*"):
            left.unlink()
        shutil.copyfile(backup, cast.root / "tenant-0.db")
        with closing(cast.tenant(policy=WIDE, sampler=sampler)) as tenant:
            answers.append(opened(tenant.contribute(signed(plan))))
            assert len(tenant.ledger.charges()) == 1  # and it does not know better
    return answers


def test_a_restored_database_answers_again_under_masks_of_their_own_so_nothing_is_opened(cast: Cast) -> None:
    """Under the same masks the difference of two answers would be that of their noise, in every cell."""
    plan, sampler = a_wide_plan(), Kept()
    answers = answers_of_one_backup(cast, plan, 4, sampler)
    headers, words = [header for header, _ in answers], np.stack([words for _, words in answers])
    assert len({header.nonce for header in headers}) == 4
    differences = words[1:] - words[:-1]
    assert looks_hidden(differences)
    bare = np.stack([under - masks_over(plan, header) for header, under in answers])
    assert not looks_hidden(bare[1:] - bare[:-1])  # what would be seen, if the masks were equal
    noise = np.stack(sampler.drawn)
    np.testing.assert_array_equal((bare[1:] - bare[:-1]).astype(np.int64), noise[1:] - noise[:-1])
