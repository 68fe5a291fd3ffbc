"""The privacy ledger: append only, charged durably before any noise is drawn.

- The unit is a lease in a window. Windows of an epoch are disjoint: plans over different ones compose in parallel, and
  plans over the same one add up. An epoch has the windows of the first plan that was charged in it.
- A round is charged once, however often it is requested, for every window that its answer counts.
- A charge is given back when an endorsed set shows that the answer was not opened: its windows then count again, and
  pay again, in a later round.
- A set that names the tenant in a round that the ledger does not know shows that the database was set back. Then the
  windows that were counted there are charged as much as the policy allows.
- The database refuses to change, replace or delete a charge.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from crypto.errors import BudgetExceeded, PlanRefused
from crypto.ids import Digest, RoundId
from federation.base.clock import dates
from federation.base.sqlite import Rows, transaction
from federation.protocol.endorsed import EndorsedSet
from federation.protocol.plan import Plan
from federation.protocol.privacy_cost import NO_LOSS, PrivacyLoss, plan_loss


@dataclass(frozen=True)
class Charge:
    """The loss by one round of every unit of the windows in [start_h, end_h). `is_given_back`: it was not opened."""

    round_id: RoundId
    plan: Digest
    start_h: int
    end_h: int
    loss: PrivacyLoss
    is_given_back: bool = False

    @classmethod
    def of(cls, plan: Plan, named: Digest, start_h: int) -> "Charge":
        """What an answer to `plan`, whose signed bytes are `named`, costs if it counts from `start_h` on."""
        return cls(plan.round_id, named, start_h, plan.end_hour, plan_loss(plan))

    def pays(self, start_h: int, end_h: int) -> bool:
        """Whether units of [start_h, end_h) pay it."""
        return not self.is_given_back and self.start_h < end_h and start_h < self.end_h


class Ledger(Rows):
    """Reads and appends the charges of the tenant's database."""

    def charge(self, charge: Charge, plan: Plan, *, limit_epsilon: float, delta: float) -> None:
        """Commits `charge` for an answer to `plan` before it returns, unless its round was charged before.

        Raises BudgetExceeded, and writes nothing, if a unit of the windows would then exceed (limit_epsilon, delta).
        Raises PlanRefused if the round was charged for another plan, or the epoch for plans with other windows.
        """
        with transaction(self._connection):
            known = self._plan_of(charge.round_id)
            if known is None:
                self._keep_windows(plan)
                self._refuse_overspending(charge, limit_epsilon, delta)
                self._append(charge)
            elif known != charge.plan:
                raise PlanRefused(
                    f"round {charge.round_id} was answered for another plan", hint="a new plan needs a new round id"
                )

    def give_back(self, round_id: RoundId, endorsed: EndorsedSet) -> None:
        """Takes back the charge of a round, if there is one: the set of the round does not name this tenant."""
        if self._plan_of(round_id) is not None:
            row = bytes(round_id), bytes(endorsed.name)
            self._connection.execute("INSERT OR IGNORE INTO given_back VALUES (?, ?)", row)

    def remember(self, endorsed: EndorsedSet, start_h: int, limit_epsilon: float) -> None:
        """Charges a round that the ledger does not know and whose set names this tenant, from `start_h` on."""
        if self._plan_of(endorsed.round_id) is None:
            paid = PrivacyLoss(limit_epsilon, 0.0)
            self._append(Charge(endorsed.round_id, endorsed.name, start_h, endorsed.end_hour, paid))

    def charges(self) -> list[Charge]:
        """All charges, oldest window first."""
        rows = self._connection.execute(
            "SELECT round_id, plan, start_h, end_h, epsilon, rho, endorsed IS NOT NULL"
            " FROM charges LEFT JOIN given_back USING (round_id) ORDER BY start_h, end_h, round_id"
        )
        return [
            Charge(RoundId(round_id), Digest(plan), start, end, PrivacyLoss(epsilon, rho), bool(given_back))
            for round_id, plan, start, end, epsilon, rho, given_back in rows
        ]

    def charged_from(self, round_id: RoundId) -> int | None:
        """The first hour that the answer to a round was charged for; None before it is."""
        row = self._connection.execute("SELECT start_h FROM charges WHERE round_id = ?", (bytes(round_id),)).fetchone()
        return None if row is None else int(row[0])

    def spent(self, start_h: int, end_h: int) -> PrivacyLoss:
        """The most that a unit of any window in [start_h, end_h) has paid, in epsilon and in rho."""
        paying = [charge for charge in self.charges() if charge.pays(start_h, end_h)]
        begins = {max(start_h, charge.start_h) for charge in paying}
        paid = [sum((one.loss for one in paying if one.pays(hour, hour + 1)), NO_LOSS) for hour in begins]
        return PrivacyLoss(max((one.epsilon for one in paid), default=0.0), max((one.rho for one in paid), default=0.0))

    def windows(self) -> list[tuple[int, int]]:
        """The windows that any round was charged for, in order."""
        charges, edges = self.charges(), set(self._edges())
        edges |= {hour for charge in charges for hour in (charge.start_h, charge.end_h)}
        return [
            (start, end)
            for start, end in pairwise(sorted(edges))
            if any(charge.start_h <= start and end <= charge.end_h for charge in charges)
        ]

    def _edges(self) -> Iterable[int]:
        for (edges,) in self._connection.execute("SELECT edges FROM epoch_windows"):
            yield from map(int, edges.split())

    def _plan_of(self, round_id: RoundId) -> Digest | None:
        row = self._connection.execute("SELECT plan FROM charges WHERE round_id = ?", (bytes(round_id),)).fetchone()
        return None if row is None else Digest(row[0])

    def _keep_windows(self, plan: Plan) -> None:
        """Otherwise a unit would be in two windows, and pay in each as if it were not in the other."""
        row = plan.epoch, " ".join(map(str, plan.windows))
        self._connection.execute("INSERT OR IGNORE INTO epoch_windows VALUES (?, ?)", row)
        known = self._connection.execute("SELECT edges FROM epoch_windows WHERE epoch = ?", row[:1]).fetchone()
        if known[0] != row[1]:
            raise PlanRefused(
                f"plan {plan.round_id} refused: its windows of epoch {plan.epoch} are not those of an earlier plan",
                hint="the provider may change the windows of an epoch that has not begun, and no others",
            )

    def _refuse_overspending(self, charge: Charge, limit_epsilon: float, delta: float) -> None:
        total = (self.spent(charge.start_h, charge.end_h) + charge.loss).at(delta)
        if total > limit_epsilon:
            raise BudgetExceeded(
                f"{dates(charge.start_h, charge.end_h)} would have spent epsilon {total:.9g}, the limit is"
                f" {limit_epsilon:.9g} at delta {delta:.9g}"
            )

    def _append(self, charge: Charge) -> None:
        row = bytes(charge.round_id), bytes(charge.plan), charge.start_h, charge.end_h
        values = *row, charge.loss.epsilon, charge.loss.rho
        self._connection.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?)", values)
