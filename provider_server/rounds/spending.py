"""What rounds cost, window by window."""

from collections.abc import Iterable, Mapping

from federation.protocol.plan import Plan
from federation.protocol.privacy_cost import PrivacyLoss, plan_loss
from provider_server.rounds.schedule import Window


def spent_by_window(plans: Iterable[Plan]) -> Mapping[Window, PrivacyLoss]:
    """By window: what a unit in it pays, if it was counted in the round of that window.

    A unit that waited is paid for once too, and the provider does not know which ones did.
    """
    return {plan.window: plan_loss(plan) for plan in sorted(plans, key=lambda plan: plan.start_hour)}
