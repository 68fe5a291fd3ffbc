"""The directory of members and their keys: a hash chain of signed entries.

    entry 0 ◀─digest─ entry 1 ◀─digest─ entry 2        the digest of the newest is the head

Guarantees:

- A party that pinned a head accepts only entries that continue its chain, signed by the same provider.
- A plan names the head under which its round is held. Tenants answer under the newest, or one with the same seats.
- A mask key that a seat gave up takes no seat again.
- A tenant's record has the tenant's signature over its mask key, so the provider cannot swap the key, and a proof of
  possession by the mask key. A member that returns cannot use an older mask key.
- The token key, the threshold and the length of an epoch never change. Who holds a trustee's seat, and the shares of
  the key, change only by the signatures of as many trustees as the threshold says (`federation.protocol.seats`).
- The keys of passes (`federation.protocol.passes`) are one for everybody, and that of a week never changes.

Not promised: that two parties pinned the same chain unless they compare heads (a round with different heads fails), nor
that a member is who the provider says it is.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from crypto.codec import Count, Few, Many, Message, Record, decode, digest, encode, is_labelled
from crypto.errors import BadSignature, PeerFault, Refusal
from crypto.ids import Digest, EncodedElement, MaskPublicKey, SignatureBytes, TenantId, VerifyKey
from crypto.possession import MaskKeyClaim, check_possession
from crypto.ristretto import Element
from crypto.signing import Signed, SigningKey, name_of, open_signed, tenant_id
from federation.protocol.pass_messages import PassKeys
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.seats import Reseating, ReseatingRefused, Seats, TrusteeRecord, check_reseating

if TYPE_CHECKING:  # masks are numpy's words: who reads a directory makes none
    from crypto.masking import MaskKey

M = TypeVar("M", bound=Message)

NOTHING_BEFORE = Digest(bytes(Digest.length))


class TrustChanged(Refusal):
    """The provider's directory has other trustees, another token key or another epoch length than the pinned one."""

    default_hint = "ask the trustees' owners; if the change is intended, enrol again to pin the new directory"


class Fork(PeerFault):
    """The provider's directory does not continue the pinned one."""

    default_hint = "compare heads with other tenants and trustees: the provider may show each a different directory"


class UnknownHead(Refusal):
    """A plan names a directory entry that is not known here, or not yet."""

    default_hint = "the provider must send the newer entries first; ask it to try again"


class SeatsChanged(Refusal):
    """A plan names trustees, or mask keys of theirs, that a newer entry of the directory has replaced."""

    default_hint = "no action: nothing was sent; the provider gives this round up, and its units count in the next"


class Member(Record, frozen=True):
    """A tenant's public keys; `claim` and `possession` are the signatures of both over one `MaskKeyClaim`."""

    verify_key: VerifyKey
    mask_key: MaskPublicKey
    made_hour: Count
    claim: SignatureBytes
    possession: SignatureBytes

    @classmethod
    def of(cls, signing_key: SigningKey, mask_key: "MaskKey", made_hour: int) -> "Member":
        """The record of the holder of both keys, for enrolment."""
        claim = MaskKeyClaim(signing_key.public, mask_key.public, made_hour)
        signature = decode(Signed, signing_key.sign(claim)).signature
        return cls(signing_key.public, mask_key.public, made_hour, signature, mask_key.prove(claim))

    @property
    def tenant(self) -> TenantId:
        """The id, derived from the signing key."""
        return tenant_id(self.verify_key)

    def check(self) -> None:
        """Returns if the tenant claimed the mask key, and whoever made the claim holds it; BadSignature otherwise."""
        _check_member(self)


@lru_cache(maxsize=2**14)  # a chain is read again from its first entry whenever a home is opened
def _check_member(member: Member) -> None:
    claim = MaskKeyClaim(member.verify_key, member.mask_key, member.made_hour)
    try:
        open_signed(MaskKeyClaim, encode(Signed(member.claim, memoryview(encode(claim)))), member.verify_key)
    except BadSignature as error:
        raise BadSignature(
            f"the mask key of tenant {member.tenant.hex()[:12]}… is not signed by the tenant",
            hint="the key may have been swapped at enrolment; ask the tenant for its card",
        ) from error
    check_possession(claim, member.possession)


class DirectoryEntry(Message, frozen=True, tag="pharoah/directory-entry/1"):
    """An entry of the directory: members that joined and left, and the values that never change."""

    number: Count
    previous: Digest
    provider: VerifyKey
    threshold: Count
    group_key: EncodedElement
    trustees: Few[TrusteeRecord]
    weeks_per_epoch: Count
    joined: Many[Member]
    left: Many[TenantId]

    def __post_init__(self) -> None:
        if sorted(trustee.index for trustee in self.trustees) != list(range(1, len(self.trustees) + 1)):
            raise ValueError("trustees are numbered from 1, each number once")
        if not 1 <= self.threshold <= len(self.trustees):
            raise ValueError("the threshold must lie between 1 and the number of trustees")
        if self.weeks_per_epoch < 1:
            raise ValueError("an epoch has at least one week")
        # One mask key under two names would make one mask stream pass for two.
        _require_distinct("a trustee", [trustee.mask_key for trustee in self.trustees])
        _require_distinct("a trustee", [trustee.verify_key for trustee in self.trustees])
        _require_distinct("a member", [member.mask_key for member in self.joined])
        _require_distinct("a member", [member.verify_key for member in self.joined])

    @property
    def settled(self) -> tuple[VerifyKey, int, EncodedElement, tuple[TrusteeRecord, ...], int]:
        """The values that the first entry fixes for all later ones."""
        return self.provider, self.threshold, self.group_key, self.trustees, self.weeks_per_epoch


class WeekOfPasses(NamedTuple):
    """The public key under which the passes of a week are issued, and how many batches each member gets."""

    key: Element
    batches: int


NO_PASSES: Mapping[int, WeekOfPasses] = MappingProxyType({})


@dataclass(frozen=True)
class Directory:
    """The directory as of one entry, whose digest is `head`. `left` are those who left, with the keys they last had.

    `retired` are the mask keys that seats had before. `passes` are by week since 1970; none where the provider issues
    none.
    """

    head: Digest
    number: int
    provider: VerifyKey
    threshold: int
    group_key: EncodedElement
    trustees: tuple[TrusteeRecord, ...]
    weeks_per_epoch: int
    by_id: Mapping[TenantId, Member]
    left: Mapping[TenantId, Member]
    retired: frozenset[MaskPublicKey] = frozenset()
    passes: Mapping[int, WeekOfPasses] = field(default_factory=lambda: NO_PASSES)

    def masks(self, index: int, mask_key: MaskPublicKey) -> bool:
        """Whether this is the mask key of that trustee."""
        return any((trustee.index, trustee.mask_key) == (index, mask_key) for trustee in self.trustees)

    @property
    def members(self) -> tuple[Member, ...]:
        """All members, in order of joining."""
        return tuple(self.by_id.values())

    def member(self, tenant: TenantId) -> Member:
        """The keys of `tenant`; BadSignature for a stranger, since nothing that it signs can be checked."""
        found = self.by_id.get(tenant)
        if found is None:
            raise BadSignature(f"tenant {tenant.hex()[:12]}… is not in the directory", hint="enrol it first")
        return found

    def verify_key(self, tenant: TenantId) -> VerifyKey:
        """The pinned key of the tenant that a message names first, as its sender."""
        return self.member(tenant).verify_key

    def epoch(self, hour: float) -> int:
        """The epoch that an hour lies in; tokens change with it."""
        return int(hour // (HOURS_PER_WEEK * self.weeks_per_epoch))

    def trustee(self, index: int) -> TrusteeRecord:
        """The trustee of that number; BadSignature for one that is none."""
        if not 1 <= index <= len(self.trustees):
            raise BadSignature(f"there is no trustee {index}", hint="compare the directories")
        return self._by_index[index]

    @property
    def quorum(self) -> int:
        """How many trustees endorse a set before any of them unmasks it.

        Two quorums have at least `threshold` trustees in common: one more than may collude or lose their memory
        (docs/privacy.md).
        """
        return min(len(self.trustees), (len(self.trustees) + self.threshold - 1) // 2 + 1)

    @cached_property
    def _by_index(self) -> dict[int, TrusteeRecord]:
        return {trustee.index: trustee for trustee in self.trustees}


class Chain:
    """A directory with all its signed entries. Immutable; `extended` returns a longer one."""

    def __init__(self, entries: Sequence[bytes], directories: Mapping[Digest, Directory]) -> None:
        self.entries = tuple(entries)
        self._directories = directories
        self.founding, self.directory = next(iter(directories.values())), list(directories.values())[-1]

    @classmethod
    def begin(cls, founding: bytes, provider: VerifyKey) -> "Chain":
        """The chain that starts with the signed entry `founding` of the pinned `provider`."""
        entry = open_signed(DirectoryEntry, founding, provider)
        if entry.number > 0 or entry.previous != NOTHING_BEFORE or entry.left:
            raise Fork("a directory does not start with its first entry")
        first = _stepped(None, entry, name_of(founding))
        return cls((founding,), {first.head: first})

    def extended(self, entries: Iterable[bytes]) -> "Chain":
        """This chain and the signed entries that lead on from it; those that it has already are skipped.

        Raises Fork for an entry that does not fit, TrustChanged for another committee or another key of a week,
        BadSignature for a swapped key, ReseatingRefused for trustees that changed without enough handovers.
        """
        signed, directories = list(self.entries), dict(self._directories)
        newest = self.directory
        for data in entries:
            if data in signed:
                continue
            body = decode(Signed, data).body
            if is_labelled(Reseating, body):
                newest = _reseated(newest, open_signed(Reseating, data, newest.provider), digest(body))
            elif is_labelled(PassKeys, body):
                newest = _with_passes(newest, open_signed(PassKeys, data, newest.provider), digest(body))
            else:
                newest = _stepped(newest, open_signed(DirectoryEntry, data, newest.provider), digest(body))
            directories[newest.head] = newest
            signed.append(data)
        return Chain(signed, directories)

    def at(self, head: Digest) -> Directory:
        """The directory as of the entry whose digest is `head`; UnknownHead if the chain has none."""
        found = self._directories.get(head)
        if found is None:
            raise UnknownHead(f"no directory with the head {head.hex()[:16]}… is pinned here")
        return found

    def has_same_seats(self, head: Digest) -> bool:
        """Whether nobody's seat, keys or address changed since the entry whose digest is `head`; errors as of `at`."""
        return self.at(head).trustees == self.directory.trustees

    @property
    def directories(self) -> Collection[Directory]:
        """The directory after each entry, oldest first."""
        return self._directories.values()

    def since(self, number: int) -> tuple[bytes, ...]:
        """The signed entries from `number` on."""
        return self.entries[number:]


def next_entry(before: Directory, *, joined: Sequence[Member] = (), left: Sequence[TenantId] = ()) -> DirectoryEntry:
    """The entry by which members join and leave after `before`."""
    return DirectoryEntry(
        before.number + 1,
        before.head,
        before.provider,
        before.threshold,
        before.group_key,
        before.trustees,
        before.weeks_per_epoch,
        tuple(joined),
        tuple(left),
    )


def open_of_seat(kind: type[M], signed: bytes, seat: int, then: Directory, now: Directory) -> M:
    """What the holder of a seat signed of a round under `then`; where the seat changed hands since, either may have."""
    try:
        return open_signed(kind, signed, now.trustee(seat).verify_key)
    except BadSignature:
        return open_signed(kind, signed, then.trustee(seat).verify_key)


def reseating(before: Directory, trustees: Sequence[TrusteeRecord], handovers: Sequence[bytes]) -> Reseating:
    """The entry by which `trustees` take the seats after `before`."""
    return Reseating(before.number + 1, before.head, tuple(trustees), tuple(handovers))


def pass_keys(before: Directory, first_week: int, batches: int, keys: Sequence[Element]) -> PassKeys:
    """The entry by which passes are issued under `keys` from `first_week` on."""
    encoded = tuple(EncodedElement(key.encoded) for key in keys)
    return PassKeys(before.number + 1, before.head, first_week, batches, encoded)


def _with_passes(before: Directory, entry: PassKeys, head: Digest) -> Directory:
    _check_place(before, entry)
    if entry.first_week <= max(before.passes, default=-1):
        raise TrustChanged(f"entry {entry.number} changes the key of passes of a week that has one")
    weeks = {
        week: WeekOfPasses(Element.decode(key), entry.batches) for week, key in enumerate(entry.keys, entry.first_week)
    }
    passes = MappingProxyType({**before.passes, **weeks})
    return replace(before, head=head, number=entry.number, passes=passes)


def _reseated(before: Directory, entry: Reseating, head: Digest) -> Directory:
    _check_place(before, entry)
    seats = Seats.of(before.trustees)
    key = seats.key(before.threshold, before.group_key)
    check_reseating(key, seats, Seats(entry.trustees), entry.handovers)
    old, new = ({trustee.mask_key for trustee in trustees} for trustees in (before.trustees, entry.trustees))
    if back := [trustee.index for trustee in entry.trustees if trustee.mask_key in before.retired]:
        raise ReseatingRefused(
            f"entry {entry.number} brings back mask keys that trustees {back} had before",
            hint="their cards are old ones; each hands out its newest, and all hand over again",
        )
    retired = before.retired | (old - new)
    return replace(before, head=head, number=entry.number, trustees=entry.trustees, retired=retired)


def _stepped(before: Directory | None, entry: DirectoryEntry, head: Digest) -> Directory:
    if before is not None:
        _check_step(before, entry)
    for trustee in () if before else entry.trustees:
        trustee.check()
    for member in entry.joined:
        member.check()
    by_id, left = (dict(before.by_id), dict(before.left)) if before else ({}, {})
    for tenant in entry.left:
        if tenant not in by_id:
            raise Fork(f"entry {entry.number} removes tenant {tenant.hex()[:12]}…, who is not a member")
        left[tenant] = by_id.pop(tenant)
    for member in entry.joined:
        _check_return(entry, member, by_id, left.pop(member.tenant, None))
        by_id[member.tenant] = member
    if len({member.mask_key for member in by_id.values()}) != len(by_id):
        raise Fork(f"after entry {entry.number} two members have one mask key")
    retired = before.retired if before else frozenset[MaskPublicKey]()
    passes = before.passes if before else NO_PASSES
    return Directory(head, entry.number, *entry.settled, by_id, left, retired, passes)


def _check_return(
    entry: DirectoryEntry, member: Member, by_id: Mapping[TenantId, Member], before: Member | None
) -> None:
    """A returning member must have its last mask key or a newer one: an older one may be known to others."""
    if member.tenant in by_id:
        raise Fork(f"entry {entry.number} adds tenant {member.tenant.hex()[:12]}… again")
    if before and before.mask_key != member.mask_key and before.made_hour >= member.made_hour:
        raise Fork(f"entry {entry.number} brings tenant {member.tenant.hex()[:12]}… back with an older mask key")


def _check_place(before: Directory, entry: DirectoryEntry | Reseating | PassKeys) -> None:
    if entry.number != before.number + 1 or entry.previous != before.head:
        raise Fork(f"entry {entry.number} does not continue entry {before.number}")


def _check_step(before: Directory, entry: DirectoryEntry) -> None:
    _check_place(before, entry)
    settled = (before.provider, before.threshold, before.group_key, before.trustees, before.weeks_per_epoch)
    if entry.settled != settled:
        raise TrustChanged(f"entry {entry.number} changes values that entry {before.number} fixed")


def _require_distinct(owner: str, keys: Sequence[bytes]) -> None:
    if len(set(keys)) != len(keys):
        raise ValueError(f"two entries have the same key of {owner}")
