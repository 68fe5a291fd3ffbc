"""The provider's gRPC client of a trustee, which endorses a set of contributions and unmasks its sum."""

from dataclasses import dataclass

from federation.protocol.services import TrusteeMethod
from federation.transport.client import Peer


@dataclass(frozen=True)
class RemoteTrustee:
    """Trustee `index`. It answers with what it says or raises the errors that it tells, Unreachable among them."""

    index: int
    peer: Peer

    def follow(self, update: bytes) -> bytes:
        """DirectoryUpdate in, Receipt out."""
        return self.peer.call(TrusteeMethod.FOLLOW, update)

    def endorse(self, request: bytes) -> bytes:
        """Signed request for a set of contributors in, the trustee's endorsement out. Asked twice, it says the same."""
        return self.peer.call(TrusteeMethod.ENDORSE, request)

    def unmask(self, request: bytes) -> bytes:
        """Request to unmask in, UnmaskShare out. Asked twice, it says the same."""
        return self.peer.call(TrusteeMethod.UNMASK, request)
