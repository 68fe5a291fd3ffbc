"""The privacy ledger: append only, charged durably before any noise is drawn.

- The unit is a job-week. Plans over different weeks compose in parallel; plans over the same week add up.
- A window that is not made of whole weeks is charged to every week that it touches. Otherwise seven plans of one day
  would count as disjoint, although a job-week is in all of them.
- A round is charged once, however often it is requested. In a series the first answer for a job-week pays for all later
  rounds.
- The database refuses to change, replace or delete a charge.
"""

from dataclasses import dataclass

from crypto.errors import BudgetExceeded, PlanRefused
from crypto.ids import Digest, RoundId
from federation.protocol.plan import HOURS_PER_WEEK, Plan
from federation.protocol.privacy_cost import NO_LOSS, PrivacyLoss
from federation.runtime.sqlite import Connection, transaction


@dataclass(frozen=True)
class Charge:
    """The loss by one round of every job-week that [start_h, end_h) touches."""

    round_id: RoundId
    plan: Digest
    start_h: int
    end_h: int
    loss: PrivacyLoss
    series: RoundId | None = None

    @property
    def weeks(self) -> range:
        """The weeks that pay."""
        return weeks_of(self.start_h, self.end_h)


def weeks_of(start_h: int, end_h: int) -> range:
    """The weeks that [start_h, end_h) touches, numbered from the federation's start.

    >>> weeks_of(0, 168), weeks_of(160, 176)
    (range(0, 1), range(0, 2))
    """
    return range(start_h // HOURS_PER_WEEK, -(-end_h // HOURS_PER_WEEK))


class Ledger:
    """Reads and appends the charges of the tenant's database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def charge(self, charge: Charge, *, limit_epsilon: float, delta: float) -> None:
        """Commits `charge` before it returns, unless its round was charged before.

        Raises BudgetExceeded, and writes nothing, if a job-week of the window would then exceed (limit_epsilon, delta).
        Raises PlanRefused if the round was charged for another plan.
        """
        with transaction(self._connection):
            known = self._plan_of(charge.round_id)
            if known is None:
                self._refuse_overspending(charge, limit_epsilon, delta)
                self._append(charge)
            elif known != charge.plan:
                raise PlanRefused(
                    f"round {charge.round_id} was answered for another plan", hint="a new plan needs a new round id"
                )

    def charges(self) -> list[Charge]:
        """All charges, oldest window first."""
        rows = self._connection.execute(
            "SELECT round_id, plan, start_h, end_h, epsilon, rho, series FROM charges LEFT JOIN series USING (round_id)"
            " ORDER BY start_h, round_id"
        )
        return [
            Charge(RoundId(r), Digest(p), start, end, PrivacyLoss(e, rho), RoundId(series) if series else None)
            for r, p, start, end, e, rho, series in rows
        ]

    def begins(self, plan: Plan, carry_over_weeks: int) -> int:
        """The hour from which an answer to `plan` counts: where the answers to the rounds of its series have ended.

        No more than `carry_over_weeks` before its window: weeks that were missed earlier are not counted any more.
        """
        charges = self.charges()
        own = [charge.start_h for charge in charges if charge.round_id == plan.round_id]
        if own:
            return own[0]
        name = plan.series.name if plan.series else None
        ends = [charge.end_h for charge in charges if name is not None and charge.series == name]
        return max([plan.first_hour, plan.start_hour - carry_over_weeks * HOURS_PER_WEEK, *ends])

    def spent(self, start_h: int, end_h: int) -> PrivacyLoss:
        """The most that any job-week that [start_h, end_h) touches has paid, in epsilon and in rho."""
        asked, charges = weeks_of(start_h, end_h), self.charges()
        if not asked:
            return NO_LOSS
        rises = {asked.start, *(charge.weeks.start for charge in charges if charge.weeks.start in asked)}
        paid = [sum((charge.loss for charge in charges if week in charge.weeks), NO_LOSS) for week in rises]
        return PrivacyLoss(max(loss.epsilon for loss in paid), max(loss.rho for loss in paid))

    def _plan_of(self, round_id: RoundId) -> Digest | None:
        row = self._connection.execute("SELECT plan FROM charges WHERE round_id = ?", (bytes(round_id),)).fetchone()
        return None if row is None else Digest(row[0])

    def _refuse_overspending(self, charge: Charge, limit_epsilon: float, delta: float) -> None:
        total = (self.spent(charge.start_h, charge.end_h) + charge.loss).at(delta)
        if total > limit_epsilon:
            raise BudgetExceeded(
                f"hours {charge.start_h}–{charge.end_h} would have spent epsilon {total:.9g}, the limit is"
                f" {limit_epsilon:.9g} at delta {delta:.9g}"
            )

    def _append(self, charge: Charge) -> None:
        self._connection.execute(
            "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?)",
            (
                bytes(charge.round_id),
                bytes(charge.plan),
                charge.start_h,
                charge.end_h,
                charge.loss.epsilon,
                charge.loss.rho,
            ),
        )
        if charge.series is not None:
            row = bytes(charge.round_id), bytes(charge.series)
            self._connection.execute("INSERT INTO series VALUES (?, ?)", row)
