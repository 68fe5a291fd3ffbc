"""Summarises a trustee's home: ceremony, federation, certificate, and the requests of this epoch.

Read only: nothing is sent, created or changed. The home may be missing.
"""

import math
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from crypto.ristretto import RandomBytes
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.key_files import read
from federation.base.pinned_directory import NotEnrolled
from federation.base.visible import counted_as
from federation.protocol.enrolment import fingerprint
from federation.transport.certificates import EXPIRES_SOON_D, days_left
from trustee import home as trustee_home
from trustee.trustee import Trustee, TrusteeLimits


@dataclass(frozen=True)
class Seat:
    """The result of the ceremony: the trustee's number, the number of trustees, and how many of them make a token."""

    index: int
    trustees: int
    threshold: int


@dataclass(frozen=True)
class Asked:
    """What this trustee has done in its federation. `evaluations` are those of this epoch."""

    head: str
    members: int
    epoch: int
    evaluations: int
    evaluations_per_tenant: int
    rounds_endorsed: int
    rounds_unmasked: int
    last_round_id: str
    conflicts: int
    has_mask_key: bool


@dataclass(frozen=True)
class TrusteeStatus:
    """The state of a home. `seat` is None before the end of the ceremony, `federation` before joining."""

    version: int
    home: str
    exists: bool
    address: str
    seat: Seat | None
    federation: Asked | None
    certificate_days_left: float | None
    due: str
    attention: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0: ok. 1: attention needed. 3: the home is empty."""
        if not self.address:
            return 3
        return 1 if self.attention else 0


def status(home: Path, random_bytes: RandomBytes, limits: TrusteeLimits, now: datetime) -> TrusteeStatus:
    """The state of a home; HomeError or CeremonyRefused if its files do not belong together."""
    made = (home / trustee_home.CARD).exists()
    seat, federation = None, None
    if (home / trustee_home.SHARE).exists():
        committee, index = trustee_home.kept_committee(home), trustee_home.kept_share(home).index
        seat = Seat(index, len(committee.trustees), committee.threshold)
        federation = _federation(home, random_bytes, limits, now.timestamp() / SECONDS_PER_HOUR)
    certificate = home / trustee_home.TLS_CERTIFICATE
    days = days_left(read(certificate), now) if certificate.exists() else None
    return TrusteeStatus(
        version=1,
        home=str(home),
        exists=home.is_dir(),
        address=trustee_home.own_card(home).address if made else "",
        seat=seat,
        federation=federation,
        certificate_days_left=days,
        due=_due(made=made, seated=seat is not None, joined=federation is not None),
        attention=tuple(_attention(federation, days)),
    )


def _federation(home: Path, random_bytes: RandomBytes, limits: TrusteeLimits, now_hour: float) -> Asked | None:
    if not (home / trustee_home.MEMORY).exists():
        return None
    try:
        trustee = trustee_home.open_trustee(home, random_bytes, limits)
    except NotEnrolled:
        return None
    with closing(trustee):
        return _asked(trustee, limits, now_hour)


def _asked(trustee: Trustee, limits: TrusteeLimits, now_hour: float) -> Asked:
    directory, rounds = trustee.chain.directory, trustee.rounds()
    epoch = directory.epoch(now_hour)
    return Asked(
        head=fingerprint(directory.head),
        members=len(directory.members),
        epoch=epoch,
        evaluations=sum(elements for (_, of), elements in trustee.evaluations().items() if of == epoch),
        evaluations_per_tenant=limits.evaluations_per_epoch,
        rounds_endorsed=len(rounds),
        rounds_unmasked=sum(unmasked for _, _, unmasked in rounds),
        last_round_id=str(rounds[-1][0]) if rounds else "",
        conflicts=len(trustee.conflicts()),
        has_mask_key=trustee.has_mask_key,
    )


def _due(*, made: bool, seated: bool, joined: bool) -> str:
    if not made:
        return "make the keys and the card: `pharoah-trustee init`"
    if not seated:
        return "take part in the ceremony: `pharoah-trustee ceremony deal`, then `pharoah-trustee ceremony combine`"
    return "" if joined else "join with the provider's invitation: `pharoah-trustee join INVITATION`"


def _attention(federation: Asked | None, days: float | None) -> list[str]:
    wrong = []
    if federation and federation.conflicts:
        wrong.append("the provider signed two sets for one round: see `pharoah-trustee log`")
    if federation and not federation.has_mask_key:
        wrong.append("the mask key of the epoch before is erased: see `pharoah-trustee keys renew-mask-key`")
    if days is not None and days < EXPIRES_SOON_D:
        end = f"ends in {counted_as(math.floor(days), 'day')}" if days >= 0 else "has ended"
        wrong.append(f"the certificate {end}: run `pharoah-trustee keys renew-certificate`")
    return wrong
