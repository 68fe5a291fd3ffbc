"""Who calls, told with a call before its question, so that a server under attack keeps places for those whom it knows.

A caller signs its key, the server's root and the time (`federation.protocol.service_messages.Introduction`), once in
`RENEW_S`, and sends that in the metadata of its calls. A server looks at it only when places are short. It counts if
the server knows the key, the signature is right, the root is its own and the time about now.

Why so: an attacker behind the same address, or with a thousand connections, has no key that the server knows, so what
it does cannot take the places that are kept. The address of a caller, or that it was answered before, would keep out
neither who shares an address nor who has just begun. Whoever is told an introduction cannot use it at another server.

Not promised: any right beyond such a place, for which requests are signed themselves; anything against a member that
attacks, beyond its share of these places. Clocks that differ by more than `FRESH_S` cost no more than the place.
"""

from collections.abc import Callable
from threading import Lock

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from crypto.errors import PharoahError, Refusal
from crypto.ids import Digest, VerifyKey
from crypto.signing import SigningKey, open_signed_by, tenant_id
from federation.protocol.directory import Directory
from federation.protocol.service_messages import Introduction
from federation.protocol.versions import OLDEST

METADATA_KEY = "pharoah-introduction-bin"
RENEW_S = 300.0
FRESH_S = 900.0
MOST_REMEMBERED = 16_384

Known = Callable[[VerifyKey], bool]
NowS = Callable[[], float]


def parties(directory: Callable[[], Directory]) -> Known:
    """Knows the provider and the members of the directory as it is then."""

    def known(key: VerifyKey) -> bool:
        current = directory()
        member = current.by_id.get(tenant_id(key))
        return key == current.provider or (member is not None and member.verify_key == key)

    return known


class Introducing:
    """A caller's side, for the holder of a signing key. Threads may share it."""

    def __init__(self, signing_key: SigningKey, now_s: NowS) -> None:
        self._signing_key = signing_key
        self._now_s = now_s
        self._lock = Lock()
        self._newest: dict[Digest, tuple[float, bytes]] = {}

    def to(self, server: Digest) -> bytes:
        """What introduces this caller to the server with that root."""
        now_s = self._now_s()
        with self._lock:
            made_s, signed = self._newest.get(server, (-RENEW_S, b""))
            if not 0.0 <= now_s - made_s < RENEW_S:
                signed = self._signing_key.sign(Introduction(self._signing_key.public, server, int(now_s)), OLDEST)
                self._newest[server] = (now_s, signed)
            return signed


class Introductions:
    """A server's side. One thread uses it."""

    def __init__(self, known: Known, server: Digest, now_s: NowS) -> None:
        self._known = known
        self._server = server
        self._now_s = now_s
        self._remembered: dict[bytes, Introduction] = {}

    def known(self, signed: bytes) -> VerifyKey | None:
        """The key of whoever is introduced so; None for a stranger, whatever is wrong. Costs a signature once."""
        introduced = self._remembered.get(signed) or self._opened(signed)
        if introduced is None or not self._counts(introduced):
            return None
        return introduced.key

    def _opened(self, signed: bytes) -> Introduction | None:
        try:
            introduced = open_signed_by(Introduction, signed, self._key)
        except PharoahError:
            return None
        if len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[signed] = introduced
        return introduced

    def _key(self, key: VerifyKey) -> VerifyKey:
        if not self._known(key):
            raise Refusal("the caller is not a known member")
        return key

    def _counts(self, introduced: Introduction) -> bool:
        fresh = abs(self._now_s() - introduced.at_s) < FRESH_S
        return fresh and introduced.server == self._server and self._known(introduced.key)


def server_digest(certificate_pem: bytes) -> Digest:
    """What an introduction names a server by: the SHA-256 of its root, the last of the certificates."""
    return Digest(x509.load_pem_x509_certificates(certificate_pem)[-1].fingerprint(SHA256()))
