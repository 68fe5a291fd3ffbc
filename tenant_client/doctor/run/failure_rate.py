"""Tells a job's hook how often its lease fails, so that `should_checkpoint()` knows the interval without being told.

    tenant.db: bundle, grant, hints ─ lease_hazard ─▶ `failures-per-hour` in the run directory ─▶ hook

Read is the home's database, which `pharoah-tenant serve` and `watch` fill, and nothing is sent. Where the bundle says
nothing of the hardware, the rate is that of other fleets and of own leases. Where neither a grant nor Slurm says how
many nodes the lease has, there is no file.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from crypto.signing import reopened
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.hostlist import hostlist
from federation.base.sqlite import Connection
from federation.protocol.bundle import Bundle
from tenant_client.doctor.advice.hints import Episode
from tenant_client.doctor.advice.lease_hazard import (
    LeaseHazard,
    first_experience,
    first_hazard,
    hinted_per_hour,
    lease_hazard,
)
from tenant_client.doctor.records.own_leases import own_leases
from tenant_client.doctor.run.hook.checkpoints import tell_rate
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.watchdog import WatchFinding
from tenant_client.doctor.run.watcher import Watcher

EVERY_S = 60.0
_BUSY_S = 0.2
_LEASE = (
    "SELECT start_h, labels, sizes.nodes, node_lists.nodes"
    " FROM units LEFT JOIN sizes USING (unit) LEFT JOIN node_lists USING (unit) WHERE unit = ?"
)


class FailureRate(Watcher):
    """The rate of one lease: by the newest bundle and, while a hint is `standing`, by the hint."""

    failure = "cannot tell how often the lease fails"

    def __init__(self, home: Path, lease: str, run_dir: Path, standing: Callable[[float], Sequence[Episode]]) -> None:
        self._file, self._lease, self._run_dir = home / "tenant.db", lease, run_dir
        self._standing = standing
        self._hazard: LeaseHazard | None = None
        self._start_h = 0.0
        self._bundle: int | None = -1
        self._read_at_s = -EVERY_S
        self._told: float | None = None

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        """Writes the rate for the hook where it has changed; the database is read every `EVERY_S`."""
        if not 0 <= now_s - self._read_at_s < EVERY_S:
            self._read_at_s = now_s
            self._read(now_s / SECONDS_PER_HOUR)
        rate = self.per_hour(now_s / SECONDS_PER_HOUR, self._standing(now_s))
        if rate is None and self._told is not None:  # what was told was a hint's, which is over
            rate = 0.0
        if rate is not None and rate != self._told:
            tell_rate(self._run_dir, rate)
            self._told = rate
        return ()

    def per_hour(self, now_h: float, standing: Sequence[Episode]) -> float | None:
        """Failures per hour now; None where nothing is known."""
        known = self._hazard.at(max(0.0, now_h - self._start_h)) if self._hazard else None
        if not standing:
            return known
        hint, factor = standing[-1].last, self._hazard.factor if self._hazard else 1.0
        return max(factor * hinted_per_hour(hint.probability, hint.within_hours), known or 0.0)

    def _read(self, now_h: float) -> None:
        if not self._file.exists():
            return
        uri = f"{self._file.absolute().as_uri()}?mode=ro"
        with closing(Connection(uri, timeout_s=_BUSY_S, uri=True)) as connection:
            (number,) = connection.execute("SELECT max(number) FROM bundles").fetchone()
            own = connection.execute(_LEASE, (self._lease,)).fetchone()
            if own is None or number == self._bundle:
                return
            start_h, labels, granted, node_list = own
            nodes = granted or len(set(hostlist(node_list or "")))
            if not nodes:
                return
            signed = connection.execute("SELECT message FROM bundles WHERE number = ?", (number,)).fetchone()
            found = lease_hazard(reopened(Bundle, signed[0]), json.loads(labels), nodes) if signed else None
            self._hazard = found or first_hazard(first_experience(own_leases(connection, now_h)), nodes)
            self._bundle, self._start_h = number, start_h
