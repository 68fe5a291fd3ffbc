"""A trustee's anchors of tenants' journals: one line for each tenant, of which it keeps the newest."""

from crypto.errors import OutOfOrder, PeerFault
from crypto.ids import TenantId
from crypto.signing import SigningKey, name_of, open_signed_by, reopened
from federation.base.sqlite import Connection, transaction
from federation.protocol.anchors import NOTHING_BEFORE, Anchor, AnchorRequest
from federation.protocol.directory import Directory
from federation.protocol.versions import asked_in

SCHEMA = "CREATE TABLE IF NOT EXISTS anchors (tenant BLOB PRIMARY KEY, message BLOB NOT NULL);\n"


class Anchors:
    """Signs the next anchor of a tenant, as trustee `index`."""

    def __init__(self, connection: Connection, signing_key: SigningKey, index: int) -> None:
        self._connection = connection
        self._signing_key = signing_key
        self._index = index

    def sign(self, request: bytes, directory: Directory, at_s: int) -> bytes:
        """The signed anchor, dated `at_s` (seconds since 1970); a repeated request gets the anchor that it got.

        Raises OutOfOrder for any number but the next, PeerFault for a request to another trustee, BadSignature for a
        stranger.
        """
        asked = open_signed_by(AnchorRequest, request, directory.verify_key)
        if asked.trustee != self._index:
            raise PeerFault(f"this request is for trustee {asked.trustee}, not {self._index}")
        with transaction(self._connection):
            kept = self._newest(asked.tenant)
            number, before = 1, NOTHING_BEFORE
            if kept is not None:
                newest = reopened(Anchor, kept)
                if (newest.number, newest.head) == (asked.number, asked.head):
                    return kept
                number, before = newest.number + 1, name_of(kept)
            if asked.number != number:
                raise OutOfOrder(
                    f"trustee {self._index} gives this tenant anchor {number} next, not {asked.number}",
                    hint="a journal that was restored from a backup has lost anchors, and gets no more",
                )
            anchor = self._signing_key.sign(
                Anchor(self._index, asked.tenant, asked.number, asked.head, before, at_s), asked_in.get()
            )
            self._connection.execute("INSERT OR REPLACE INTO anchors VALUES (?, ?)", (bytes(asked.tenant), anchor))
        return anchor

    def _newest(self, tenant: TenantId) -> bytes | None:
        row = self._connection.execute("SELECT message FROM anchors WHERE tenant = ?", (bytes(tenant),)).fetchone()
        return None if row is None else bytes(row[0])
