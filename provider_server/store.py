"""The provider's memory: leases, releases and bundles in SQL. SQLite by default.

A release is written once and never changed; a second one for the same round is an error of the database.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import sqlalchemy as sa

from crypto.ids import LeaseId, RoundId, TenantId
from crypto.messages import Registration
from provider_server.leases import Lease

_metadata = sa.MetaData()

_leases = sa.Table(
    "leases",
    _metadata,
    sa.Column("lease", sa.LargeBinary, primary_key=True),
    sa.Column("tenant", sa.LargeBinary, nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False),
    sa.Column("start_h", sa.Float, nullable=False, index=True),
    sa.Column("end_h", sa.Float, nullable=False, index=True),
    sa.Column("contexts", sa.Text, nullable=False),
    sa.Column("ladder", sa.Text, nullable=True),
)
_releases = sa.Table(
    "releases",
    _metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("round_id", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("release", sa.LargeBinary, nullable=False),
)
_bundles = sa.Table(
    "bundles",
    _metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("bundle", sa.LargeBinary, nullable=False),
)


class Store:
    """Typed access to the provider's tables. Methods commit before they return."""

    def __init__(self, path: Path) -> None:
        self._engine = sa.create_engine(f"sqlite:///{path}")
        _metadata.create_all(self._engine)

    def close(self) -> None:
        """Releases the connections."""
        self._engine.dispose()

    def add_leases(self, leases: Iterable[Lease]) -> None:
        """Appends leases; IntegrityError if one exists."""
        rows = [
            {
                "lease": bytes(lease.lease),
                "tenant": bytes(lease.tenant),
                "nodes": lease.nodes,
                "start_h": lease.start_h,
                "end_h": lease.end_h,
                "contexts": json.dumps(dict(lease.labels), sort_keys=True),
            }
            for lease in leases
        ]
        if rows:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(_leases), rows)

    def register(self, registration: Registration) -> None:
        """Attaches workload tokens to the sender's own leases; those of others, or of nobody, are left alone."""
        change = (
            sa.update(_leases)
            .where(_leases.c.lease == sa.bindparam("of_lease"), _leases.c.tenant == bytes(registration.tenant))
            .values(ladder=sa.bindparam("tokens"))
        )
        rows = [
            {"of_lease": bytes(lease), "tokens": json.dumps(workload.ladder.labels)}
            for workload in registration.workloads
            for lease in workload.leases
        ]
        if rows:
            with self._engine.begin() as connection:
                connection.execute(change, rows)

    def leases(self, start_hour: float, end_hour: float) -> list[Lease]:
        """Leases that overlap [start_hour, end_hour), in order of start."""
        query = (
            sa.select(_leases)
            .where(_leases.c.start_h < end_hour, _leases.c.end_h > start_hour)
            .order_by(_leases.c.start_h, _leases.c.lease)
        )
        with self._engine.connect() as connection:
            return [_lease(row) for row in connection.execute(query)]

    def add_release(self, round_id: RoundId, release: bytes) -> None:
        """Keeps a release for good; IntegrityError for a second one of the same round."""
        with self._engine.begin() as connection:
            connection.execute(sa.insert(_releases).values(round_id=bytes(round_id), release=release))

    def releases(self) -> Sequence[bytes]:
        """All releases, oldest first."""
        with self._engine.connect() as connection:
            return [row.release for row in connection.execute(sa.select(_releases).order_by(_releases.c.number))]

    def add_bundle(self, number: int, bundle: bytes) -> None:
        """Keeps a signed bundle."""
        with self._engine.begin() as connection:
            connection.execute(sa.insert(_bundles).values(number=number, bundle=bundle))

    def newest_bundle(self) -> tuple[int, bytes] | None:
        """Number and bytes of the newest bundle, None before the first."""
        query = sa.select(_bundles).order_by(_bundles.c.number.desc()).limit(1)
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else (row.number, row.bundle)


def _lease(row: sa.Row[tuple[bytes, bytes, int, float, float, str, str | None]]) -> Lease:
    labels = _labels(row.contexts, row.ladder)
    return Lease(LeaseId(row.lease), TenantId(row.tenant), row.nodes, row.start_h, row.end_h, labels)


@lru_cache(maxsize=4096)
def _labels(contexts: str, ladder: str | None) -> Mapping[str, str]:
    """The labels of a lease; few distinct ones stand behind very many leases, so they are shared."""
    return MappingProxyType(json.loads(contexts) | (json.loads(ladder) if ladder else {}))
