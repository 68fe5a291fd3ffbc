"""A trustee's home directory: keys, card, share and database.

    signing.key  mask.key  sealing.key   32 bytes each
    tls.key  tls.crt                     PEM, for the server that tenants and provider call
    trustee.card                         signed, public
    trustee.toml                         settings, with the port of the card's address
    share.key  committee                 the result of the ceremony (`federation.protocol.ceremony`)
    next.key  next.committee             the result of a handover (`federation.protocol.succession`) that is not in
                                         force yet; they take the places of those two once the directory shows it
    next.mask                            a new mask key, until the directory shows it: then it is mask.key, and the one
                                         before is gone
    trustee.db                           the pinned directory and the log

The directory has mode 0700 and each file 0600. Files are never overwritten, except the database, by
`renew_certificate` the TLS files, and by a handover those of the share and the mask key: the old ones are erased with
it. A mask key is erased soon after its epoch in any case.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path

from crypto.codec import decode, encode
from crypto.masking import MaskKey
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey
from crypto.threshold import KeyShare
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.key_files import HomeError, new_key, read, read_key, replace_secret, write_secret
from federation.base.pinned_directory import NotEnrolled, pinned
from federation.base.settings_schema import write_schema
from federation.base.sqlite import Connection
from federation.protocol.ceremony import Committee, KeptShare
from federation.protocol.directory import Chain, Directory
from federation.protocol.enrolment import SealingKey, TrusteeCard, host_of, open_trustee_card
from federation.transport.certificates import Certificate, hosts_of, issue
from trustee.settings import TrusteeSettings
from trustee.trustee import Trustee, TrusteeLimits

TLS_KEY, TLS_CERTIFICATE, CARD = "tls.key", "tls.crt", "trustee.card"
MASK, NEXT_MASK = "mask.key", "next.mask"
SETTINGS, SAMPLE = "trustee.toml", Path(__file__).with_name("trustee.toml")
SHARE, COMMITTEE, MEMORY = "share.key", "committee", "trustee.db"
NEXT_SHARE, NEXT_COMMITTEE = "next.key", "next.committee"


def create(home: Path, address: str, names: Sequence[str], random_bytes: RandomBytes, now: datetime) -> TrusteeCard:
    """Makes a home with fresh keys, a certificate for the host of `address` and for `names`, and the card.

    HomeError, and nothing is changed, if there are keys already.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_existing(home, "signing.key", MASK, "sealing.key", TLS_KEY, TLS_CERTIFICATE, CARD)
    signing = SigningKey(new_key(home / "signing.key", random_bytes))
    mask = MaskKey(new_key(home / MASK, random_bytes))
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
    if not (home / SETTINGS).exists():
        sample = SAMPLE.read_text(encoding="utf-8").replace('"0.0.0.0:7100"', f'"{_listen_at(address)}"')
        write_secret(home / SETTINGS, sample.encode())
    write_schema(home, TrusteeSettings, SAMPLE)
    return card


def _listen_at(address: str) -> str:
    """Where a trustee listens that others reach at `address`: that port of all interfaces, or of the loopback alone."""
    host, port = host_of(address), address.rpartition(":")[2]
    if host == "localhost" or host.startswith("127."):
        return f"{host}:{port}"
    return f"[::]:{port}" if ":" in host else f"0.0.0.0:{port}"


def renew_certificate(home: Path, names: Sequence[str], now: datetime, lifetime_d: int) -> Certificate:
    """Replaces the TLS key and certificate, for the host on the card and for `names`.

    Without `names` the hosts of the old certificate stay. Callers need no notice: they know the signing key.
    """
    hosts = _hosts(own_card(home).address, names) if names else hosts_of(read(home / TLS_CERTIFICATE))
    certificate = issue(signing_key(home), hosts, now, lifetime_d)
    replace_secret(home / TLS_KEY, certificate.key_pem)
    replace_secret(home / TLS_CERTIFICATE, certificate.certificate_pem)
    return certificate


def mask_key(home: Path) -> MaskKey | None:
    """The key of this trustee's masks; None once it is erased."""
    return _mask_key(home / MASK)


def next_mask_key(home: Path) -> MaskKey | None:
    """The mask key that serves when the directory shows it; None where none was made."""
    return _mask_key(home / NEXT_MASK)


def _mask_key(file: Path) -> MaskKey | None:
    return MaskKey(read_key(file)) if file.exists() else None


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
    with _alone(home):
        _settle_pinned(home)  # what came into force since the handovers were read
        replace_secret(home / NEXT_SHARE, encode(KeptShare.of(share)))
        replace_secret(home / NEXT_COMMITTEE, encode(committee))
    return home / NEXT_COMMITTEE


def renew_mask_key(home: Path, random_bytes: RandomBytes, now: datetime) -> TrusteeCard:
    """Makes the mask key that serves from the next handover on, and a new card with it; HomeError if one waits."""
    settle_pinned(home)
    _refuse_existing(home, NEXT_MASK)
    key, old = MaskKey(new_key(home / NEXT_MASK, random_bytes)), own_card(home)
    hour = max(int(now.timestamp() / SECONDS_PER_HOUR), old.made_hour)
    card = TrusteeCard.of(signing_key(home), key, old.sealing_key, made_hour=hour, address=old.address)
    replace_secret(home / CARD, signing_key(home).sign(card))
    return card


def erase_spent(home: Path, trustee: Trustee) -> None:
    """Erases the mask key once its epoch is over."""
    trustee.forget_spent()
    key = mask_key(home)
    if key is not None and trustee.is_spent(key.public):
        (home / MASK).unlink()


def settle(home: Path, directory: Directory) -> None:
    """Puts the result of a handover in force, and erases the share before it, once `directory` shows it."""
    if (home / NEXT_COMMITTEE).exists():
        with _alone(home):
            _settle(home, directory)


def settle_pinned(home: Path) -> None:
    """The same by the directory that is pinned, before any program reads the home's share, committee or mask key.

    A server learns of a new directory, writes it, and settles later or is killed; a handover that is taken meanwhile
    would put its files over those that are in force.
    """
    if (home / NEXT_COMMITTEE).exists():
        with _alone(home):
            _settle_pinned(home)


def _settle(home: Path, directory: Directory) -> None:
    if not (home / NEXT_COMMITTEE).exists():
        return
    committee = decode(Committee, read(home / NEXT_COMMITTEE))
    if committee.trustees != directory.trustees:
        return
    _renew_masks(home, committee)
    if (home / NEXT_SHARE).exists():  # else it was killed after the next line
        (home / NEXT_SHARE).replace(home / SHARE)
    (home / NEXT_COMMITTEE).replace(home / COMMITTEE)


def _settle_pinned(home: Path) -> None:
    if (home / NEXT_COMMITTEE).exists() and (home / MEMORY).exists():
        with closing(Connection(str(home / MEMORY))) as memory:
            _settle(home, pinned(memory).directory)


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Within it no other program or thread moves the home's shares: a server settles while its owner runs verbs."""
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _renew_masks(home: Path, committee: Committee) -> None:
    """The new mask key takes the place of the one before if the new committee has it."""
    shown, upcoming = {trustee.mask_key for trustee in committee.trustees}, next_mask_key(home)
    if upcoming is not None and upcoming.public in shown:
        (home / NEXT_MASK).replace(home / MASK)


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
    settle_pinned(home)
    upcoming = decode(Committee, read(home / NEXT_COMMITTEE)) if (home / NEXT_COMMITTEE).exists() else None
    if upcoming is None or upcoming.trustees != chain.directory.trustees:
        kept_committee(home).check_seated(chain.directory)
    _opened(home, chain.entries, random_bytes, TrusteeLimits()).close()
    settle(home, chain.directory)


def open_trustee(home: Path, random_bytes: RandomBytes, limits: TrusteeLimits) -> Trustee:
    """Opens the trustee of `home`; HomeError names a missing file, NotEnrolled means that no directory is pinned.

    CeremonyRefused if the share is not one of the committee, TrustChanged if the pinned directory has another.
    """
    settle_pinned(home)
    with ExitStack() as until_open:
        try:
            trustee = until_open.enter_context(closing(_opened(home, (), random_bytes, limits)))
        except NotEnrolled as error:
            raise NotEnrolled(error.what, hint="run `pharoah-trustee join` first") from error
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
    if signing.public != record.verify_key or (mask is not None and mask.public != record.mask_key):
        raise HomeError(
            f"the keys are not those of the ceremony: {home}", hint="restore all files from the same backup"
        )
    memory = home / MEMORY
    return Trustee(share, signing, mask, tuple(entries), memory, random_bytes, limits, renewed, next_mask_key(home))


def _refuse_existing(home: Path, *names: str) -> None:
    existing = [name for name in names if (home / name).exists()]
    if existing:
        raise HomeError(
            f"keys are never overwritten, and {', '.join(existing)} exist: {home}",
            hint="pass another --home, or move these files away if nobody relies on them",
        )
