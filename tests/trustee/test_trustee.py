"""A trustee: binds itself to one set per round, unmasks that one, follows the directory, and remembers all of it."""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from msgspec.structs import force_setattr

from crypto import voprf
from crypto.codec import decode, encode
from crypto.errors import (
    AlreadyAnswered,
    BadSignature,
    CohortTooSmall,
    DecodeError,
    Equivocation,
    MemberRefused,
    OutOfOrder,
    PlanRefused,
    TooFewOwners,
    VersionsApart,
)
from crypto.ids import Digest, EncodedElement, MaskPublicKey, Nonce, RoundId, Signature, TenantId, Token
from crypto.masking import MaskKey, Words, add_words, words_from_bytes
from crypto.signing import Signed, SigningKey, name_of, reopened, tenant_id
from crypto.threshold import KeyShare
from federation.protocol.directory import Chain, Member, SeatsChanged, UnknownHead, next_entry
from federation.protocol.endorsed import EndorsedSet
from federation.protocol.plan import HOURS_PER_WEEK, MaskTrustee, Plan
from federation.protocol.round_messages import (
    ContributionHeader,
    DirectoryUpdate,
    Endorsement,
    EvaluationRequest,
    Ownership,
    Receipt,
    UnmaskCall,
    UnmaskRequest,
    UnmaskShare,
)
from federation.protocol.versions import PROTOCOL
from tests.support.changing import replace
from tests.support.factories import (
    TENANTS,
    WEEK,
    Cast,
    a_plan,
    keys,
    ownership,
    ownerships,
    plan_digest,
    signed,
    stream_of,
)
from trustee.trustee import Trustee, TrusteeLimits

EVERYBODY = tuple(range(TENANTS))
MASKING = (3, 4, 5)
QUORUM = (1, *MASKING)


def a_header(plan: Plan, tenant: int) -> ContributionHeader:
    """What tenant `tenant` says of the one contribution that it made to a plan."""
    drawn = hashlib.sha256(plan.round_id + bytes([tenant])).digest()[: Nonce.length]
    named = plan_digest(signed(plan))
    return ContributionHeader(
        keys().tenant_id(tenant), plan.round_id, named, plan.start_hour, Nonce(drawn), Digest(bytes(32))
    )


def contributed(to: Plan, number: int, /, *, signer: SigningKey | None = None, **changes: Any) -> bytes:
    """The same, signed; `changes` are of what it says."""
    return (signer or keys().tenants[number][0]).sign(replace(a_header(to, number), **changes))


def a_group(plan: Plan, members: Sequence[int | bytes]) -> tuple[bytes, ...]:
    """Signed headers in order: of tenants by number, and others as they are."""
    headers = [contributed(plan, member) if isinstance(member, int) else member for member in members]
    return tuple(sorted(headers, key=lambda header: reopened(ContributionHeader, header).tenant))


def an_unmasking(
    plan_: Plan, /, *groups: Sequence[int | bytes], signing_key: SigningKey | None = None, **changes: Any
) -> bytes:
    """A request as the provider signs it; one group of everybody unless told."""
    told = ownerships(epoch=plan_.epoch, window=(plan_.first_hour, plan_.end_hour))
    named = tuple(a_group(plan_, members) for members in groups or [EVERYBODY])
    asked = UnmaskRequest(signed(plan_), named, told)
    return (signing_key or keys().provider).sign(replace(asked, **changes))


def given_up(plan: Plan) -> bytes:
    """The request by which the provider gives a round up."""
    return an_unmasking(plan, groups=(), ownerships=())


def a_week(number: int, **settings: Any) -> Plan:
    """The plan of a week of epoch 0, the windows of which are weeks."""
    return a_plan(number, window=(HOURS_PER_WEEK * (number - 1), HOURS_PER_WEEK * number), **settings)


def named(request: bytes) -> Digest:
    return name_of(request)


def an_endorsement(request: bytes, plan: Plan, trustee: int, *, signer: int = 0, **changes: Any) -> bytes:
    """As trustee `trustee` signs it, or another in its name."""
    endorsed = EndorsedSet.of(plan, reopened(UnmaskRequest, request)).name
    word = replace(Endorsement(trustee, plan.round_id, named(request), endorsed), **changes)
    return keys().trustees[(signer or trustee) - 1][1].sign(word)


def a_call(request: bytes, plan: Plan, endorsers: Sequence[int] = QUORUM) -> bytes:
    return encode(UnmaskCall(request, tuple(an_endorsement(request, plan, index) for index in endorsers)))


def unmasked(trustee: Trustee, request: bytes, plan: Plan) -> bytes:
    """Endorsed by this trustee, and by the others as far as it can see, and unmasked."""
    trustee.endorse(request)
    return trustee.unmask(a_call(request, plan))


def opened(share: bytes) -> UnmaskShare:
    return reopened(UnmaskShare, share)


def sums(share: bytes) -> list[Words]:
    return [words_from_bytes(words) for words in opened(share).mask_sums]


def masks(share: bytes) -> set[int]:
    return set(map(int, np.concatenate(sums(share))))


def masks_of(trustee: int, plan: Plan, tenants: Sequence[int]) -> Words:
    """What tenants put over their words for a trustee, added up; shape (plan.words,)."""
    of = MaskTrustee(trustee, keys().directory.trustee(trustee).mask_key)
    own = {tenant: keys().tenants[tenant][1] for tenant in tenants}
    streams = {tenant: stream_of(a_header(plan, tenant), key.public, of) for tenant, key in own.items()}
    return add_words(own[tenant].mask(stream, plan.words) for tenant, stream in streams.items())


def an_element() -> EncodedElement:
    return EncodedElement(voprf.blind([b"x"], os.urandom).elements[0].encoded)


# ---- the directory -------------------------------------------------------------------------------------------------


def a_newcomer() -> tuple[SigningKey, MaskKey, Member]:
    signing, mask = SigningKey.generate(os.urandom), MaskKey.generate(os.urandom)
    return signing, mask, Member.of(signing, mask, 0)


def grown(member: Member, left: Sequence[TenantId] = ()) -> tuple[bytes, Chain]:
    """An entry by which somebody joins, and the chain with it."""
    founding = Chain.begin(keys().founding, keys().provider.public)
    entry = keys().provider.sign(next_entry(founding.directory, joined=[member], left=left))
    return entry, founding.extended([entry])


def test_a_plan_under_an_unknown_head_waits_until_the_trustee_has_followed(cast: Cast) -> None:
    signing, _, member = a_newcomer()
    entry, chain = grown(member)
    plan = replace(a_plan(), directory=chain.directory.head)
    newcomer = contributed(plan, 0, signer=signing, tenant=member.tenant)
    request = an_unmasking(plan, (*EVERYBODY, newcomer))
    trustee = cast.trustee()
    with pytest.raises(UnknownHead) as refusal:
        trustee.endorse(request)
    assert chain.directory.head.hex()[:16] in refusal.value.what
    receipt = trustee.follow(encode(DirectoryUpdate((entry,))))
    assert decode(Receipt, receipt).held == chain.directory.head
    again = cast.trustee()  # reopened
    share = unmasked(again, request, plan)
    assert len(sums(share)) == 1
    again.evaluate(signing.sign(EvaluationRequest(member.tenant, 3, 0, (an_element(),))))


def test_a_round_is_held_under_the_members_that_its_head_names(cast: Cast) -> None:
    """Under the older head a newcomer may not contribute; under the newer one somebody who has left may not."""
    signing, _, member = a_newcomer()
    _, chain = grown(member, left=[keys().tenant_id(0)])
    trustee, plan = cast.trustee(), a_plan()
    trustee.follow(encode(DirectoryUpdate(chain.entries)))
    newcomer = contributed(plan, 0, signer=signing, tenant=member.tenant)
    with pytest.raises(MemberRefused, match=f"^{member.tenant}: .* is not in the directory"):
        trustee.endorse(an_unmasking(plan, (1, 2, 3, newcomer)))
    after = replace(a_week(2), directory=chain.directory.head)
    said = tuple(ownership(tenant, window=(0, 2 * HOURS_PER_WEEK)) for tenant in (1, 2, 3, 4))
    with pytest.raises(MemberRefused, match=f"^{keys().tenant_id(0)}: .* is not in the directory"):
        trustee.endorse(an_unmasking(after, EVERYBODY, ownerships=said))
    with pytest.raises(BadSignature, match=keys().tenant_id(0).hex()[:12]):
        trustee.endorse(an_unmasking(after, (1, 2, 3, 4)))  # his word counts for no row either
    trustee.endorse(an_unmasking(after, (1, 2, 3, 4), ownerships=said))
    trustee.endorse(an_unmasking(plan))


# ---- endorsing -----------------------------------------------------------------------------------------------------


def test_an_endorsement_names_the_request_and_nothing_is_unmasked_by_it(cast: Cast) -> None:
    plan, trustee = a_plan(), cast.trustee(4)
    request = an_unmasking(plan)
    word = trustee.endorse(request)
    assert word == an_endorsement(request, plan, 4)
    assert trustee.endorse(request) == word
    assert trustee.rounds() == [(plan.round_id, named(request), False)]
    trustee.unmask(a_call(request, plan))
    assert cast.trustee(4).rounds() == [(plan.round_id, named(request), True)]


def test_a_trustee_that_does_not_mask_endorses_and_unmasks_nothing(cast: Cast) -> None:
    plan = a_plan()
    request = an_unmasking(plan)
    assert cast.trustee(1).endorse(request) == an_endorsement(request, plan, 1)
    with pytest.raises(PlanRefused, match="trustee 1 does not mask in round"):
        cast.trustee(1).unmask(a_call(request, plan))
    assert cast.trustee(1).rounds() == [(plan.round_id, named(request), False)]


def test_a_trustee_under_another_mask_key_than_its_own_endorses_nothing(cast: Cast) -> None:
    plan = a_plan()
    swapped = (replace(plan.trustees[0], mask_key=MaskKey.generate(os.urandom).public), *plan.trustees[1:])
    with pytest.raises(SeatsChanged, match=r"round \w+ has other mask keys than the directory, of trustees \[3\]"):
        cast.trustee(3).endorse(an_unmasking(replace(plan, trustees=swapped)))
    assert cast.trustee(3).rounds() == []


@pytest.mark.parametrize("endorsers", [MASKING, (3, 3, 4, 5), (1, 2, 3, 4)])
def test_masks_come_off_with_a_quorum_of_all_and_every_mask_trustee(cast: Cast, endorsers: tuple[int, ...]) -> None:
    """Four of five: any two quorums then have three trustees in common, one more than may collude."""
    plan = a_plan()
    request = an_unmasking(plan)
    trustee = cast.trustee(3)
    trustee.endorse(request)
    with pytest.raises(OutOfOrder, match=r"lacks the endorsements of trustees \[5\]|of 3 trustees, 4 are needed"):
        trustee.unmask(a_call(request, plan, endorsers))
    trustee.unmask(a_call(request, plan, (*endorsers, 2, 5)))


def test_a_mask_trustee_whose_memory_is_lost_opens_no_second_set(cast: Cast) -> None:
    """It would endorse anything again. The others would not, and two colluders beside it are no quorum."""
    plan = a_plan()
    first, second = an_unmasking(plan), an_unmasking(plan, EVERYBODY[1:])
    for index in QUORUM:
        cast.trustee(index).endorse(first)
    (cast.root / "trustee-5.db").unlink()
    forgetful = cast.trustee(5)
    forgetful.endorse(second)
    for index in (1, 3, 4):
        with pytest.raises(AlreadyAnswered):
            cast.trustee(index).endorse(second)
    with pytest.raises(OutOfOrder):
        forgetful.unmask(a_call(second, plan, (2, 5)))


@pytest.mark.parametrize(
    ("groups", "minimum", "own", "enough"),
    [
        ([(0, 1, 2)], 4, 2, [(0, 1, 2, 3)]),
        ([(0, 1, 2)], 2, 4, [(0, 1, 2, 3)]),
        ([(0, 1, 2), (3, 4)], 3, 2, [(0, 1, 2, 3, 4)]),
        ([(3,), (0, 1, 2, 4)], 2, 2, [(3, 0), (1, 2, 4)]),
    ],
    ids=["the plan's", "its own", "one group", "one tenant alone"],
)
def test_no_group_is_below_the_plans_minimum_or_the_trustees_own(
    cast: Cast, groups: list[tuple[int, ...]], minimum: int, own: int, enough: list[tuple[int, ...]]
) -> None:
    trustee = cast.trustee(limits=TrusteeLimits(cohort_minimum=own))
    plan = a_plan(cohort_minimum=minimum)
    fewest, needed = min(map(len, groups)), max(minimum, own)
    with pytest.raises(CohortTooSmall, match=f"has {fewest} contributions, {needed} are needed"):
        trustee.endorse(an_unmasking(plan, *groups))
    assert trustee.rounds() == []
    trustee.endorse(an_unmasking(plan, *enough))


def test_nobody_is_in_a_request_twice() -> None:
    """Twice over, a mask would come off twice; and in two groups, a contribution would be told apart."""
    for groups in ([(0, 1, 1, 2)], [(0, 1, 2), (2, 3, 4)]):
        with pytest.raises(ValueError, match=r"named once|sorted"):
            an_unmasking(a_plan(), *groups)


def test_a_request_that_names_somebody_twice_is_no_message(cast: Cast) -> None:
    """Past the check of the class that makes it, as a provider's own program might be."""
    plan, trustee = a_plan(), cast.trustee()
    twice = a_group(plan, (0, 1, 2)), a_group(plan, (0, 3, 4))
    in_other_words = a_group(plan, (0, contributed(plan, 0, nonce=Nonce(bytes(16))), 1, 2))
    for groups in (twice, (in_other_words,), (a_group(plan, EVERYBODY)[::-1],)):
        honest = UnmaskRequest(signed(plan), (a_group(plan, EVERYBODY),), ownerships())
        force_setattr(honest, "groups", groups)
        with pytest.raises(DecodeError, match=r"named once|sorted"):
            trustee.endorse(keys().provider.sign(honest))
    assert trustee.rounds() == []


def test_only_what_the_provider_signed_is_endorsed(cast: Cast) -> None:
    trustee, plan = cast.trustee(), a_plan()
    stranger = SigningKey.generate(os.urandom)
    asked = reopened(UnmaskRequest, an_unmasking(plan))
    unsigned = encode(Signed(Signature(bytes(64)), memoryview(encode(asked))))
    own_plan = an_unmasking(plan, plan=stranger.sign(plan))
    for request in (stranger.sign(asked), keys().tenants[0][0].sign(asked), unsigned, own_plan):
        with pytest.raises(BadSignature):
            trustee.endorse(request)
    for request in (b"", encode(asked), an_unmasking(plan, plan=b"no plan"), ownership(0)):
        with pytest.raises(DecodeError):
            trustee.endorse(request)
    assert not trustee.rounds()
    assert not trustee.conflicts()
    trustee.endorse(an_unmasking(plan))  # nothing of all this was an answer


def test_a_contributor_outside_the_directory_is_named_and_the_round_stays_open(cast: Cast) -> None:
    trustee, plan = cast.trustee(), a_plan()
    stranger = SigningKey.generate(os.urandom)
    own_name = tenant_id(stranger.public)
    with pytest.raises(MemberRefused, match=f"^{own_name}: ") as refusal:
        trustee.endorse(an_unmasking(plan, (*EVERYBODY, contributed(plan, 0, signer=stranger, tenant=own_name))))
    assert "must enrol again" in refusal.value.diagnostics()
    assert trustee.rounds() == []
    trustee.endorse(an_unmasking(plan))


def unsigned(plan: Plan) -> bytes:
    return encode(Signed(Signature(bytes(64)), memoryview(encode(a_header(plan, 2)))))


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (
            lambda plan: contributed(plan, 2, plan=plan_digest(signed(a_plan(epsilon=0.5)))),
            "the contribution answers another plan",
        ),
        (lambda plan: contributed(plan, 2, round_id=RoundId(bytes(16))), "the contribution answers another plan"),
        (unsigned, "is not signed by the key"),
        (lambda plan: contributed(plan, 2, signer=keys().tenants[1][0]), "is not signed by the key"),
        (lambda plan: contributed(plan, 2, signer=keys().provider), "is not signed by the key"),
    ],
    ids=["another plan", "another round", "nobody", "another tenant", "the provider"],
)
def test_a_contribution_that_its_tenant_did_not_make_to_this_plan_is_named_and_the_round_stays_open(
    cast: Cast, refused: Callable[[Plan], bytes], reason: str
) -> None:
    """In every group, and with enough others: the tenant is named, so that the round can go on without it."""
    trustee, plan = cast.trustee(), a_plan(cohort_minimum=2)
    bad = refused(plan)
    for groups in ([(0, 1, bad, 3, 4)], [(0, 1), (bad, 3, 4)], [(bad, 0), (1, 3, 4)]):
        with pytest.raises(MemberRefused, match=f"^{keys().tenant_id(2)}: .*{reason}"):
            trustee.endorse(an_unmasking(plan, *groups))
    assert (trustee.rounds(), trustee.conflicts()) == ([], [])
    trustee.endorse(an_unmasking(plan, (0, 1, 3, 4)))


def test_a_member_whose_mask_key_agrees_on_nothing_is_named_before_anything_is_bound(cast: Cast) -> None:
    """Neither the type of a key nor the directory lets one in; were it there, the bound round would hang."""
    plan, trustee = a_plan(), cast.trustee()
    zero = bytes.__new__(MaskPublicKey, bytes(32))
    known = keys().directory
    member = replace(known.members[2], mask_key=zero)
    trustee.chain = Chain(
        trustee.chain.entries, {known.head: replace(known, by_id={**known.by_id, member.tenant: member})}
    )
    with pytest.raises(MemberRefused, match=f"^{member.tenant}: the mask key {zero.hex()} is of small order"):
        trustee.endorse(an_unmasking(plan))
    assert trustee.rounds() == []
    unmasked(trustee, an_unmasking(plan, (0, 1, 3, 4)), plan)


def forged_by(signing_key: SigningKey, tenant: int) -> bytes:
    """What a tenant never said, under another key."""
    said = reopened(Ownership, ownership(tenant))
    return signing_key.sign(said)


def without(tenant: int, token: Token) -> bytes:
    said = reopened(Ownership, ownership(tenant))
    return keys().tenants[tenant][0].sign(replace(said, tokens=tuple(one for one in said.tokens if one != token)))


OF_TWO = (ownership(0), ownership(1))


@pytest.mark.parametrize(
    ("told", "held"),
    [
        ((), 0),
        (OF_TWO, 2),
        ((*OF_TWO, ownership(1)), 2),
        ((*OF_TWO, without(1, Token(bytes(Token.length)))), 2),
        ((*OF_TWO, ownership(2, epoch=1)), 2),
        ((*OF_TWO, ownership(2, window=(0, 169))), 2),
        ((*OF_TWO, ownership(2, window=(168, 336)), ownership(2, epoch=1, window=(168, 336))), 2),
    ],
    ids=[
        *("none", "two of three", "one of them twice", "one of them in other words"),
        *("another epoch", "of hours after the plan", "of hours to come"),
    ],
)
def test_a_row_without_owners_enough_by_their_own_word_is_not_unmasked(
    cast: Cast, told: tuple[bytes, ...], held: int
) -> None:
    """The plan itself says that five own each row; the provider's word is not taken for it."""
    trustee, plan = cast.trustee(), a_plan()
    with pytest.raises(TooFewOwners, match=f"{held} tenants own row .*, 3 are needed") as refusal:
        trustee.endorse(an_unmasking(plan, ownerships=told))
    assert "merge the row" in refusal.value.diagnostics()
    assert trustee.rounds() == []
    trustee.endorse(an_unmasking(plan, ownerships=(*told, ownership(2), ownership(3), ownership(4))))


EPOCH = 13 * HOURS_PER_WEEK


@pytest.mark.parametrize(
    ("window", "held"),
    [((-168, 0), 0), ((-168, 1), TENANTS), ((0, 168), TENANTS), ((168, 336), TENANTS), ((168, 337), 0)],
)
def test_a_word_counts_that_is_of_the_hours_from_the_epochs_beginning_to_the_windows_end(
    cast: Cast, window: tuple[int, int], held: int
) -> None:
    """The second week of epoch 1: units of the first may have waited for it, and none of another epoch has."""
    plan, trustee = a_plan(window=(EPOCH + 168, EPOCH + 336)), cast.trustee()
    asked = an_unmasking(plan, ownerships=ownerships(epoch=1, window=(EPOCH + window[0], EPOCH + window[1])))
    if held:
        trustee.endorse(asked)
        return
    with pytest.raises(TooFewOwners, match=f"{held} tenants own row"):
        trustee.endorse(asked)


def test_a_round_of_another_version_is_not_endorsed(cast: Cast) -> None:
    trustee = cast.trustee()
    with pytest.raises(VersionsApart, match="this trustee speaks protocol"):
        trustee.endorse(an_unmasking(replace(a_plan(), protocol=PROTOCOL + 1)))
    assert trustee.rounds() == []


def test_one_row_that_is_too_rare_is_enough_to_refuse(cast: Cast) -> None:
    plan = a_plan()
    (rare,) = (dimension for dimension in plan.dimensions if dimension.name == "context_level")
    token = Token(bytes.fromhex(rare.levels[1]))
    told = (*OF_TWO, without(2, token))
    with pytest.raises(TooFewOwners, match=f"2 tenants own row context_level: {token}"):
        cast.trustee().endorse(an_unmasking(plan, ownerships=told))
    cast.trustee().endorse(an_unmasking(plan, ownerships=(*OF_TWO, ownership(2))))


@pytest.mark.parametrize("signer", ["stranger", "another tenant", "the provider", "a stranger in his own name"])
def test_the_word_of_an_owner_under_another_key_does_not_count(cast: Cast, signer: str) -> None:
    stranger = SigningKey.generate(os.urandom)
    said = reopened(Ownership, ownership(2))
    forgeries = {
        "stranger": forged_by(stranger, 2),
        "another tenant": forged_by(keys().tenants[0][0], 2),
        "the provider": forged_by(keys().provider, 2),
        "a stranger in his own name": stranger.sign(replace(said, tenant=tenant_id(stranger.public))),
    }
    trustee, plan = cast.trustee(), a_plan()
    with pytest.raises(BadSignature):
        trustee.endorse(an_unmasking(plan, ownerships=(*OF_TWO, forgeries[signer])))
    assert trustee.rounds() == []
    trustee.endorse(an_unmasking(plan))


def test_a_second_set_is_refused_and_kept_as_proof(cast: Cast) -> None:
    plan = a_plan()
    request = an_unmasking(plan)
    first = cast.trustee().endorse(request)
    another_contribution = contributed(plan, 0, nonce=Nonce(bytes(16)))
    others = [
        an_unmasking(plan, (0, 1, 2)),
        an_unmasking(plan, (0, 1), (2, 3, 4)),
        an_unmasking(plan, (another_contribution, *EVERYBODY[1:])),
        an_unmasking(plan, ownerships=ownerships()[:3]),
    ]
    for trustee in (cast.trustee(), cast.trustee()):  # reopened twice
        for other in others:
            with pytest.raises(AlreadyAnswered, match="endorsed another set"):
                trustee.endorse(other)
            with pytest.raises(AlreadyAnswered, match="did not endorse this set"):
                trustee.unmask(a_call(other, plan))
        assert trustee.endorse(request) == first
        assert trustee.conflicts() == sorted((plan.round_id, other) for other in others)


def test_a_forged_second_set_is_no_proof(cast: Cast) -> None:
    plan, trustee = a_plan(), cast.trustee()
    trustee.endorse(an_unmasking(plan))
    with pytest.raises(BadSignature):
        trustee.endorse(an_unmasking(plan, (0, 1, 2), signing_key=SigningKey.generate(os.urandom)))
    assert trustee.conflicts() == []


def test_of_two_sets_asked_for_at_the_same_time_one_is_endorsed(cast: Cast) -> None:
    """Whether the provider asks one process or two: the difference of two sets would be a single contribution."""
    for number, trustees in enumerate([[cast.trustee()] * 2, [cast.trustee(), cast.trustee()]], start=1):
        plan, barrier = a_week(number), Barrier(2, timeout=30)

        def ask(trustee: Trustee, tenants: tuple[int, ...], plan: Plan = plan, barrier: Barrier = barrier) -> bool:
            barrier.wait()
            try:
                trustee.endorse(an_unmasking(plan, tenants))
            except AlreadyAnswered:
                return False
            return True

        with ThreadPoolExecutor(2) as threads:
            answered = list(threads.map(ask, trustees, [EVERYBODY, EVERYBODY[1:]]))
        assert sum(answered) == 1


# ---- unmasking -----------------------------------------------------------------------------------------------------


def test_a_share_is_the_sum_of_the_masks_of_each_group(cast: Cast) -> None:
    plan, groups = a_plan(cohort_minimum=2), [(0, 4), (1, 2, 3)]
    request = an_unmasking(plan, *groups)
    share = unmasked(cast.trustee(4), request, plan)
    assert (opened(share).trustee, opened(share).round_id, opened(share).request) == (4, plan.round_id, named(request))
    for found, group in zip(sums(share), groups, strict=True):
        assert found.tolist() == masks_of(4, plan, group).tolist()
    assert decode(Signed, share).signature == decode(Signed, keys().trustees[3][1].sign(opened(share))).signature


def test_the_same_call_has_the_same_answer_across_restarts(cast: Cast) -> None:
    plan = a_plan()
    request = an_unmasking(plan)
    first = unmasked(cast.trustee(), request, plan)
    assert {cast.trustee().unmask(a_call(request, plan)) for _ in range(3)} == {first}


def test_another_round_is_another_matter(cast: Cast) -> None:
    trustee = cast.trustee()
    one, other = (unmasked(trustee, an_unmasking(plan), plan) for plan in (a_week(1), a_week(2)))
    assert not masks(one) & masks(other)


def test_nothing_is_unmasked_that_was_not_endorsed_here(cast: Cast) -> None:
    plan, trustee = a_plan(), cast.trustee()
    with pytest.raises(AlreadyAnswered, match="did not endorse this set"):
        trustee.unmask(a_call(an_unmasking(plan), plan))
    assert trustee.rounds() == []


@pytest.mark.parametrize(("endorsers", "missing"), [((), r"\[3, 4, 5\]"), ((3, 5), r"\[4\]"), ((1, 2, 3, 4), r"\[5\]")])
def test_every_mask_trustee_must_have_endorsed(cast: Cast, endorsers: tuple[int, ...], missing: str) -> None:
    plan, trustee = a_plan(), cast.trustee()
    request = an_unmasking(plan)
    trustee.endorse(request)
    with pytest.raises(OutOfOrder, match=f"lacks the endorsements of trustees {missing}"):
        trustee.unmask(a_call(request, plan, endorsers))
    assert trustee.rounds() == [(plan.round_id, named(request), False)]
    trustee.unmask(a_call(request, plan))


Bad = Callable[[bytes, Plan], bytes]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (lambda request, plan: an_endorsement(request, plan, 5, signer=4), BadSignature),
        (lambda request, plan: an_endorsement(request, plan, 6, signer=5), BadSignature),
        (lambda request, plan: an_endorsement(request, plan, 0, signer=5), BadSignature),
        (
            lambda request, plan: keys().provider.sign(reopened(Endorsement, an_endorsement(request, plan, 5))),
            BadSignature,
        ),
        (lambda request, plan: an_endorsement(request, plan, 4), OutOfOrder),
        (lambda request, plan: an_endorsement(request, plan, 5, round_id=RoundId(bytes(16))), OutOfOrder),
        (lambda request, plan: request, DecodeError),
        (lambda request, plan: b"", DecodeError),
    ],
    ids=["forged", "nobody's", "zero", "the provider's", "twice", "another round", "no endorsement", "nothing"],
)
def test_an_endorsement_that_is_none_opens_nothing(cast: Cast, bad: Bad, error: type[Exception]) -> None:
    plan, trustee = a_plan(), cast.trustee()
    request = an_unmasking(plan)
    trustee.endorse(request)
    good = tuple(an_endorsement(request, plan, index) for index in (3, 4))
    with pytest.raises(error):
        trustee.unmask(encode(UnmaskCall(request, (*good, bad(request, plan)))))
    assert trustee.rounds() == [(plan.round_id, named(request), False)]
    assert trustee.conflicts() == []
    trustee.unmask(a_call(request, plan))


def test_trustees_that_were_told_different_sets_find_out_and_unmask_nothing(cast: Cast) -> None:
    """Real parties: the provider asks two trustees for sets that differ by one tenant, and gathers what they say."""
    plan = a_plan()
    told = {3: an_unmasking(plan), 4: an_unmasking(plan), 5: an_unmasking(plan, EVERYBODY[1:])}
    words = {index: cast.trustee(index).endorse(request) for index, request in told.items()}
    for index, request in told.items():
        trustee = cast.trustee(index)
        with pytest.raises(Equivocation, match="endorsed another set") as fault:
            trustee.unmask(encode(UnmaskCall(request, tuple(words.values()))))
        assert "proof" in fault.value.diagnostics()
        assert all(not unmasked for _, _, unmasked in trustee.rounds())
    assert [word for _, word in cast.trustee(3).conflicts()] == [words[5]]
    assert [word for _, word in cast.trustee(5).conflicts()] == [words[3]]
    assert cast.trustee(4).conflicts() == [(plan.round_id, words[5])]


def test_a_plan_swapped_for_a_laxer_one_unmasks_nothing_of_the_first(cast: Cast) -> None:
    """Tenants masked under a plan of four; the provider shows the trustee one of two with the same round id."""
    seen, shown = a_plan(cohort_minimum=4), a_plan(cohort_minimum=2)
    assert seen.round_id == shown.round_id
    honest, fooled = cast.trustee(4), cast.trustee(5)
    for trustee in (honest, fooled):
        with pytest.raises(CohortTooSmall):
            trustee.endorse(an_unmasking(seen, (0, 1)))
    for trustee in (honest, fooled):
        with pytest.raises(MemberRefused, match="the contribution answers another plan"):
            trustee.endorse(an_unmasking(shown, [contributed(seen, tenant) for tenant in (0, 1)]))
    useless = masks(unmasked(fooled, an_unmasking(shown, (0, 1)), shown))
    assert not useless & set(map(int, masks_of(5, seen, (0, 1))))
    with pytest.raises(AlreadyAnswered):
        fooled.endorse(an_unmasking(seen))
    honest.endorse(an_unmasking(seen))


# ---- the windows of an epoch -----------------------------------------------------------------------------------------


def test_of_two_rounds_in_one_window_one_is_endorsed(cast: Cast) -> None:
    """Two connections to one memory, as two processes have them; the other request is kept as proof."""
    one = a_week(2)
    other = replace(one, round_id=RoundId(b"o" * 16))
    requests = {plan.round_id: an_unmasking(plan) for plan in (one, other)}
    trustees, together = {plan.round_id: cast.trustee() for plan in (one, other)}, Barrier(2)

    def endorsed(round_id: RoundId) -> bool:
        together.wait(30)
        try:
            trustees[round_id].endorse(requests[round_id])
        except AlreadyAnswered:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        answers = dict(zip(requests, threads.map(endorsed, requests), strict=True))
    assert sorted(answers.values()) == [False, True]
    (first,) = (name for name, answer in answers.items() if answer)
    (second,) = answers.keys() - {first}
    again = cast.trustee()
    assert [name for name, _, _ in again.rounds()] == [first]
    assert again.conflicts() == [(second, requests[second])]
    with pytest.raises(AlreadyAnswered, match="or for its window"):
        again.endorse(requests[second])
    again.endorse(requests[first])


@pytest.mark.parametrize("index", [1, 3])
def test_one_set_for_each_window_in_any_order_whether_a_trustee_masks_or_not(cast: Cast, index: int) -> None:
    weeks = [a_week(number) for number in (3, 1, 2)]
    for plan in weeks:
        cast.trustee(index).endorse(an_unmasking(plan))
    for plan in weeks:
        other = replace(plan, round_id=RoundId(plan.round_id[::-1]))
        with pytest.raises(AlreadyAnswered, match="or for its window"):
            cast.trustee(index).endorse(an_unmasking(other))
    assert len(cast.trustee(index).conflicts()) == 3


@pytest.mark.parametrize(
    "windows",
    [
        (*range(0, 13 * 168, 336), 13 * 168),
        tuple(range(0, 13 * 168, 168)),
        (0, 336, *range(504, 14 * 168, 168)),
    ],
    ids=["longer ones", "the last one left out", "two in one"],
)
def test_an_epoch_keeps_the_windows_that_it_began_with(cast: Cast, windows: tuple[int, ...]) -> None:
    """Else an hour might be opened in two windows. What is refused is neither bound nor proof."""
    cast.trustee().endorse(an_unmasking(a_week(1)))
    start, end = windows[2:4]
    moved = replace(a_week(2), windows=windows, start_hour=start, end_hour=end)
    for request in (an_unmasking(moved), given_up(moved)):
        with pytest.raises(PlanRefused, match="divides epoch 0 into other windows"):
            cast.trustee().endorse(request)
    assert len(cast.trustee().rounds()) == 1
    assert cast.trustee().conflicts() == []
    cast.trustee().endorse(an_unmasking(a_week(2)))


@pytest.mark.parametrize(
    ("epoch", "windows"),
    [(1, (0, 168)), (0, (0, 168, EPOCH + 1)), (1, (EPOCH - 1, EPOCH + 168)), (0, (EPOCH, EPOCH + 168))],
)
def test_windows_lie_in_their_epoch(cast: Cast, epoch: int, windows: tuple[int, ...]) -> None:
    """Else a window of one epoch might be opened again in another one."""
    bad = replace(a_week(1), epoch=epoch, windows=windows, start_hour=windows[0], end_hour=windows[1])
    for request in (an_unmasking(bad), given_up(bad)):
        with pytest.raises(PlanRefused, match=f"has windows outside of epoch {epoch}"):
            cast.trustee().endorse(request)
    assert cast.trustee().rounds() == []


# ---- rounds that are given up ----------------------------------------------------------------------------------------


def test_a_round_is_given_up_by_an_empty_set_which_needs_no_cohort_and_opens_nothing(cast: Cast) -> None:
    plan, trustee = a_plan(), cast.trustee()
    request = given_up(plan)
    word = trustee.endorse(request)
    assert reopened(Endorsement, word).endorsed == EndorsedSet(plan.round_id, plan.directory, 0, *WEEK, ()).name
    with pytest.raises(PlanRefused, match="was given up: nothing of it is ever unmasked"):
        trustee.unmask(a_call(request, plan))
    assert cast.trustee().endorse(request) == word
    assert trustee.rounds() == [(plan.round_id, named(request), False)]


def test_a_window_that_was_given_up_has_no_other_set_for_ever(cast: Cast) -> None:
    """Its tenants count its units again: to open them as well would count them twice."""
    plan, trustee = a_plan(), cast.trustee()
    trustee.endorse(given_up(plan))
    again = replace(plan, round_id=RoundId(b"o" * 16))
    for of in (plan, again):
        with pytest.raises(AlreadyAnswered):
            trustee.endorse(an_unmasking(of))
        with pytest.raises(AlreadyAnswered):
            trustee.unmask(a_call(an_unmasking(of), of))
    assert trustee.conflicts() == sorted((of.round_id, an_unmasking(of)) for of in (plan, again))
    trustee.endorse(an_unmasking(a_week(2)))


def test_a_set_that_was_endorsed_is_not_given_up_and_to_ask_for_it_is_no_fault(cast: Cast) -> None:
    """The provider cannot know which trustees heard its first request before it was lost."""
    plan, trustee = a_plan(), cast.trustee()
    request = an_unmasking(plan)
    share = unmasked(trustee, request, plan)
    for of in (plan, replace(plan, round_id=RoundId(b"o" * 16))):
        with pytest.raises(AlreadyAnswered):
            trustee.endorse(given_up(of))
    assert trustee.conflicts() == []
    assert trustee.unmask(a_call(request, plan)) == share


def test_who_hears_that_others_gave_the_round_up_unmasks_nothing(cast: Cast) -> None:
    plan = a_plan()
    request = an_unmasking(plan)
    told = {3: request, 4: request, 1: request, 5: given_up(plan)}
    words = tuple(cast.trustee(index).endorse(asked) for index, asked in told.items())
    with pytest.raises(Equivocation, match="trustee 5 endorsed another set"):
        cast.trustee(3).unmask(encode(UnmaskCall(request, words)))


# ---- secrets -------------------------------------------------------------------------------------------------------


def test_no_secret_shows_in_a_repr(cast: Cast) -> None:
    share, *_ = keys().trustees[0]
    secret = share.secret.encoded
    for shown in (repr(cast.trustee(1)), repr(share), str(KeyShare(1, share.secret)), repr(keys().provider)):
        assert secret.hex() not in shown
        assert str(secret) not in shown
        assert str(int.from_bytes(secret, "little")) not in shown
