"""Stores signed bundles, and the bundle digests in plans: all tenants must have the same bundles."""

from typing import TYPE_CHECKING

from crypto.codec import digest
from crypto.errors import PeerFault
from crypto.signing import reopened
from federation.base.sqlite import Rows, transaction
from federation.protocol.bundle import Bundle

if TYPE_CHECKING:
    from federation.protocol.plan import PublishedBundle  # loads numpy, which verbs that plan or explain do without


_ALL = "SELECT message FROM bundles ORDER BY number"


class BundleLog(Rows):
    """Bundles by number. The first of a number stays; another one, or another digest in a plan, is a PeerFault.

    Plan and bundle may arrive in any order.
    """

    def keep(self, number: int, signed_bundle: bytes) -> None:
        """Stores a bundle; PeerFault for another one of the same number, or with another digest than in a plan."""
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO bundles VALUES (?, ?)", (number, signed_bundle))
            held = "SELECT message FROM bundles WHERE number = ?"
            (first,) = self._connection.execute(held, (number,)).fetchone()
        if first != signed_bundle:
            raise PeerFault(
                f"the provider signed two different bundles {number}",
                hint="the first one is used; ask the provider, and compare bundles with other tenants",
            )
        self._check(number)

    def keep_name(self, published: "PublishedBundle", signed_plan: bytes) -> None:
        """Stores the bundle digest of a plan; PeerFault if an earlier plan or the bundle itself has another."""
        row = published.number, bytes(published.signed), signed_plan
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO published VALUES (?, ?, ?)", row)
            first = self._connection.execute("SELECT bundle FROM published WHERE number = ?", row[:1]).fetchone()
        if first[0] != row[1]:
            raise PeerFault(
                f"two plans name different digests for bundle {published.number}",
                hint="the provider may show tenants different bundles: compare with other tenants",
            )
        self._check(published.number)

    def newest(self) -> bytes | None:
        """The signed bytes of the newest bundle; None before the first."""
        row = self._connection.execute("SELECT message FROM bundles ORDER BY number DESC LIMIT 1").fetchone()
        return None if row is None else row[0]

    def newest_bundle(self) -> Bundle | None:
        """The newest bundle, or None. Its signature was checked before it was stored."""
        signed = self.newest()
        return None if signed is None else reopened(Bundle, signed)

    def bundles(self) -> list[Bundle]:
        """All bundles, oldest first. Their signatures were checked before they were stored."""
        return [reopened(Bundle, signed) for (signed,) in self._connection.execute(_ALL)]

    def _check(self, number: int) -> None:
        row = self._connection.execute(
            "SELECT bundle, message FROM published JOIN bundles USING (number) WHERE number = ?", (number,)
        ).fetchone()
        if row is not None and digest(row[1]) != row[0]:
            raise PeerFault(
                f"the plan names another bundle {number} than the provider signed for this tenant",
                hint="the provider may show tenants different bundles: compare with other tenants",
            )
