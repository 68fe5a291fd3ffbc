"""Keys that an adversary chose: other encodings of an honest one, copies, keys that agree on nothing.

A trustee in league with the provider would take an honest trustee's mask key for its own, so that one mask lies twice
on every contribution and its lowest bit is bare; a member would take another member's, so that the victim counts twice.
What fails here first is the encoding, then the proof of possession, and were both missing the masks themselves.
"""

import os
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from crypto.errors import BadSignature, MemberRefused
from crypto.ids import MaskPublicKey, Nonce, TenantId
from crypto.masking import MaskKey, MaskStream
from crypto.possession import MaskKeyClaim
from crypto.signing import SigningKey, open_signed, reopened
from federation.protocol.directory import Chain, DirectoryEntry, Member, next_entry
from federation.protocol.enrolment import TrusteeCard, open_trustee_card
from federation.protocol.round_messages import UnmaskRequest
from provider_server.rounds.network.grid_tenants import GridTenants
from provider_server.rounds.store.round_store import RoundState
from provider_server.rounds.week import MaskHolder, federated_week
from simulation.run.federation import Federation
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.rounds.network.flower_app import client_app
from tests.support.changing import replace
from tests.support.factories import WEEK, Cast, a_plan, keys, plan_digest, signed
from tests.support.hiding import looks_hidden
from tests.system.test_attacks import eight  # noqa: F401  # a fixture
from tests.trustee.test_ceremony import parties
from trustee.trustee import Trustee

P = 2**255 - 19


def with_top_bit(key: MaskPublicKey) -> bytes:
    return bytes(key[:-1]) + bytes([key[-1] | 0x80])


def plus_order_two(key: MaskPublicKey) -> MaskPublicKey:
    """The key plus the point (0, 0), of order 2: u becomes 1/u. Every X25519 scalar is even, so it agrees as before."""
    return MaskPublicKey(pow(int.from_bytes(key, "little"), -1, P).to_bytes(32, "little"))


def test_both_are_other_byte_strings_for_one_key() -> None:
    """What makes the attacks below attacks: to X25519 all three are the same."""
    key, own = MaskKey.generate(os.urandom).public, X25519PrivateKey.generate()
    spellings = {bytes(key), with_top_bit(key), bytes(plus_order_two(key))}
    assert len(spellings) == 3
    assert len({own.exchange(X25519PublicKey.from_public_bytes(spelling)) for spelling in spellings}) == 1


# ---- a trustee that publishes another one's key --------------------------------------------------------------------


def founding() -> DirectoryEntry:
    return open_signed(DirectoryEntry, keys().founding, keys().provider.public)


def begun(entry: DirectoryEntry) -> Chain:
    return Chain.begin(keys().provider.sign(entry), keys().provider.public)


def test_the_honest_directory_is_begun() -> None:
    assert begun(founding()).directory == keys().directory


def test_an_alias_of_an_honest_trustees_key_stands_in_no_directory() -> None:
    *others, honest, accomplice = founding().trustees
    with pytest.raises(ValueError, match="not canonical or of small order"):
        MaskPublicKey(with_top_bit(honest.mask_key))
    alias, (_, signing, mask) = plus_order_two(honest.mask_key), keys().trustees[-1]
    for proof in (
        accomplice.possession,
        honest.possession,
        mask.prove(MaskKeyClaim(signing.public, alias, 0)),
    ):
        listed = replace(accomplice, mask_key=alias, possession=proof)
        with pytest.raises(BadSignature, match="no valid proof of possession for the mask key"):
            begun(replace(founding(), trustees=(*others, honest, listed)))


def test_a_trustees_card_that_shows_another_ones_key_is_refused() -> None:
    mine, honest = SigningKey.generate(os.urandom), MaskKey.generate(os.urandom)
    card = a_card(mine, MaskKey.generate(os.urandom))
    victims = a_card(SigningKey.generate(os.urandom), honest)
    assert open_trustee_card(mine.sign(card)) == card
    for forged in (
        replace(card, mask_key=victims.mask_key, possession=victims.possession),
        replace(card, mask_key=plus_order_two(victims.mask_key), possession=victims.possession),
        replace(card, made_hour=card.made_hour + 1),
    ):
        with pytest.raises(BadSignature, match="no valid proof of possession for the mask key"):
            open_trustee_card(mine.sign(forged))


def a_card(signing: SigningKey, mask: MaskKey) -> TrusteeCard:
    known = reopened(TrusteeCard, parties()[0].signed_card)
    return TrusteeCard.of(signing, mask, known.sealing_key, made_hour=7, address=known.address)


def test_were_an_alias_listed_its_mask_would_still_be_another() -> None:
    """One mask for both made 2 · M of them: the lowest bit of every word of a single contribution lay open."""
    plan, tenant, honest = a_plan(1), MaskKey.generate(os.urandom), MaskKey.generate(os.urandom)
    named, own = plan_digest(signed(plan)), tenant.public
    stream = MaskStream(plan.round_id, named, TenantId(bytes(16)), own, Nonce(bytes(16)), 4, honest.public)
    beside = replace(stream, trustee=5, trustee_key=plus_order_two(honest.public))
    assert looks_hidden(tenant.mask(stream, 2**15) + tenant.mask(beside, 2**15))
    assert not looks_hidden(2 * tenant.mask(stream, 2**15))


# ---- a member that publishes another one's key ---------------------------------------------------------------------


def test_a_member_under_a_victims_key_is_not_enrolled(cast: Cast) -> None:
    """The victim would count twice, 20 where 15 is true, or lie in both of two sets."""
    victim, accomplice, own = keys().directory.members[0], SigningKey.generate(os.urandom), MaskKey.generate(os.urandom)
    honest = Member.of(accomplice, own, 0)
    chain = cast.trustee(3).chain
    joining = keys().provider.sign(next_entry(keys().directory, joined=[honest]))
    assert honest in chain.extended([joining]).directory.members
    for key in (victim.mask_key, plus_order_two(victim.mask_key)):
        for possession in (honest.possession, victim.possession):
            member = replace(claiming(accomplice, key), possession=possession)
            entry = next_entry(keys().directory, left=[victim.tenant], joined=[member])
            with pytest.raises(BadSignature, match="no valid proof of possession for the mask key"):
                chain.extended([keys().provider.sign(entry)])


class InsecureClaim(MaskKey):
    """Says that it is another key than it is, and proves nothing."""

    def __init__(self, shown: MaskPublicKey) -> None:
        super().__init__(bytes(32))
        self._shown = shown

    @property
    def public(self) -> MaskPublicKey:
        return self._shown


def claiming(signing: SigningKey, key: MaskPublicKey) -> Member:
    """A member whose own signature claims `key`."""
    return Member.of(signing, InsecureClaim(key), 0)


def test_who_comes_back_brings_no_older_key() -> None:
    """It once signed for that key, and whoever holds the old private half would open its contributions."""
    signing, old, new = SigningKey.generate(os.urandom), MaskKey.generate(os.urandom), MaskKey.generate(os.urandom)
    chain = begun(founding())

    def then(chain: Chain, **step: list[object]) -> Chain:
        return chain.extended([keys().provider.sign(next_entry(chain.directory, **step))])  # type: ignore[arg-type]

    away = then(then(chain, joined=[Member.of(signing, new, 8)]), left=[Member.of(signing, new, 8).tenant])
    for fine in (Member.of(signing, new, 8), Member.of(signing, MaskKey.generate(os.urandom), 9)):
        assert fine in then(away, joined=[fine]).directory.members
    for stale in (Member.of(signing, old, 3), Member.of(signing, old, 8)):
        with pytest.raises(Exception, match="back with an older mask key"):
            then(away, joined=[stale])


# ---- a member that no trustee can unmask ---------------------------------------------------------------------------


class Refusing:
    """A trustee that cannot unmask one member, and says so, or the same of another, of every set that names it."""

    def __init__(self, trustee: Trustee, member: TenantId, said: TenantId | None = None) -> None:
        self.index = trustee.index
        self.follow, self.unmask = trustee.follow, trustee.unmask
        self._endorse, self._member, self._said = trustee.endorse, member, said or member

    def endorse(self, request: bytes) -> bytes:
        if self._member in reopened(UnmaskRequest, request).contributors:
            raise MemberRefused(f"{self._said}: its mask key is of small order")
        return self._endorse(request)


def a_week_with(federation: Federation, holders: Callable[[Trustee], MaskHolder]) -> int:
    """How many contributions its release counts."""
    apps = {number: client_app(tenant.answer) for number, tenant in enumerate(federation.tenants)}
    trustees = [holders(trustee) for trustee in federation.trustees]
    with local_task():
        tenants = GridTenants(LocalGrid(apps), 0.0, 0.0)
        return federated_week(federation.provider, None, tenants, trustees, WEEK).contributors


def test_a_member_that_all_trustees_refuse_costs_its_own_place_and_no_round(eight: Federation) -> None:  # noqa: F811
    """A key of zero hung the round, blocked the later ones and ended the series."""
    victim = eight.tenants[3].id
    assert a_week_with(eight, lambda trustee: Refusing(trustee, victim)) == 7
    assert eight.provider.unfinished() is None


def test_a_member_that_some_trustees_refuse_is_no_reason_to_drop_it(eight: Federation) -> None:  # noqa: F811
    """Else one trustee could choose who is counted."""
    victim = eight.tenants[3].id
    with pytest.raises(MemberRefused):
        a_week_with(eight, lambda trustee: Refusing(trustee, victim) if trustee.index == 5 else trustee)
    waiting = eight.provider.unfinished()
    assert waiting is not None
    assert (waiting.state, len(waiting.contributors)) == (RoundState.ENDORSING, 8)
    assert a_week_with(eight, lambda trustee: trustee) == 8


def test_a_refusal_of_somebody_who_is_not_in_the_set_drops_nobody(eight: Federation) -> None:  # noqa: F811
    stranger = Member.of(SigningKey.generate(os.urandom), MaskKey.generate(os.urandom), 0).tenant
    with pytest.raises(MemberRefused, match=str(stranger)):
        a_week_with(eight, lambda trustee: Refusing(trustee, eight.tenants[3].id, stranger))
    waiting = eight.provider.unfinished()
    assert waiting is not None
    assert len(waiting.contributors) == 8
