"""Bundles that the provider signed, and the digests that its plans name: all tenants must hold the same ones."""

from crypto.codec import digest
from crypto.errors import PeerFault
from crypto.signing import reopened
from federation.protocol.bundle import Bundle
from federation.protocol.plan import PublishedBundle
from federation.runtime.sqlite import Connection, transaction


class BundleLog:
    """Bundles by number, of which the first stays; a second one, or another digest in a plan, is the provider's fault.

    Whichever comes first, the plan or the bundle, is kept until the other is there.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def keep(self, number: int, signed_bundle: bytes) -> None:
        """Keeps a bundle; PeerFault for a second one of the same number, or one that a plan does not name."""
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO bundles VALUES (?, ?)", (number, signed_bundle))
            held = "SELECT message FROM bundles WHERE number = ?"
            (first,) = self._connection.execute(held, (number,)).fetchone()
        if first != signed_bundle:
            raise PeerFault(
                f"the provider signed two different bundles {number}",
                hint="the first one is used; ask the provider, and other tenants what they hold",
            )
        self._check(number)

    def keep_name(self, published: PublishedBundle, signed_plan: bytes) -> None:
        """Keeps what a plan calls a bundle; PeerFault if an earlier plan, or the bundle itself, says otherwise."""
        row = published.number, bytes(published.signed), signed_plan
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO published VALUES (?, ?, ?)", row)
            first = self._connection.execute("SELECT bundle FROM published WHERE number = ?", row[:1]).fetchone()
        if first[0] != row[1]:
            raise PeerFault(
                f"an earlier plan names another bundle {published.number} than this one",
                hint="tenants were told different things: compare bundles with them",
            )
        self._check(published.number)

    def newest(self) -> bytes | None:
        """The signed bytes of the newest bundle; None before the first."""
        row = self._connection.execute("SELECT message FROM bundles ORDER BY number DESC LIMIT 1").fetchone()
        return None if row is None else row[0]

    def newest_bundle(self) -> Bundle | None:
        """The newest one, whose signature was checked before it was kept; None before the first."""
        signed = self.newest()
        return None if signed is None else reopened(Bundle, signed)

    def _check(self, number: int) -> None:
        row = self._connection.execute(
            "SELECT bundle, message FROM published JOIN bundles USING (number) WHERE number = ?", (number,)
        ).fetchone()
        if row is not None and digest(row[1]) != row[0]:
            raise PeerFault(
                f"the plan names another bundle {number} than the provider signed for this tenant",
                hint="tenants were told different things: compare bundles with them",
            )
