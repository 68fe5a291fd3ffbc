"""Stores contributions before they are sent: a plan is answered once, always with the stored bytes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from crypto.errors import PharoahError, PlanRefused
from crypto.ids import RoundId
from federation.base.sqlite import Rows, transaction

if TYPE_CHECKING:  # loads what only a federation needs
    from federation.protocol.plan import Plan


@dataclass(frozen=True)
class RefusedPlan:
    """The window of a plan that was refused, why, and what to do."""

    start_hour: int
    end_hour: int
    why: str
    hint: str


class Outbox(Rows):
    """Messages by round, each with the signed plan that it answers. No message is changed or removed."""

    def refuse(self, plan: "Plan", refusal: PharoahError) -> None:
        """Notes why the newest plan was refused; it is what `refused` tells until a plan is answered."""
        row = bytes(plan.round_id), plan.start_hour, plan.end_hour, refusal.what, refusal.hint
        with transaction(self._connection):
            self._connection.execute("DELETE FROM refused")
            self._connection.execute("INSERT INTO refused VALUES (?, ?, ?, ?, ?)", row)

    def refused(self) -> RefusedPlan | None:
        """The newest plan, if it was refused."""
        row = self._connection.execute("SELECT start_h, end_h, why, hint FROM refused").fetchone()
        return None if row is None else RefusedPlan(*row)

    def keep(self, round_id: RoundId, signed_plan: bytes, message: bytes) -> bytes:
        """Keeps the message unless a concurrent call was first; returns what is kept: nothing else is ever sent."""
        row = bytes(round_id), signed_plan, message
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO outbox VALUES (?, ?, ?)", row)
            self._connection.execute("DELETE FROM refused")
            kept = self._connection.execute("SELECT message FROM outbox WHERE round_id = ?", row[:1]).fetchone()
        return bytes(kept[0])

    def answer(self, round_id: RoundId, signed_plan: bytes) -> bytes | None:
        """The answer to this plan, None if there is none yet; PlanRefused if another plan of the round was answered."""
        query = "SELECT signed_plan, message FROM outbox WHERE round_id = ?"
        with transaction(self._connection):  # or another thread's message might be read and sent before it is kept
            row = self._connection.execute(query, (bytes(round_id),)).fetchone()
        if row is None:
            return None
        if row[0] != signed_plan:
            raise PlanRefused(
                f"round {round_id} was answered for another plan",
                hint="the provider must use a new round id for a new plan",
            )
        return bytes(row[1])

    def sent(self, round_id: RoundId) -> bytes | None:
        """The very bytes that were sent for a round."""
        row = self._connection.execute("SELECT message FROM outbox WHERE round_id = ?", (bytes(round_id),)).fetchone()
        return None if row is None else bytes(row[0])

    def signed_plans(self) -> list[bytes]:
        """Every plan that was answered, as it was signed, oldest first."""
        rows = self._connection.execute("SELECT signed_plan FROM outbox JOIN charges USING (round_id) ORDER BY end_h")
        return [signed for (signed,) in rows]
