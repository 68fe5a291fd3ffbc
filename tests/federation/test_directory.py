"""A directory only grows, by entries that lead on from what is pinned; whatever else is shown changes nothing."""

import json
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given, settings, strategies as st

from crypto.codec import decode, digest, encode
from crypto.errors import BadSignature, DecodeError, PeerFault, Refusal
from crypto.ids import Digest, MaskPublicKey, Signature, TenantId, VerifyKey
from crypto.masking import MaskKey
from crypto.possession import MaskKeyClaim
from crypto.signing import Signed, SigningKey, open_signed, tenant_id
from federation.base.pinned_directory import pin, pinned
from federation.protocol import directory as module
from federation.protocol.directory import (
    NOTHING_BEFORE,
    Chain,
    Directory,
    DirectoryEntry,
    Fork,
    Member,
    TrustChanged,
    UnknownHead,
    next_entry,
)
from federation.protocol.round_messages import DirectoryUpdate, Receipt
from tenant_client.doctor.records.database import open_database
from tests.support.changing import replace
from tests.support.curve25519 import aliases
from tests.support.factories import Cast, keys

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "directory.json").read_text())
PROVIDER = VerifyKey(bytes.fromhex(VECTORS["provider"]))
ENTRIES = tuple(bytes.fromhex(entry) for entry in VECTORS["entries"])
CAST = [(SigningKey(bytes([number]) * 32), MaskKey(bytes([64 + number]) * 32)) for number in range(1, 9)]
MADE = 1000  # the hour of their mask keys
STRANGERS = [Member.of(*pair, MADE) for pair in CAST]
STRANGER = STRANGERS[0]
RENEWED = MaskKey(bytes([200]) * 32)


def errors_of(name: str) -> type[Exception]:
    found: type[Exception] = getattr(module, name)
    return found


def founding() -> Chain:
    return Chain.begin(keys().founding, keys().provider.public)


def step(before: Directory, *, joined: Sequence[Member] = (), left: Sequence[TenantId] = (), **changes: Any) -> bytes:
    """The signed entry after `before`, with fields replaced."""
    return keys().provider.sign(replace(next_entry(before, joined=joined, left=left), **changes))


# ---- vectors -------------------------------------------------------------------------------------------------------


def test_the_good_chain_of_the_vectors_grows_entry_by_entry() -> None:
    chain = Chain.begin(ENTRIES[0], PROVIDER)
    for number, entry in enumerate(ENTRIES):
        chain = chain.extended([entry])
        assert (chain.directory.number, chain.directory.head.hex()) == (number, VECTORS["heads"][number])
        assert [tenant.hex() for tenant in chain.directory.by_id] == VECTORS["members"][number]
        assert chain.entries == ENTRIES[: number + 1]
    assert chain.directory == Chain.begin(ENTRIES[0], PROVIDER).extended(ENTRIES[1:]).directory


@pytest.mark.parametrize("bad", VECTORS["bad_founding"], ids=lambda bad: str(bad["comment"]))
def test_no_directory_begins_with_a_bad_entry(bad: dict[str, str]) -> None:
    with pytest.raises(errors_of(bad["error"])):
        Chain.begin(bytes.fromhex(bad["entry"]), PROVIDER)


@pytest.mark.parametrize("bad", VECTORS["bad_entries"], ids=lambda bad: str(bad["comment"]))
def test_a_bad_entry_is_refused_and_a_good_one_is_taken_after_it(bad: dict[str, str]) -> None:
    chain = Chain.begin(ENTRIES[0], PROVIDER).extended(ENTRIES[1:])
    with pytest.raises(errors_of(bad["error"])) as caught:
        chain.extended([bytes.fromhex(bad["entry"])])
    assert type(caught.value).__name__ == bad["error"]
    assert caught.value.hint  # type: ignore[attr-defined]
    assert chain.entries == ENTRIES
    assert chain.directory.head.hex() == VECTORS["heads"][-1]


def test_entries_are_refused_before_those_that_they_lead_on_from() -> None:
    first, *later = ENTRIES
    for order in ([2, 1], [3], [1, 3], [1, 3, 2]):
        with pytest.raises(Fork):
            Chain.begin(first, PROVIDER).extended([ENTRIES[number] for number in order])
    assert Chain.begin(first, PROVIDER).extended(later).directory.number == 3


# ---- one rule after the other --------------------------------------------------------------------------------------


def test_the_head_is_the_digest_of_the_newest_entry_and_names_the_one_before() -> None:
    chain = founding()
    for member in STRANGERS[:3]:
        chain = chain.extended([step(chain.directory, joined=[member])])
    opened = [open_signed(DirectoryEntry, entry, keys().provider.public) for entry in chain.entries]
    assert opened[0].previous == NOTHING_BEFORE
    assert all(later.previous == digest(encode(earlier)) for earlier, later in pairwise(opened))
    assert chain.directory.head == digest(encode(opened[-1]))
    assert [entry.number for entry in opened] == [0, 1, 2, 3]


def test_two_entries_after_one_are_a_fork_whichever_comes_first() -> None:
    chain = founding()
    one, other = (step(chain.directory, joined=[member]) for member in STRANGERS[:2])
    for first, second in ((one, other), (other, one)):
        with pytest.raises(Fork, match="entry 1 does not continue entry 1") as caught:
            chain.extended([first, second])
        assert "compare heads with other tenants" in caught.value.hint
        assert isinstance(caught.value, PeerFault)


def test_a_gap_is_a_fork() -> None:
    chain = founding()
    middle = chain.extended([step(chain.directory, joined=[STRANGER])])
    last = step(middle.directory, left=[STRANGER.tenant])
    with pytest.raises(Fork, match="entry 2 does not continue entry 0"):
        chain.extended([last])
    assert middle.extended([last]).directory.number == 2


def test_entries_that_are_known_already_are_harmless_wherever_they_stand() -> None:
    chain = founding()
    one = step(chain.directory, joined=[STRANGER])
    longer = chain.extended([one])
    two = step(longer.directory, left=[STRANGER.tenant])
    whole = longer.extended([two])
    for shown in (
        [keys().founding, one, two],
        [one, one, two],
        [one, two, two],
        [one, two, one, keys().founding],
        [one, keys().founding, two],
    ):
        assert chain.extended(shown).entries == whole.entries
        assert whole.extended(shown).directory == whole.directory
    assert whole.extended([]).entries == whole.entries
    assert chain.entries == (keys().founding,)  # a chain never changes


@pytest.mark.parametrize(
    "change",
    [
        lambda before: {"provider": STRANGER.verify_key},
        lambda before: {"threshold": before.threshold - 1},
        lambda before: {"group_key": before.trustees[0].share_key},
        lambda before: {"trustees": before.trustees[:-1]},
        lambda before: {"trustees": before.trustees[::-1]},
        lambda before: another_first(before, address="elsewhere:1"),
        lambda before: another_first(before, mask_key=STRANGER.mask_key),
        lambda before: another_first(before, verify_key=STRANGER.verify_key),
        lambda before: {"weeks_per_epoch": before.weeks_per_epoch + 1},
    ],
    ids=[
        "provider",
        "threshold",
        "signature key",
        "fewer trustees",
        "another order",
        "address",
        "mask key",
        "signing key",
        "epoch",
    ],
)
def test_who_is_trusted_does_not_change_by_an_entry(change: Any) -> None:
    before = founding().directory
    with pytest.raises(TrustChanged, match="entry 1 changes values that entry 0 fixed") as caught:
        founding().extended([step(before, **change(before))])
    assert isinstance(caught.value, Refusal)
    assert "enrol again to pin" in caught.value.hint


def another_first(before: Directory, **changes: Any) -> dict[str, Any]:
    """The first trustee changed."""
    first, *others = before.trustees
    return {"trustees": (replace(first, **changes), *others)}


def test_another_provider_cannot_go_on_with_the_chain_even_if_it_names_itself() -> None:
    own = CAST[0][0]
    entry = replace(next_entry(founding().directory), provider=own.public)
    for signer in (own.sign(entry), own.sign(next_entry(founding().directory))):
        with pytest.raises(BadSignature):
            founding().extended([signer])


def test_a_mask_key_that_its_tenant_did_not_sign_is_not_enrolled() -> None:
    own = STRANGERS[1]
    for swapped in (
        replace(STRANGER, mask_key=own.mask_key),
        replace(STRANGER, mask_key=own.mask_key, possession=own.possession),
        replace(STRANGER, made_hour=MADE + 1),
        replace(STRANGER, claim=STRANGERS[1].claim),
        replace(STRANGER, claim=STRANGER.possession),
        replace(STRANGER, claim=Signature(bytes(64))),
        replace(STRANGER, verify_key=STRANGERS[1].verify_key),
    ):
        with pytest.raises(BadSignature, match="is not signed by the tenant") as caught:
            founding().extended([step(founding().directory, joined=[swapped])])
        assert "may have been swapped" in caught.value.hint
        with pytest.raises(BadSignature):
            swapped.check()
    enrolled = founding().extended([step(founding().directory, joined=[STRANGER])])
    assert enrolled.directory.member(STRANGER.tenant) == STRANGER


def claimed(signing_key: SigningKey, mask_key: MaskPublicKey, possession: bytes, made_hour: int = MADE) -> Member:
    """The record of a tenant that signs for a mask key which it may not hold."""
    claim = MaskKeyClaim(signing_key.public, mask_key, made_hour)
    return Member(
        signing_key.public, mask_key, made_hour, decode(Signed, signing_key.sign(claim)).signature, possession
    )


def aliases_of(key: MaskPublicKey) -> list[MaskPublicKey]:
    """The key itself, and the key plus each point of small order: all that agree with it and are canonical."""
    return [key, *(MaskPublicKey(alias) for alias in aliases(key) if alias[31] < 0x80)]


@pytest.mark.parametrize(
    "victim", [keys().directory.members[0], keys().directory.trustees[4]], ids=["member", "trustee"]
)
@pytest.mark.parametrize("shift", range(8))
def test_nobody_is_enrolled_with_the_key_of_another_one_or_its_alias(victim: Member, shift: int) -> None:
    """It signs its claim itself, as it may; the proof is the victim's, its own, or that of its signing key."""
    signing, own = CAST[0]
    key = aliases_of(victim.mask_key)[shift]
    claim = MaskKeyClaim(signing.public, key, MADE)
    for proof in (victim.possession, own.prove(claim), decode(Signed, signing.sign(claim)).signature, bytes(64)):
        posing = claimed(signing, key, proof)
        with pytest.raises(BadSignature, match="no valid proof of possession for the mask key") as caught:
            founding().extended([step(founding().directory, joined=[posing])])
        assert "a copy of another member's" in caught.value.hint
        with pytest.raises(BadSignature, match="no valid proof of possession"):
            posing.check()


@pytest.mark.parametrize("shift", range(8))
def test_no_trustee_is_founded_with_the_key_of_another_one_or_its_alias(shift: int) -> None:
    """A trustee that is there may be met under two numbers by its own key alone, which no entry takes either."""
    entry = open_signed(DirectoryEntry, keys().founding, keys().provider.public)
    first, *others, last = entry.trustees
    key = aliases_of(last.mask_key)[shift]
    proofs = last.possession, keys().trustees[0][2].prove(MaskKeyClaim(first.verify_key, key, first.made_hour))
    for proof in proofs:
        posing = replace(first, mask_key=key, possession=proof)
        alone = replace(entry, trustees=(posing, *others), threshold=1)
        with pytest.raises(BadSignature, match="no valid proof of possession for the mask key"):
            Chain.begin(keys().provider.sign(alone), keys().provider.public)
        if shift:
            beside = replace(entry, trustees=(posing, *others, last))
            with pytest.raises(BadSignature, match="no valid proof of possession for the mask key"):
                Chain.begin(keys().provider.sign(beside), keys().provider.public)


def test_an_encoding_that_is_no_key_does_not_reach_the_directory() -> None:
    """The top bit, p and more, small order: whichever key of an entry it is, the entry does not decode."""
    entry = encode(next_entry(founding().directory, joined=[STRANGER]))
    trustee = founding().directory.trustees[0]
    for key in (STRANGER.mask_key, STRANGER.verify_key, trustee.mask_key, trustee.verify_key):
        flipped = [key[:31] + bytes([key[31] ^ 0x80])] if type(key) is MaskPublicKey else []  # else another point's
        for bad in (bytes(32), b"\1" + bytes(31), b"\xed" + b"\xff" * 30 + b"\x7f", b"\xff" * 32, *flipped):
            with pytest.raises(DecodeError, match="DirectoryEntry"):
                founding().extended([signed_bytes(keys().provider, entry.replace(key, bad))])


def signed_bytes(signer: SigningKey, body: bytes) -> bytes:
    """What `signer` would sign if it had no types."""
    signature = signer._private.sign(b"pharoah/signed/2\0" + digest(body))
    return encode(Signed(signature, memoryview(body)))


def test_a_founding_entry_is_checked_like_any_other() -> None:
    entry = open_signed(DirectoryEntry, keys().founding, keys().provider.public)
    first, *others = entry.joined
    swapped = replace(first, mask_key=STRANGER.mask_key)
    with pytest.raises(BadSignature, match="is not signed by the tenant"):
        Chain.begin(keys().provider.sign(replace(entry, joined=(swapped, *others))), keys().provider.public)


@pytest.mark.parametrize(
    "member",
    [STRANGER, Member.of(CAST[0][0], CAST[0][1], MADE + 9), Member.of(CAST[0][0], RENEWED, MADE + 1)],
    ids=["as it was", "the same key, claimed again", "a newer key"],
)
def test_a_tenant_comes_back_with_the_key_that_it_had_or_a_newer_one(member: Member) -> None:
    chain = founding().extended([step(founding().directory, joined=[STRANGER])])
    gone = chain.extended([step(chain.directory, left=[STRANGER.tenant])])
    with pytest.raises(BadSignature, match="is not in the directory"):
        gone.directory.member(STRANGER.tenant)
    back = gone.extended([step(gone.directory, joined=[member])])
    assert back.directory.member(STRANGER.tenant) == member
    assert STRANGER.tenant not in back.directory.left
    at_once = chain.extended([step(chain.directory, left=[STRANGER.tenant], joined=[member])])
    assert at_once.directory.members == back.directory.members


@pytest.mark.parametrize("made_hour", [0, MADE - 1, MADE])
def test_nobody_comes_back_with_an_older_mask_key(made_hour: int) -> None:
    """However long it was away, and however many came and went since; nor with another key of the same hour."""
    older = Member.of(CAST[0][0], RENEWED, made_hour)
    chain = founding().extended([step(founding().directory, joined=[STRANGER])])
    with pytest.raises(Fork, match=r"brings tenant .* back with an older mask key"):
        chain.extended([step(chain.directory, left=[STRANGER.tenant], joined=[older])])
    chain = chain.extended([step(chain.directory, left=[STRANGER.tenant])])
    for other in STRANGERS[1:4]:
        with pytest.raises(Fork, match=r"brings tenant .* back with an older mask key"):
            chain.extended([step(chain.directory, joined=[older])])
        chain = chain.extended([step(chain.directory, joined=[other])])
        chain = chain.extended([step(chain.directory, left=[other.tenant])])
    assert chain.extended([step(chain.directory, joined=[STRANGER])]).directory.member(STRANGER.tenant) == STRANGER


def test_who_was_renewed_does_not_fall_back_to_the_first_key() -> None:
    """What counts is the key that it left with last, not that it once was enrolled with the older one."""
    chain = founding().extended([step(founding().directory, joined=[STRANGER])])
    newer = Member.of(CAST[0][0], RENEWED, MADE + 1)
    chain = chain.extended([step(chain.directory, left=[STRANGER.tenant], joined=[newer])])
    chain = chain.extended([step(chain.directory, left=[STRANGER.tenant])])
    with pytest.raises(Fork, match=r"brings tenant .* back with an older mask key"):
        chain.extended([step(chain.directory, joined=[STRANGER])])
    assert chain.extended([step(chain.directory, joined=[newer])]).directory.member(newer.tenant) == newer


@pytest.mark.parametrize(
    ("joined", "left", "complaint"),
    [
        ([], [STRANGERS[1].tenant], "removes tenant .* who is not a member"),
        ([], [STRANGER.tenant, STRANGER.tenant], "removes tenant .* who is not a member"),
        ([STRANGERS[1]], [STRANGERS[1].tenant], "removes tenant .* who is not a member"),
        ([STRANGER], [], "adds tenant .* again"),
        ([Member.of(CAST[0][0], RENEWED, MADE + 1)], [], "adds tenant .* again"),
        ([Member.of(CAST[1][0], CAST[0][1], MADE)], [], "two members have one mask key"),
    ],
)
def test_nobody_leaves_who_is_not_there_and_nobody_is_there_twice(
    joined: list[Member], left: list[TenantId], complaint: str
) -> None:
    chain = founding().extended([step(founding().directory, joined=[STRANGER])])
    with pytest.raises(Fork, match=complaint):
        chain.extended([step(chain.directory, joined=joined, left=left)])


def test_a_mask_key_is_free_again_when_its_tenant_has_left() -> None:
    chain = founding().extended([step(founding().directory, joined=[STRANGER])])
    heir = Member.of(CAST[1][0], CAST[0][1], MADE)
    after = chain.extended([step(chain.directory, joined=[heir], left=[STRANGER.tenant])])
    assert after.directory.member(heir.tenant).mask_key == STRANGER.mask_key


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"threshold": 0}, "between 1 and the number of trustees"),
        ({"threshold": 6}, "between 1 and the number of trustees"),
        ({"trustees": ()}, "between 1 and the number of trustees"),
        ({"weeks_per_epoch": 0}, "an epoch has at least one week"),
        ({"trustees": keys().directory.trustees[1:]}, "numbered from 1"),
        ({"trustees": (*keys().directory.trustees, keys().directory.trustees[0])}, "each number once"),
        ({"joined": (STRANGER, STRANGER)}, "the same key of a member"),
        ({"joined": (STRANGER, Member.of(CAST[1][0], CAST[0][1], MADE))}, "the same key of a member"),
        ({"joined": (STRANGER, Member.of(CAST[0][0], CAST[1][1], MADE))}, "the same key of a member"),
    ],
)
def test_an_entry_checks_itself(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        replace(next_entry(keys().directory), **change)


@pytest.mark.parametrize("field", ["mask_key", "verify_key"])
def test_one_trustee_under_two_numbers_is_no_committee(field: str) -> None:
    first, second, *others = keys().directory.trustees
    doubled = (first, replace(second, **{field: getattr(first, field)}), *others)
    with pytest.raises(ValueError, match="the same key of a trustee"):
        replace(next_entry(keys().directory), trustees=doubled)


# ---- the view ------------------------------------------------------------------------------------------------------


def test_an_old_head_is_still_known_and_shows_who_was_there() -> None:
    chain = founding()
    heads = [chain.directory.head]
    for member in STRANGERS[:3]:
        chain = chain.extended([step(chain.directory, joined=[member])])
        heads.append(chain.directory.head)
    for number, head in enumerate(heads):
        seen = chain.at(head)
        assert (seen.number, seen.head, len(seen.members)) == (number, head, 5 + number)
    assert chain.at(heads[-1]) is chain.directory
    assert chain.since(0) == chain.entries
    assert chain.since(2) == chain.entries[2:]
    assert chain.since(9) == ()


def test_a_head_that_was_never_pinned_is_unknown() -> None:
    for head in (NOTHING_BEFORE, digest(b"another"), Digest(VECTORS_HEAD)):
        with pytest.raises(UnknownHead, match=f"no directory with the head {head.hex()[:16]}…") as caught:
            founding().at(head)
        assert "newer entries" in caught.value.hint


VECTORS_HEAD = bytes.fromhex(VECTORS["heads"][0])


def test_the_directory_finds_keys_by_the_id_that_follows_from_them() -> None:
    view = keys().directory
    member = view.members[2]
    assert member.tenant == tenant_id(member.verify_key)
    assert view.member(member.tenant) is member
    assert view.verify_key(member.tenant) == member.verify_key
    with pytest.raises(BadSignature, match=r"is not in the directory") as caught:
        view.member(STRANGER.tenant)
    assert caught.value.hint == "enrol it first"


def test_the_directory_finds_trustees_by_their_number() -> None:
    view = keys().directory
    assert [view.trustee(index).index for index in range(1, 6)] == [1, 2, 3, 4, 5]
    shuffled = replace(view, trustees=view.trustees[::-1])
    assert shuffled.trustee(2) == view.trustees[1]
    for index in (0, 6, -1, 2**62):
        with pytest.raises(BadSignature, match=f"there is no trustee {index}"):
            view.trustee(index)


def test_epochs_begin_where_their_weeks_do() -> None:
    view = replace(keys().directory, weeks_per_epoch=2)
    assert [view.epoch(hour) for hour in (0, 335.99, 336, 671, 672)] == [0, 0, 1, 1, 2]


# ---- any sequence --------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(st.sets(st.integers(0, len(STRANGERS) - 1), min_size=1), max_size=8), st.data())
def test_any_joins_and_leaves_replay_to_the_same_directory(toggled: list[set[int]], data: st.DataObject) -> None:
    """Whoever is there leaves, whoever is not joins; in one go, or in pieces, with old entries shown again."""
    chain, present = founding(), set[int]()
    for some in toggled:
        joined = [STRANGERS[number] for number in sorted(some - present)]
        left = [STRANGERS[number].tenant for number in sorted(some & present)]
        chain = chain.extended([step(chain.directory, joined=joined, left=left)])
        present ^= some
        there = {STRANGERS[number].tenant for number in present}
        assert set(chain.directory.by_id) - set(keys().directory.by_id) == there
    replayed = founding()
    while replayed.directory != chain.directory:
        until = data.draw(st.integers(replayed.directory.number + 1, chain.directory.number))
        since = data.draw(st.integers(0, replayed.directory.number + 1))
        replayed = replayed.extended(chain.entries[since : until + 1])
    assert replayed.entries == chain.entries
    assert replayed.directory.members == chain.directory.members
    for entry in chain.entries:
        head = digest(encode(open_signed(DirectoryEntry, entry, keys().provider.public)))
        assert replayed.at(head) == chain.at(head)


@settings(max_examples=60)
@given(st.permutations(range(1, 4)))
def test_entries_in_any_other_order_are_a_fork(order: list[int]) -> None:
    shown = [ENTRIES[number] for number in order]
    chain = Chain.begin(ENTRIES[0], PROVIDER)
    if order == sorted(order):
        assert chain.extended(shown).entries == ENTRIES
        return
    with pytest.raises(Fork):
        chain.extended(shown)


# ---- pinned by a tenant and by a trustee ---------------------------------------------------------------------------


class Follower(Protocol):
    chain: Chain

    def follow(self, update: bytes, /) -> bytes: ...


def again(cast: Cast, kind: str) -> Follower:
    return cast.tenant() if kind == "tenant" else cast.trustee()


@pytest.fixture(params=["tenant", "trustee"])
def follower(request: pytest.FixtureRequest, cast: Cast) -> tuple[Cast, str, Follower]:
    return cast, request.param, again(cast, request.param)


def told(party: Follower, *entries: bytes) -> Digest:
    return decode(Receipt, party.follow(encode(DirectoryUpdate(entries)))).held


def test_who_follows_acknowledges_the_head_and_has_it_after_reopening(follower: tuple[Cast, str, Follower]) -> None:
    cast, kind, party = follower
    assert told(party) == keys().directory.head
    one = step(keys().directory, joined=[STRANGER])
    longer = founding().extended([one])
    two = step(longer.directory, left=[STRANGER.tenant])
    whole = longer.extended([two])
    assert told(party, one) == longer.directory.head
    assert told(party, keys().founding, one, two) == whole.directory.head
    assert told(party, one) == whole.directory.head  # an older update takes nothing back
    reopened = again(cast, kind)
    assert reopened.chain.entries == whole.entries
    assert reopened.chain.directory == whole.directory
    assert reopened.chain.at(longer.directory.head) == longer.directory


@pytest.mark.parametrize("bad", range(5))
def test_a_bad_entry_changes_nothing_of_what_is_pinned(follower: tuple[Cast, str, Follower], bad: int) -> None:
    """Nor do the good entries that came with it."""
    cast, kind, party = follower
    one = step(keys().directory, joined=[STRANGER])
    longer = founding().extended([one])
    swapped = replace(STRANGERS[1], mask_key=STRANGERS[2].mask_key)
    shown, refusal = [
        ((one, step(longer.directory, joined=[swapped])), BadSignature),
        ((one, step(longer.directory, weeks_per_epoch=1)), TrustChanged),
        ((one, step(keys().directory, joined=[STRANGERS[1]])), Fork),
        ((one, CAST[0][0].sign(next_entry(longer.directory))), BadSignature),
        ((one, b"garbage"), DecodeError),
    ][bad]
    with pytest.raises(refusal):
        told(party, *shown)
    assert party.chain.entries == (keys().founding,)
    assert again(cast, kind).chain.entries == (keys().founding,)
    assert told(party, one) == longer.directory.head


def test_what_is_no_update_is_no_update(follower: tuple[Cast, str, Follower]) -> None:
    for garbage in (b"", keys().founding, encode(Receipt(keys().directory.head))):
        with pytest.raises(DecodeError):
            follower[2].follow(garbage)


def test_two_connections_that_pin_at_once_keep_one_chain(tmp_path: Path) -> None:
    """The second one meets what the first has kept; entries of another branch are refused there."""
    one, other = (step(keys().directory, joined=[member]) for member in STRANGERS[:2])
    with closing(open_database(tmp_path / "t.db")) as first, closing(open_database(tmp_path / "t.db")) as second:
        pin(first, [keys().founding, one])
        assert pin(second, [keys().founding, one]).entries == (keys().founding, one)
        with pytest.raises(Fork):
            pin(second, [other])
        assert pinned(first).entries == pinned(second).entries == (keys().founding, one)


@pytest.mark.parametrize("trustees", range(3, 12))
def test_two_quorums_have_an_honest_trustee_in_common(trustees: int) -> None:
    """For every threshold that a ceremony allows, and one fewer would not do."""
    for threshold in range(2, (trustees + 1) // 2 + 1):
        some = replace(founding().directory, trustees=keys().directory.trustees[:1] * trustees, threshold=threshold)
        colluding = threshold - 1
        assert 2 * some.quorum - trustees > colluding
        assert 2 * (some.quorum - 1) - trustees <= colluding
        assert some.quorum <= trustees
