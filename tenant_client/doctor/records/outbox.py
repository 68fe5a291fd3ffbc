"""Stores contributions before they are sent: a plan is answered once, always with the stored bytes."""

from crypto.errors import PlanRefused
from crypto.ids import RoundId
from federation.base.sqlite import Rows, transaction


class Outbox(Rows):
    """Messages by round, each with the signed plan that it answers. No message is changed or removed."""

    def keep(self, round_id: RoundId, signed_plan: bytes, message: bytes) -> bytes:
        """Keeps the message unless a concurrent call was first; returns what is kept: nothing else is ever sent."""
        row = bytes(round_id), signed_plan, message
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO outbox VALUES (?, ?, ?)", row)
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
