"""A trustee's home directory: keys, card, share and database.

    signing.key  mask.key  sealing.key   32 bytes each
    tls.key  tls.crt                     PEM, for the server that tenants and provider call
    trustee.card                         signed, public
    share.key  committee                 the result of the ceremony (`federation.protocol.ceremony`)
    next.key  next.committee             the result of a handover (`federation.protocol.succession`) that is not in
                                         force yet; they take the places of those two once the directory shows it
    deposits/                            what mask trustees left with this one (`federation.protocol.custody`)
    next.mask                            a new mask key, until the directory shows it
    former.key                           the mask key of before, its own or a predecessor's, for a series that goes on
    trustee.db                           the pinned directory and the log

The directory has mode 0700 and each file 0600. Files are never overwritten, except the database, by
`renew_certificate` the TLS files, and by a handover those of the share: the old share is erased with it.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path

from crypto.codec import decode, encode
from crypto.masking import MaskKey
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey, reopened
from crypto.threshold import KeyShare
from federation.protocol.ceremony import Committee, KeptShare
from federation.protocol.custody import Deposit
from federation.protocol.directory import Chain, Directory
from federation.protocol.enrolment import SealingKey, TrusteeCard, host_of, open_trustee_card
from federation.runtime.clock import SECONDS_PER_HOUR
from federation.runtime.key_files import HomeError, new_key, read, read_key, replace_secret, write_secret
from federation.runtime.pinned_directory import NotEnrolled, pinned
from federation.runtime.sqlite import Connection, create_file
from federation.transport.certificates import Certificate, hosts_of, issue
from trustee.trustee import Trustee, TrusteeLimits

TLS_KEY, TLS_CERTIFICATE, CARD = "tls.key", "tls.crt", "trustee.card"
SHARE, COMMITTEE, MEMORY = "share.key", "committee", "trustee.db"
DEPOSITS, FORMER, NEXT_MASK = "deposits", "former.key", "next.mask"
NEXT_SHARE, NEXT_COMMITTEE = "next.key", "next.committee"


def create(home: Path, address: str, names: Sequence[str], random_bytes: RandomBytes, now: datetime) -> TrusteeCard:
    """Makes a home with fresh keys, a certificate for the host of `address` and for `names`, and the card.

    HomeError, and nothing is changed, if there are keys already.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_existing(home, "signing.key", "mask.key", "sealing.key", TLS_KEY, TLS_CERTIFICATE, CARD)
    signing = SigningKey(new_key(home / "signing.key", random_bytes))
    mask = MaskKey(new_key(home / "mask.key", random_bytes))
    sealing = SealingKey(new_key(home / "sealing.key", random_bytes))
    certificate = issue(signing, _hosts(address, names), now)
    write_secret(home / TLS_KEY, certificate.key_pem)
    write_secret(home / TLS_CERTIFICATE, certificate.certificate_pem)
    card = TrusteeCard.of(
        signing,
        mask,
        sealing.public,
        made_hour=int(now.timestamp() / SECONDS_PER_HOUR),
        address=address,
    )
    write_secret(home / CARD, signing.sign(card))
    return card


def renew_certificate(home: Path, names: Sequence[str], now: datetime, lifetime_d: int) -> Certificate:
    """Replaces the TLS key and certificate, for the host on the card and for `names`.

    Without `names` the hosts of the old certificate stay. Callers need no notice: they know the signing key.
    """
    hosts = _hosts(own_card(home).address, names) if names else hosts_of(read(home / TLS_CERTIFICATE))
    certificate = issue(signing_key(home), hosts, now, lifetime_d)
    replace_secret(home / TLS_KEY, certificate.key_pem)
    replace_secret(home / TLS_CERTIFICATE, certificate.certificate_pem)
    return certificate


def mask_key(home: Path) -> MaskKey:
    """The key of this trustee's masks."""
    return MaskKey(read_key(home / "mask.key"))


def own_card(home: Path) -> TrusteeCard:
    """The card of this home."""
    return open_trustee_card(read(home / CARD))


def signing_key(home: Path) -> SigningKey:
    """The key that signs this trustee's dealing and its answers."""
    return SigningKey(read_key(home / "signing.key"))


def sealing_key(home: Path) -> SealingKey:
    """The key that opens the shares that other trustees dealt to this one."""
    return SealingKey(read_key(home / "sealing.key"))


def keep(home: Path, share: KeyShare, committee: Committee) -> None:
    """Stores the result of the ceremony; HomeError, and no change, if there is one already."""
    committee.check_share(share)
    _refuse_existing(home, SHARE, COMMITTEE)
    write_secret(home / COMMITTEE, encode(committee))
    write_secret(home / SHARE, encode(KeptShare.of(share)))


def keep_next(home: Path, share: KeyShare, committee: Committee) -> Path:
    """Stores the result of a handover until the directory shows it; the committee's file.

    It takes the place of an earlier one that the directory never showed.
    A home without a share, a successor's, has nothing to wait with: there it is stored as the result of a ceremony.
    """
    committee.check_share(share)
    if not (home / SHARE).exists():
        keep(home, share, committee)
        return home / COMMITTEE
    replace_secret(home / NEXT_SHARE, encode(KeptShare.of(share)))
    replace_secret(home / NEXT_COMMITTEE, encode(committee))
    return home / NEXT_COMMITTEE


def keep_deposit(home: Path, owner: int, deposit: bytes) -> Path:
    """Stores what a mask trustee left here, in place of an earlier one of its seat."""
    folder = home / DEPOSITS
    folder.mkdir(mode=0o700, exist_ok=True)
    replace_secret(folder / str(owner), deposit)
    return folder / str(owner)


def deposits(home: Path) -> list[bytes]:
    """What mask trustees left here."""
    return [read(file) for file in sorted((home / DEPOSITS).glob("[0-9]*"))]


def renew_mask_key(home: Path, random_bytes: RandomBytes, now: datetime) -> TrusteeCard:
    """Makes the mask key that serves from the next handover on, and a new card with it; HomeError if one waits."""
    _refuse_existing(home, NEXT_MASK)
    key, old = MaskKey(new_key(home / NEXT_MASK, random_bytes)), own_card(home)
    hour = max(int(now.timestamp() / SECONDS_PER_HOUR), old.made_hour)
    card = TrusteeCard.of(signing_key(home), key, old.sealing_key, made_hour=hour, address=old.address)
    replace_secret(home / CARD, signing_key(home).sign(card))
    return card


def keep_former(home: Path, key: MaskKey) -> None:
    """Stores a mask key for the series that goes on under it."""
    replace_secret(home / FORMER, key.scalar.to_bytes(32, "little"))


def other_mask_keys(home: Path) -> list[MaskKey]:
    """The mask key of before, while its series goes on, and the one to come."""
    former = [MaskKey.from_scalar(read_key(home / FORMER))] if (home / FORMER).exists() else []
    return former + ([MaskKey(read_key(home / NEXT_MASK))] if (home / NEXT_MASK).exists() else [])


def erase_spent(home: Path, trustee: Trustee) -> None:
    """Erases the mask key of before once the series that it was for is over."""
    if not trustee.holds_former:
        (home / FORMER).unlink(missing_ok=True)


def settle(home: Path, directory: Directory) -> None:
    """Puts the result of a handover in force, and erases the share before it, once `directory` shows it."""
    if not (home / NEXT_COMMITTEE).exists():
        return
    committee = decode(Committee, read(home / NEXT_COMMITTEE))
    if committee.trustees != directory.trustees:
        return
    _renew_masks(home, committee)
    _erase_deposits(home, committee)
    if (home / NEXT_SHARE).exists():  # else it was killed after the next line
        (home / NEXT_SHARE).replace(home / SHARE)
    (home / NEXT_COMMITTEE).replace(home / COMMITTEE)


def _erase_deposits(home: Path, committee: Committee) -> None:
    """Shares of mask keys that the new committee does not have, of those who left or renewed theirs, serve nobody."""
    shown = {trustee.mask_key for trustee in committee.trustees}
    for file in (home / DEPOSITS).glob("[0-9]*"):
        if reopened(Deposit, read(file)).mask_key not in shown:
            file.unlink()


def _renew_masks(home: Path, committee: Committee) -> None:
    """The new mask key takes its place if the new committee has it; the one before stays for its series."""
    if (home / NEXT_MASK).exists():
        shown = {trustee.mask_key for trustee in committee.trustees}
        if MaskKey(read_key(home / NEXT_MASK)).public in shown:
            keep_former(home, mask_key(home))
            (home / NEXT_MASK).replace(home / "mask.key")


def kept_committee(home: Path) -> Committee:
    """The committee of the ceremony; HomeError before there was one."""
    return decode(Committee, read(home / COMMITTEE))


def kept_share(home: Path) -> KeyShare:
    """This trustee's share of the token key; HomeError before there is one."""
    return decode(KeptShare, read(home / SHARE)).share


def enrol(home: Path, chain: Chain, random_bytes: RandomBytes) -> None:
    """Pins the directory, or newer entries of it; TrustChanged if its trustees are not those of the ceremony.

    Nor those of the last handover, which is put in force if they are.
    """
    upcoming = decode(Committee, read(home / NEXT_COMMITTEE)) if (home / NEXT_COMMITTEE).exists() else None
    if upcoming is None or upcoming.trustees != chain.directory.trustees:
        kept_committee(home).check_seated(chain.directory)
    _opened(home, chain.entries, random_bytes, TrusteeLimits()).close()
    settle(home, chain.directory)


def open_trustee(home: Path, random_bytes: RandomBytes, limits: TrusteeLimits) -> Trustee:
    """Opens the trustee of `home`; HomeError names a missing file, NotEnrolled means that no directory is pinned.

    CeremonyRefused if the share is not one of the committee, TrustChanged if the pinned directory has another.
    """
    _settle_pinned(home)
    with ExitStack() as until_open:
        try:
            trustee = until_open.enter_context(closing(_opened(home, (), random_bytes, limits)))
        except NotEnrolled as error:
            raise NotEnrolled(error.what, hint="run `pharoah-trustee enrol` first") from error
        kept_committee(home).check_seated(trustee.chain.directory)
        erase_spent(home, trustee)
        until_open.pop_all()
    return trustee


def _hosts(address: str, names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([host_of(address), *names]))


def _opened(home: Path, entries: Iterable[bytes], random_bytes: RandomBytes, limits: TrusteeLimits) -> Trustee:
    share, committee = kept_share(home), kept_committee(home)
    committee.check_share(share)
    renewed = decode(KeptShare, read(home / NEXT_SHARE)).share if (home / NEXT_SHARE).exists() else None
    signing, mask = signing_key(home), mask_key(home)
    record = committee.trustees[share.index - 1]
    if (signing.public, mask.public) != (record.verify_key, record.mask_key):
        raise HomeError(
            f"the keys are not those of the ceremony: {home}", hint="restore all files from the same backup"
        )
    memory = home / MEMORY
    create_file(memory)
    return Trustee(share, signing, mask, tuple(entries), memory, random_bytes, limits, renewed, other_mask_keys(home))


def _settle_pinned(home: Path) -> None:
    """Before anything else is opened: a server that was killed as shares changed left this to the next one."""
    if not (home / NEXT_COMMITTEE).exists() or not (home / MEMORY).exists():
        return
    with closing(Connection(str(home / MEMORY))) as memory:
        settle(home, pinned(memory).directory)


def _refuse_existing(home: Path, *names: str) -> None:
    existing = [name for name in names if (home / name).exists()]
    if existing:
        raise HomeError(
            f"keys are never overwritten, and {', '.join(existing)} exist: {home}",
            hint="pass another --home, or move these files away if nobody relies on them",
        )
