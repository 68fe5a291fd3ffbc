"""How many evaluations of tokens each tenant has had in each epoch, and what was answered.

- Founders and older members have `evaluations_per_epoch` each.
- Members that joined in this epoch or the one before have `evaluations_floor` each (enough for one busy tenant), and
  share the rest of one older member's quota. So invented members give the provider only their floor, and no new member
  is locked out.
- A repeated request gets the same answer and is not charged again. Charge and answer are written both or neither.
"""

import math
from collections.abc import Callable, Set as AbstractSet

from crypto.errors import QuotaExceeded, Refusal
from crypto.ids import Digest, TenantId
from federation.base.sqlite import Connection, transaction
from federation.protocol.directory import Directory
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.round_messages import EvaluationRequest

SCHEMA = """
CREATE TABLE IF NOT EXISTS joined (tenant BLOB PRIMARY KEY, seen_h REAL NOT NULL);
CREATE TABLE IF NOT EXISTS evaluations (
    tenant BLOB NOT NULL, epoch INTEGER NOT NULL, elements INTEGER NOT NULL, PRIMARY KEY (tenant, epoch));
CREATE TABLE IF NOT EXISTS evaluated (request BLOB PRIMARY KEY, epoch INTEGER NOT NULL, answer BLOB NOT NULL);
"""
EPOCHS_KEPT = 1  # answers to requests of older epochs are asked for by nobody


class EpochNotCurrent(Refusal):
    """A tenant asked for tokens of an epoch that is neither this one nor a neighbour of it."""

    default_hint = "set the clocks of tenant and trustee; only tokens of the current epoch are of use"


class Meter:
    """The meter of one trustee, in its database. Epochs are checked only if there is a clock."""

    def __init__(
        self, connection: Connection, per_epoch: int, floor: int, now_hour: Callable[[], float] | None
    ) -> None:
        self._connection = connection
        self._per_epoch = per_epoch
        self._floor = min(per_epoch, floor)
        self._now_hour = now_hour

    def check_epoch(self, epoch: int, directory: Directory) -> None:
        """EpochNotCurrent for an epoch that is neither this one nor a neighbour of it."""
        if self._now_hour is None:
            return
        current = directory.epoch(self._now_hour())
        if abs(epoch - current) > 1:
            raise EpochNotCurrent(f"requested epoch {epoch}, current epoch {current}")

    def answered(self, request: Digest) -> bytes | None:
        """What a request was answered before."""
        row = self._connection.execute("SELECT answer FROM evaluated WHERE request = ?", (bytes(request),)).fetchone()
        return None if row is None else bytes(row[0])

    def charge(self, asked: EvaluationRequest, named: Digest, answer: bytes, directory: Directory) -> bytes:
        """Charges the tenant and keeps the answer; the kept one if another thread was first. QuotaExceeded."""
        with transaction(self._connection):
            if (first := self.answered(named)) is not None:
                return first
            self._refuse_overuse(asked, directory)
            self._connection.execute(
                "INSERT INTO evaluations VALUES (?, ?, ?)"
                " ON CONFLICT (tenant, epoch) DO UPDATE SET elements = elements + excluded.elements",
                (bytes(asked.tenant), asked.epoch, len(asked.elements)),
            )
            self._forget_older_epochs(directory)
            self._connection.execute("INSERT INTO evaluated VALUES (?, ?, ?)", (bytes(named), asked.epoch, answer))
        return answer

    def evaluations(self) -> dict[tuple[TenantId, int], int]:
        """The log: how many elements each tenant had evaluated in each epoch."""
        rows = self._connection.execute("SELECT tenant, epoch, elements FROM evaluations")
        return {(TenantId(tenant), epoch): elements for tenant, epoch, elements in rows}

    def note_members(self, joined: AbstractSet[TenantId]) -> None:
        """Remembers when each member that is no founder was first seen here: the directory has no dates of its own."""
        seen_h = self._now_hour() if self._now_hour else math.inf
        with transaction(self._connection):
            rows = [(bytes(tenant), seen_h) for tenant in joined]
            self._connection.executemany("INSERT OR IGNORE INTO joined VALUES (?, ?)", rows)

    def _forget_older_epochs(self, directory: Directory) -> None:
        """By this trustee's own clock: which epoch is asked for, whoever asks can choose."""
        if self._now_hour is not None:
            current = directory.epoch(self._now_hour())
            self._connection.execute("DELETE FROM evaluated WHERE epoch < ?", (current - EPOCHS_KEPT,))

    def _refuse_overuse(self, asked: EvaluationRequest, directory: Directory) -> None:
        used = {tenant: elements for (tenant, epoch), elements in self.evaluations().items() if epoch == asked.epoch}
        granted, wanted = self._per_epoch, used.get(asked.tenant, 0) + len(asked.elements)
        recent = self._newcomers(directory)
        if asked.tenant in recent:
            beyond = sum(max(0, used.get(tenant, 0) - self._floor) for tenant in recent - {asked.tenant})
            granted = max(self._floor, granted - beyond)
        if wanted > granted:
            raise QuotaExceeded(
                f"tenant {asked.tenant.hex()[:12]}… asked for {wanted} evaluations in epoch {asked.epoch},"
                f" {granted} are granted"
            )

    def _newcomers(self, directory: Directory) -> set[TenantId]:
        """Members that joined in this epoch or the one before, as far as this trustee saw; founders never are."""
        now_h = self._now_hour() if self._now_hour else 0.0
        since = now_h - 2 * HOURS_PER_WEEK * directory.weeks_per_epoch
        rows = self._connection.execute("SELECT tenant FROM joined WHERE seen_h >= ?", (since,))
        return {TenantId(tenant) for (tenant,) in rows}
