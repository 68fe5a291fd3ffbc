"""The chain over a tenant's facts: each entry commits to a fact, each head to all entries so far.

    commitment = SHA-256("pharoah/claim-entry/1" 0 ‖ salt ‖ body)          salt: 32 random bytes, body: a fact
    head 0     = SHA-256("pharoah/claim-head/1" 0 ‖ tenant id)
    head n     = SHA-256("pharoah/claim-head/1" 0 ‖ head n − 1 ‖ commitment n)

- A commitment without its salt tells nothing of the fact, however few values that could have (a random oracle).
- Whoever knows head n accepts one list of n commitments, and of each one fact (SHA-256 has no collisions).
- Entries are appended when something asks for them (`seal`), in the order of the journal; none is changed.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from crypto.ids import Digest, TenantId
from crypto.ristretto import RandomBytes
from federation.base.sqlite import Connection, transaction
from tenant_client.program.anchors.facts import facts

ENTRY_LABEL, HEAD_LABEL = b"pharoah/claim-entry/1\0", b"pharoah/claim-head/1\0"
SALT_BYTES = 32


@dataclass(frozen=True)
class ChainEntry:
    """Entry `number`, from 1 on, with its fact."""

    number: int
    lease: str
    salt: bytes
    body: bytes

    @property
    def commitment(self) -> bytes:
        """What the chain holds of it."""
        return hashlib.sha256(ENTRY_LABEL + self.salt + self.body).digest()


class FactChain:
    """The chain in a tenant's database."""

    def __init__(self, connection: Connection, tenant: TenantId) -> None:
        self._connection = connection
        self._tenant = tenant

    def seal(self, random_bytes: RandomBytes) -> int:
        """Appends all facts that are new, or have changed; the number of entries then."""
        newest = "SELECT body FROM claim_entries WHERE subject = ? ORDER BY number DESC LIMIT 1"
        with transaction(self._connection):
            for fact in list(facts(self._connection)):
                if self._connection.execute(newest, (fact.subject,)).fetchone() != (fact.body,):
                    self._connection.execute(
                        "INSERT INTO claim_entries (subject, lease, salt, body) VALUES (?, ?, ?, ?)",
                        (fact.subject, fact.lease, random_bytes(SALT_BYTES), fact.body),
                    )
            (length,) = self._connection.execute("SELECT COALESCE(MAX(number), 0) FROM claim_entries").fetchone()
        return int(length)

    def entries(self) -> Iterator[ChainEntry]:
        """All entries, in order."""
        rows = self._connection.execute("SELECT number, lease, salt, body FROM claim_entries ORDER BY number")
        return (ChainEntry(number, lease, bytes(salt), bytes(body)) for number, lease, salt, body in rows)

    def head(self) -> Digest:
        """The head over all entries."""
        head = hashlib.sha256(HEAD_LABEL + self._tenant).digest()
        for entry in self.entries():
            head = hashlib.sha256(HEAD_LABEL + head + entry.commitment).digest()
        return Digest(head)
