"""Keeps the endorsed sets of rounds that are over: they say which answers of the tenant were opened.

Trustees endorse one set for each window of an epoch. Two of one window prove that more trustees are dishonest, or lost
their memory, than the federation stands. Both are kept, and no plan of that epoch is answered any more.
"""

from collections.abc import Collection, Iterable, Sequence

from crypto.codec import decode, encode
from crypto.errors import Equivocation, PlanRefused
from crypto.ids import TenantId
from federation.base.sqlite import Rows
from federation.protocol.endorsed import EndedRound, EndedRounds, EndorsedSet
from federation.protocol.plan import Plan


class EndorsedSets(Rows):
    """Reads and appends the sets of the tenant's database, which were checked before they came here."""

    def keep(self, rounds: Iterable[EndedRound]) -> None:
        """Appends those that are new, with the endorsements that prove them."""
        rows = [
            (bytes(one.endorsed.name), one.endorsed.epoch, one.endorsed.start_hour, encode(EndedRounds((one,))))
            for one in rounds
        ]
        self._connection.executemany("INSERT OR IGNORE INTO endorsed_sets VALUES (?, ?, ?, ?)", rows)

    def rounds(self) -> list[EndedRound]:
        """All of them with their endorsements, in the order of their windows."""
        rows = self._connection.execute("SELECT message FROM endorsed_sets ORDER BY epoch, start_h, name")
        return [one for (message,) in rows for one in decode(EndedRounds, message).rounds]

    def sets(self) -> list[EndorsedSet]:
        """All of them, in the order of their windows."""
        return [one.endorsed for one in self.rounds()]

    def refuse_two(self, epochs: Collection[int]) -> None:
        """Equivocation if two sets of one window of these epochs are kept."""
        query = "SELECT epoch, start_h FROM endorsed_sets GROUP BY epoch, start_h HAVING count(*) > 1"
        for epoch, start_h in self._connection.execute(query).fetchall():
            if epoch in epochs:
                raise Equivocation(
                    f"trustees endorsed different sets for the window from hour {start_h} of epoch {epoch}",
                    hint="both are kept in tenant.db as proof: show them to the trustees' owners and to other tenants;"
                    " no plan of this epoch is answered any more",
                )

    def refuse_over(self, plan: Plan) -> None:
        """PlanRefused if a set of the plan's window is there: nothing else of it is ever opened."""
        if any((one.epoch, one.start_hour) == (plan.epoch, plan.start_hour) for one in self.sets()):
            raise PlanRefused(
                f"plan {plan.round_id} refused: trustees endorsed a set for its window, and the round is over",
                hint="no action: what was not counted in that round counts again in the next window",
            )


def waited_since(endorsed: EndorsedSet, sets: Sequence[EndorsedSet], tenant: TenantId) -> int:
    """The first hour that an answer which `endorsed` names may have counted: windows just before wait by their sets."""
    waiting = {
        one.end_hour: one.start_hour for one in sets if one.epoch == endorsed.epoch and tenant not in one.tenants
    }
    since = endorsed.start_hour
    while since in waiting:
        since = waiting[since]
    return since
