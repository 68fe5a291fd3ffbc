"""The vectors of `reseating.json`: entries by which trustees' seats change hands, and entries by which none may.

What handovers hold sealed no directory opens; it is taken from the stream, as it lies.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from crypto.ids import Digest, EncodedElement
from crypto.masking import MaskKey
from crypto.resharing import combine_reshared, reshare, reshared_key
from crypto.ristretto import Element, mul_base
from crypto.signing import SigningKey, reopened
from crypto.threshold import Dealing, GroupKey, KeyShare, deal
from federation.protocol.directory import NOTHING_BEFORE, Chain, Directory, DirectoryEntry, next_entry, reseating
from federation.protocol.seats import Handover, Reseating, Seats, TrusteeRecord
from tests.support.changing import replace

Stream = Callable[[int], bytes]
Cases = list[dict[str, object]]

THRESHOLD, TRUSTEES = 3, 5
SEAT = 5  # that a successor takes


@dataclass(frozen=True)
class Holder:
    """The keys of whoever holds a seat, and its share of the token key."""

    signing: SigningKey
    mask: MaskKey
    share: KeyShare

    @classmethod
    def new(cls, stream: Stream, share: KeyShare) -> "Holder":
        return cls(SigningKey(stream(32)), MaskKey(stream(32)), share)

    def record(self, share_key: EncodedElement) -> TrusteeRecord:
        index = self.share.index
        address = f"trustee-{index}.example:7100"
        return TrusteeRecord.of(index, self.signing, self.mask, share_key, made_hour=10, address=address)


@dataclass(frozen=True)
class Change:
    """A change of seats after a directory: who holds them then, under the share keys of before."""

    before: Directory
    holders: Sequence[Holder]
    seats: Seats

    @classmethod
    def to(cls, before: Directory, holders: Sequence[Holder]) -> "Change":
        old = [trustee.share_key for trustee in before.trustees]
        records = (holder.record(share_key) for holder, share_key in zip(holders, old, strict=True))
        return cls(before, holders, Seats(tuple(records)))

    def handover(self, dealer: Holder, stream: Stream) -> Handover:
        """What a holder of before hands over."""
        return self.sealed(dealer, reshare(self.key, dealer.share, stream), stream)

    def sealed(self, dealer: Holder, dealt: Dealing, stream: Stream) -> Handover:
        """The same, of this dealing."""
        names = Seats(self.before.trustees).name, self.seats.name
        sealed = tuple(stream(80) for _ in dealt.shares)
        return Handover(dealer.share.index, *names, _encoded(dealt.commitments), sealed)

    @property
    def key(self) -> GroupKey:
        return Seats(self.before.trustees).key(self.before.threshold, self.before.group_key)

    def entry(self, handovers: Sequence[bytes]) -> Reseating:
        """The entry by which it comes into force."""
        opened = [reopened(Handover, signed) for signed in handovers]
        committed = {one.dealer: tuple(map(Element.decode, one.commitments)) for one in opened}
        keys = _encoded(reshared_key(self.key, committed).share_public_keys)
        return reseating(self.before, self.seats.under(keys).trustees, handovers)


def reseatings(stream: Stream) -> dict[str, object]:
    """Shares are renewed, one seat changes hands, a mask key is renewed; and what must be refused."""
    provider = SigningKey(stream(32))
    dealing = deal(THRESHOLD, TRUSTEES, stream)
    holders = [Holder.new(stream, KeyShare(seat, share)) for seat, share in enumerate(dealing.shares, 1)]
    founding = provider.sign(founding_of(provider, dealing, holders))
    chain = Chain.begin(founding, provider.public)
    renewal = Change.to(chain.directory, holders)
    bad = _bad(provider, renewal, holders, stream)
    handed = [holder.signing.sign(renewal.handover(holder, stream)) for holder in holders[:THRESHOLD]]
    renewed = chain.extended([provider.sign(renewal.entry(handed))])
    replayed = replace(renewal.entry(handed), number=2, previous=renewed.directory.head)
    successor = Holder.new(stream, holders[SEAT - 1].share)
    succeeded, _ = _changed(chain, provider, holders[:THRESHOLD], [*holders[:-1], successor], stream)
    fresh = [*holders[:-1], replace(holders[-1], mask=MaskKey(stream(32)))]
    masked, after = _changed(chain, provider, holders[:THRESHOLD], fresh, stream)
    back = _retired(masked, after, replace(after[-1], mask=holders[-1].mask), stream)
    good = {
        "nobody hands over yet": chain,
        "shares are renewed": renewed,
        "a successor": succeeded,
        "a mask key is renewed": masked,
        "an entry of members after it": renewed.extended([provider.sign(next_entry(renewed.directory))]),
    }
    return {
        "about": "entries by which seats change hands; all keys come from an insecure stream, and no share is sealed",
        "provider": provider.public.hex(),
        "founding": founding.hex(),
        "good": [{"comment": comment} | _shown(grown) for comment, grown in good.items()],
        "bad": [
            *bad,
            _case("the handovers of the renewal before", "PeerFault", provider, replayed, renewed.entries[1:]),
            _case("a mask key that was replaced before", "ReseatingRefused", provider, back, masked.entries[1:]),
        ],
    }


def founding_of(provider: SigningKey, dealing: Dealing, holders: Sequence[Holder]) -> DirectoryEntry:
    """The first entry of a directory with these holders."""
    records = tuple(holder.record(_encoded([mul_base(holder.share.secret)])[0]) for holder in holders)
    settled = provider.public, THRESHOLD, _encoded(dealing.commitments[:1])[0], records, 13
    return DirectoryEntry(0, NOTHING_BEFORE, *settled, (), ())


def _changed(
    chain: Chain, provider: SigningKey, dealers: Sequence[Holder], holders: Sequence[Holder], stream: Stream
) -> tuple[Chain, list[Holder]]:
    """The chain after holders of before hand over to `holders`, who then have their new shares."""
    change = Change.to(chain.directory, holders)
    dealt = {dealer.share.index: reshare(change.key, dealer.share, stream) for dealer in dealers}
    committed = {index: dealing.commitments for index, dealing in dealt.items()}
    handed = [dealer.signing.sign(change.sealed(dealer, dealt[dealer.share.index], stream)) for dealer in dealers]
    shares = [
        combine_reshared(change.key, seat, {index: one.shares[seat - 1] for index, one in dealt.items()}, committed)
        for seat in range(1, TRUSTEES + 1)
    ]
    after = [replace(holder, share=share) for holder, share in zip(holders, shares, strict=True)]
    return chain.extended([provider.sign(change.entry(handed))]), after


def _retired(chain: Chain, holders: Sequence[Holder], old: Holder, stream: Stream) -> Reseating:
    """All hand over to a card of the last trustee from before its mask key was renewed."""
    change = Change.to(chain.directory, [*holders[:-1], old])
    handed = [holder.signing.sign(change.handover(holder, stream)) for holder in holders[:THRESHOLD]]
    return change.entry(handed)


def _bad(provider: SigningKey, change: Change, holders: Sequence[Holder], stream: Stream) -> Cases:
    """None leads on from the first entry: each must raise the error named, and leave the chain as it is."""
    stranger = Holder.new(stream, holders[0].share)
    made = [change.handover(holder, stream) for holder in holders[:THRESHOLD]]
    signed = [holder.signing.sign(one) for holder, one in zip(holders, made, strict=False)]
    good = change.entry(signed)
    first, *rest = good.trustees
    cases: list[tuple[str, str, SigningKey, Reseating]] = [
        ("a stranger signed it", "BadSignature", stranger.signing, good),
        ("it leads on from another entry", "Fork", provider, replace(good, previous=Digest(bytes(32)))),
        ("an entry is missing before it", "Fork", provider, replace(good, number=2)),
        ("nobody handed over", "ReseatingRefused", provider, replace(good, handovers=())),
        ("one too few handed over", "ReseatingRefused", provider, replace(good, handovers=tuple(signed[:2]))),
        ("a seat less", "ReseatingRefused", provider, replace(good, trustees=good.trustees[:-1])),
        ("the share keys of before", "ReseatingRefused", provider, replace(good, trustees=change.seats.trustees)),
        ("a trustee handed over twice", "PeerFault", provider, replace(good, handovers=(*signed, signed[0]))),
        (
            "other holders than those to whom was handed over",
            "PeerFault",
            provider,
            replace(good, trustees=(*good.trustees[:-1], replace(stranger.record(rest[-1].share_key), index=SEAT))),
        ),
        (
            "a trustee that stays, with another mask key",
            "PeerFault",
            provider,
            replace(good, trustees=(replace(first, mask_key=stranger.mask.public), *rest)),
        ),
    ]
    spoilt = [
        ("a handover that a stranger signed", "BadSignature", stranger.signing, made[0]),
        ("a handover of a seat that is not there", "DecodeError", stranger.signing, replace(made[0], dealer=6)),
        ("a share of somebody else, dealt as one's own", "TrusteeFault", holders[0].signing, _as(made[1], made[0])),
        (
            "a lower degree than agreed",
            "TrusteeFault",
            holders[0].signing,
            replace(made[0], commitments=made[0].commitments[:-1]),
        ),
        (
            "a commitment that is no element",
            "DecodeError",
            holders[0].signing,
            replace(made[0], commitments=(*made[0].commitments[:-1], EncodedElement(b"\xff" * 32))),
        ),
    ]
    cases += [
        (comment, error, provider, replace(good, handovers=(key.sign(handover), *signed[1:])))
        for comment, error, key, handover in spoilt
    ]
    cases += list(_unproved(provider, change, holders, stranger, stream))
    return [_case(*case) for case in cases]


def _as(of: Handover, dealer: Handover) -> Handover:
    """A handover with the commitments of another one."""
    return replace(dealer, commitments=of.commitments)


def _unproved(
    provider: SigningKey, change: Change, holders: Sequence[Holder], stranger: Holder, stream: Stream
) -> Iterable[tuple[str, str, SigningKey, Reseating]]:
    """All hand over to a successor that shows a mask key without holding it."""
    last = change.seats.trustees[-1]
    posing = replace(stranger.record(last.share_key), index=SEAT, possession=last.possession)
    for comment, record in (
        ("a successor with another one's proof", posing),
        ("a successor with the mask key of the one before it", replace(posing, mask_key=last.mask_key)),
    ):
        unproved = Change(change.before, change.holders, Seats((*change.seats.trustees[:-1], record)))
        handed = [one.signing.sign(unproved.handover(one, stream)) for one in holders[:THRESHOLD]]
        yield comment, "BadSignature", provider, unproved.entry(handed)


def _case(
    comment: str, error: str, key: SigningKey, entry: Reseating, before: Sequence[bytes] = ()
) -> dict[str, object]:
    after = [one.hex() for one in before]
    return {"comment": comment, "error": error, "after": after, "entry": key.sign(entry).hex()}


def _shown(chain: Chain) -> dict[str, object]:
    """The entries after the first, and what a party then knows of the seats."""
    directory = chain.directory
    return {
        "entries": [entry.hex() for entry in chain.entries[1:]],
        "head": directory.head.hex(),
        "verify_keys": [trustee.verify_key.hex() for trustee in directory.trustees],
        "share_keys": [trustee.share_key.hex() for trustee in directory.trustees],
        "mask_keys": [trustee.mask_key.hex() for trustee in directory.trustees],
        "retired": [key.hex() for key in sorted(directory.retired)],
    }


def _encoded(elements: Iterable[Element]) -> tuple[EncodedElement, ...]:
    return tuple(EncodedElement(element.encoded) for element in elements)
