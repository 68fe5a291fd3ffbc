"""Sessions of the online service: stateless bearer tokens, and rate limits per tenant.

A token is tenant ‖ until ‖ eight zero bytes ‖ HMAC-SHA-256 of these under the provider's session key, so any process of
the provider can verify it, also after a restart. It is granted for a sign-in that the tenant has signed at most five
minutes before or after the provider's clock.

Guarantees:

- Without the key nobody can make a token, extend it or change its tenant; comparison takes constant time.
- `revoke` ends all tokens of one tenant that end by a given second, and no others; tokens granted later end after it.
- Buckets take bounded memory.

Not promised: revoking one token of a tenant and not another. A sign-in that is intercepted and replayed within five
minutes yields a token; sign-ins are sent over TLS.
"""

import hashlib
import hmac
import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

from crypto.errors import NotSignedIn, TooManyRequests
from crypto.ids import TenantId
from federation.protocol.service_messages import SESSION_BYTES, Session, SignIn
from provider_server.rounds.store.revocations import LIFETIME_S

SIGN_IN_WITHIN_S = 300
_HEAD = struct.Struct(">16sQ8s")
_LABEL = b"pharoah/session-token/1\0"
_RESERVED = bytes(8)

Now = Callable[[], float]  # seconds: since 1970 for tokens, from any beginning for buckets


def session_key(secret: bytes) -> bytes:
    """The session key, derived from a secret of the provider's home."""
    return hmac.digest(secret, b"pharoah/session-key/1\0", hashlib.sha256)


class Sessions:
    """Grants and verifies tokens. It never shows its key."""

    def __init__(self, key: bytes, now_s: Now, lifetime_s: int = LIFETIME_S) -> None:
        self._key = key
        self._now_s = now_s
        self._lifetime_s = lifetime_s
        self._revoked: Mapping[TenantId, int] = {}

    def revoke(self, until_s: Mapping[TenantId, int]) -> None:
        """Replaces the revocations: by tenant, tokens that end by this second since 1970 are invalid."""
        self._revoked = dict(until_s)

    def grant(self, asked: SignIn) -> Session:
        """A token for the tenant whose signature on `asked` the caller has verified; NotSignedIn if it is old."""
        now_s = self._now_s()
        if abs(now_s - asked.at_s) > SIGN_IN_WITHIN_S:
            raise NotSignedIn(
                f"the sign-in is {now_s - asked.at_s:.0f} s old (limit {SIGN_IN_WITHIN_S} s)",
                hint="sign in again; if it fails again, check the clock of this machine",
            )
        until_s = max(math.floor(now_s) + self._lifetime_s, self._revoked.get(asked.tenant, 0) + 1)
        head = _HEAD.pack(asked.tenant, until_s, _RESERVED)
        return Session(head + self._tag(head), until_s)

    def tenant_of(self, token: bytes) -> TenantId:
        """The tenant of a token; NotSignedIn if it is not this provider's, has expired, or was revoked."""
        return self._opened(token)[0]

    def left_s(self, token: bytes) -> float:
        """Seconds until a token expires; NotSignedIn as above."""
        return self.until_s(token) - self._now_s()

    def until_s(self, token: bytes) -> int:
        """The second since 1970 at which a token expires; NotSignedIn as above."""
        return self._opened(token)[1]

    def is_revoked(self, tenant: TenantId, until_s: int) -> bool:
        """Whether a tenant's token that ends at `until_s` was revoked."""
        return until_s <= self._revoked.get(tenant, 0)

    def _opened(self, token: bytes) -> tuple[TenantId, int]:
        head, tag = token[: _HEAD.size], token[_HEAD.size :]
        if len(token) != SESSION_BYTES or not hmac.compare_digest(self._tag(head), tag):
            raise NotSignedIn("not a session of this provider")
        tenant, until_s, _ = _HEAD.unpack(head)
        if self._now_s() >= until_s:
            raise NotSignedIn("the session has expired")
        if self.is_revoked(TenantId(tenant), until_s):
            raise NotSignedIn("the session was revoked")
        return TenantId(tenant), until_s

    def _tag(self, head: bytes) -> bytes:
        return hmac.digest(self._key, _LABEL + head, hashlib.sha256)


@dataclass(frozen=True)
class Rate:
    """`per_s` calls in the long run, and `burst` at once."""

    per_s: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError("per_s must be positive, and burst at least 1")


class Buckets:
    """A token bucket for each tenant; threads share them.

    At most `tenants` buckets are kept. Beyond that the least recently used one is dropped, and is full again when its
    tenant returns.
    """

    def __init__(self, rate: Rate, now_s: Now, tenants: int = 100_000) -> None:
        self._rate = rate
        self._now_s = now_s
        self._most = tenants
        self._lock = Lock()
        self._kept: OrderedDict[TenantId, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, tenant: TenantId) -> None:
        """Lets one call of a tenant through; TooManyRequests, which says when to come back, if its bucket is empty."""
        with self._lock:
            now_s = self._now_s()
            left, since_s = self._kept.pop(tenant, (float(self._rate.burst), now_s))
            left = min(self._rate.burst, left + self._rate.per_s * max(0.0, now_s - since_s))
            enough = left >= 1
            self._kept[tenant] = (left - enough, now_s)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        if not enough:
            raise TooManyRequests(
                f"too many calls (limit {self._rate.per_s:g} a second, {self._rate.burst} at once)",
                hint=f"try again in {(1 - left) / self._rate.per_s:.1f} s",
            )
