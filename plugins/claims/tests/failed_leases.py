"""A tenant with a journal of two leases that failed, trustees that anchored it, and the claims it makes of it."""

import base64
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crypto.codec import decode
from crypto.ids import Digest, LeaseId, TenantId
from crypto.signing import Signed, SigningKey
from federation.base.sqlite import Connection
from federation.protocol.anchors import ClaimDigest, VerificationKeys, verification_keys
from federation.protocol.directory import Chain
from federation.protocol.round_messages import GrantedLease, LeaseGrants
from federation.protocol.service_messages import Action, Hint, HintState, LeaseChange, LeaseEnd, Suspicion
from pharoah_claims import packet, verify_claim
from tenant_client.doctor.advice.hints import HintLog
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.grant_log import GrantLog
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.program.anchors.anchoring import Anchoring
from tenant_client.program.anchors.chain import FactChain
from tests.support.factories import Cast, keys, labels
from trustee.trustee import Trustee, TrusteeLimits

HOUR_S, WEEK_S = 3600.0, 7 * 24 * 3600.0
BEGAN_H = 500_000.0
OWN, OTHER = LeaseId(b"\1" * 16), LeaseId(b"\2" * 16)
SECRET = "Xid 79 on host gpu-17: the GPU has fallen off the bus"


@dataclass
class Clock:
    """What all trustees believe the hour to be."""

    hour: float = BEGAN_H + 1.0

    def __call__(self) -> float:
        return self.hour


@dataclass
class Place:
    """A tenant's database, and trustees with a clock."""

    connection: Connection
    trustees: tuple[Trustee, ...]
    clock: Clock = field(default_factory=Clock)
    key: SigningKey = field(default_factory=lambda: keys().tenants[0][0])

    @property
    def anchoring(self) -> Anchoring:
        return Anchoring(self.connection, self.key, keys().directory)

    def anchor(self, *seats: int) -> int:
        """These trustees anchor the journal, or all of them; an hour later than the last time."""
        self.clock.hour += 1.5
        asked = [one for one in self.trustees if not seats or one.index in seats]
        return self.anchoring.anchor(asked, os.urandom)

    def claim(self, lease: LeaseId = OWN, *, add: tuple[int, ...] = (), everything: bool = False) -> dict[str, Any]:
        entries = list(FactChain(self.connection, self.anchoring.tenant).entries())
        shown = packet.chosen(entries, str(lease), add, everything=everything)
        return self.made(entries, shown, lease)

    def made(self, entries: Any, shown: set[int], lease: LeaseId = OWN, anchors: Any = None) -> dict[str, Any]:
        told = self.anchoring.messages() if anchors is None else anchors
        return dict(packet.claim(self.key, str(lease), entries, shown, told))


def trusted() -> VerificationKeys:
    return verification_keys(Chain.begin(keys().founding, keys().provider.public))


def resigned(place: Place, claim: dict[str, Any]) -> dict[str, Any]:
    """The claim as the tenant signs it after changing it: the owner of the key is who cheats."""
    body = {name: value for name, value in claim.items() if name != "signed"}
    named = Digest(verify_claim.sha256(verify_claim.canonical(body)))
    signed = place.key.sign(ClaimDigest(place.anchoring.tenant, named))
    return {**body, "signed": base64.b64encode(signed).decode()}


def grant(place: Place, lease: LeaseId, tenant: TenantId | None = None) -> None:
    granted = LeaseGrants(tenant or place.anchoring.tenant, (GrantedLease.of(lease, 0, BEGAN_H, labels(), 4),))
    GrantLog(place.connection).keep(keys().provider.sign(granted), granted)


def hint(place: Place, lease: LeaseId, number: int, signer: SigningKey | None = None) -> None:
    said = HintState.RAISED, Suspicion.MEMORY, 4.0, 2.0, 8.0, 0.3, 72.0, Action.CONFIRM, 1
    one = Hint(number, BEGAN_H + 3.0, lease, *said)
    signature = decode(Signed, (signer or keys().provider).sign(one)).signature
    HintLog(place.connection).take(one, 0.0, signature)


def end(place: Place, lease: LeaseId, number: int, signer: SigningKey | None = None) -> None:
    one = LeaseEnd(number, BEGAN_H + 5.5, lease, LeaseChange.ENDED_EARLY, BEGAN_H + 5.25, BEGAN_H + 9.0)
    signature = decode(Signed, (signer or keys().provider).sign(one)).signature
    HintLog(place.connection).take(one, 0.0, signature)


def fail(place: Place, lease: LeaseId, ended_h: float) -> None:
    """An attempt of a job on the lease that ended by a GPU that was lost."""
    attempts, unit = Attempts(place.connection), str(lease)
    number = attempts.begin(unit, BEGAN_H * HOUR_S)
    attempts.name(unit, "python secret_model.py")
    attempts.end(unit, number, AttemptState.FAILED, ended_h * HOUR_S, exit_code=1)
    cause = AttemptCause("gpu_lost", 3, "gpu-17", "1", "rank3.log:7", "GPU 1 of gpu-17 was lost")
    attempts.explain(unit, number, cause)
    Incidents(place.connection).keep(unit, number, [SECRET, "NCCL WARN Cuda failure"], None)


@contextmanager
def failed_leases(cast: Cast, root: Path) -> Iterator[Place]:
    """A lease that failed, another that did, and a journal that was anchored before and after."""
    clock = Clock()
    limits = TrusteeLimits(now_hour=clock)
    with closing(open_database(root / "tenant.db")) as connection:
        there = Place(connection, cast.trustees(limits), clock)
        there.anchor()
        for lease in (OTHER, OWN):
            fail(there, lease, BEGAN_H + 5.0)
            grant(there, lease)
        hint(there, OWN, 1)
        hint(there, OTHER, 2)
        end(there, OWN, 3)
        end(there, OTHER, 4)
        clock.hour = BEGAN_H + 6.0
        assert there.anchor() == len(there.trustees)
        yield there
