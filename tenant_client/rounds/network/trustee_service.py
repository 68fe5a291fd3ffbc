"""A tenant's client of a trustee: it evaluates blinded elements, and anchors the tenant's journal."""

from dataclasses import dataclass

from federation.protocol.services import TrusteeMethod
from federation.transport.client import Peer


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
