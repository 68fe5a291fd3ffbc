"""What rounds cost, week by week."""

from collections.abc import Iterable, Mapping

from crypto.ids import RoundId
from federation.protocol.plan import HOURS_PER_WEEK, Plan
from federation.protocol.privacy_cost import NO_LOSS, PrivacyLoss, plan_loss


def spent_by_week(plans: Iterable[Plan]) -> Mapping[int, tuple[int, PrivacyLoss]]:
    """By week since 1970: how many of `plans`, oldest first, counted it, and what a job-week of it has paid for them.

    A round of a series counts all weeks since the round before. Of tenants that were away, the provider knows less.
    """
    paid: dict[int, tuple[int, PrivacyLoss]] = {}
    counted_until: dict[RoundId, int] = {}
    for plan in plans:
        series = plan.series.name if plan.series else plan.round_id
        latest, until = plan.end_hour if plan.is_second else plan.start_hour, plan.end_hour
        since = min(counted_until.get(series, plan.first_hour), latest)
        counted_until[series] = until
        for week in range(since // HOURS_PER_WEEK, -(-until // HOURS_PER_WEEK)):
            rounds, loss = paid.get(week, (0, NO_LOSS))
            paid[week] = rounds + 1, loss + plan_loss(plan)
    return dict(sorted(paid.items()))
