"""From a tenant's home to the provider's online service and the trustees: address, root, and the tenant's own key."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from crypto.roots import root_of
from crypto.signing import SigningKey
from federation.base.key_files import read, read_key
from federation.base.settings import BadSettings, load
from federation.protocol.services import TrusteeMethod
from federation.transport.client import Peer
from federation.transport.introductions import Introducing
from tenant_client.doctor.records.questions import noting
from tenant_client.doctor.settings import TenantSettings
from tenant_client.rounds.home import joined, member
from tenant_client.rounds.network.provider_service import Online

# ---- a trustee -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RemoteTrustee:
    """Trustee `index`. It answers with what it says or raises the errors that it tells, Unreachable among them."""

    index: int
    peer: Peer

    def evaluate(self, request: bytes) -> bytes:
        """Signed EvaluationRequest in, EvaluationResponse out. Asked twice, it is metered twice."""
        return self.peer.call(TrusteeMethod.EVALUATE, request)

    def anchor(self, request: bytes) -> bytes:
        """Signed AnchorRequest in, signed Anchor out. Asked twice, it answers the same."""
        return self.peer.call(TrusteeMethod.ANCHOR, request)


@contextmanager
def connected(home: Path, deadline_s: float = 30.0) -> Iterator[Online]:
    """The service as the tenant in `home` uses it; nothing is sent before the first question.

    Each question is noted first (`tenant_client.doctor.records.questions`).
    """
    provider = joined(home).directory.provider
    settings = load(TenantSettings, home / "tenant.toml", os.environ)
    if not settings.provider.online:
        raise BadSettings("[provider] has no address", hint="set online to that of the invitation")
    key, tenant = SigningKey(read_key(home / "signing.key")), member(home).tenant
    pinned, introducing = read(home / "provider.pem"), Introducing(key, time.time)
    at = settings.provider.online
    note = noting(home / "tenant.db", at)
    with (
        Peer(at, pinned, deadline_s=deadline_s, introducing=introducing, note=note) as peer,
        Online(peer, key, tenant, provider, time.time) as online,
    ):
        yield online


@contextmanager
def trustees_of(home: Path) -> Iterator[list[RemoteTrustee]]:
    """The trustees of the pinned directory; nothing is sent before the first question."""
    introducing = Introducing(SigningKey(read_key(home / "signing.key")), time.time)
    with ExitStack() as stack:

        def peer(address: str, root_pem: bytes) -> Peer:
            return stack.enter_context(Peer(address, root_pem, introducing=introducing))

        records = joined(home).directory.trustees
        yield [RemoteTrustee(one.index, peer(one.address, root_of(one.verify_key))) for one in records]
