"""Stores the provider's signed grants of leases: the first of each lease counts, another one is kept as proof."""

from crypto.codec import digest
from crypto.ids import LeaseId
from crypto.signing import reopened
from federation.base.sqlite import Rows, transaction
from federation.protocol.round_messages import GrantedLease, LeaseGrants


class GrantLog(Rows):
    """The signed grants that a lease or a refusal is based on."""

    def keep(self, grants: bytes, granted: LeaseGrants) -> set[LeaseId]:
        """Stores the first grant of each lease, and different ones as proof; returns the leases with different ones."""
        named, changed = bytes(digest(grants)), set()
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO grants VALUES (?, ?)", (named, grants))
            for lease in granted.leases:
                first = self._first(lease.lease)
                if first is None:
                    self._connection.execute("INSERT INTO granted VALUES (?, ?)", (bytes(lease.lease), named))
                elif (first.epoch, first.labels, first.units) != (lease.epoch, lease.labels, lease.units):
                    self._connection.execute(
                        "INSERT OR IGNORE INTO grants_refused VALUES (?, ?)", (bytes(lease.lease), named)
                    )
                    changed.add(lease.lease)
            self._connection.execute(
                "DELETE FROM grants WHERE digest NOT IN"
                " (SELECT grants FROM granted UNION SELECT grants FROM grants_refused)"
            )
        return changed

    def labels(self, lease: LeaseId) -> dict[str, str]:
        """The context tokens of a lease by its first grant; none before it."""
        first = self._first(lease)
        return {} if first is None else first.labels

    def parts(self, unit: str) -> dict[str, tuple[str, ...]]:
        """The tokens of the parts that each node of a unit hangs on, by its first grant; none for one without grant."""
        granted = "SELECT lease FROM granted WHERE lower(hex(lease)) = ?"
        row = self._connection.execute(granted, (unit,)).fetchone()
        first = self._first(LeaseId(row[0])) if row else None
        return {node: unit.tokens for unit in first.units for node in unit.nodes} if first else {}

    def refused(self) -> list[tuple[LeaseId, bytes, bytes]]:
        """Leases with two different grants: the name and both signed grants."""
        rows = self._connection.execute(
            "SELECT lease, first.message, other.message FROM grants_refused JOIN granted USING (lease)"
            " JOIN grants AS first ON first.digest = granted.grants"
            " JOIN grants AS other ON other.digest = grants_refused.grants ORDER BY lease"
        )
        return [(LeaseId(lease), bytes(first), bytes(other)) for lease, first, other in rows]

    def _first(self, lease: LeaseId) -> GrantedLease | None:
        row = self._connection.execute(
            "SELECT message FROM granted JOIN grants ON digest = grants WHERE lease = ?", (bytes(lease),)
        ).fetchone()
        if row is None:
            return None
        return next(one for one in reopened(LeaseGrants, row[0]).leases if one.lease == lease)
