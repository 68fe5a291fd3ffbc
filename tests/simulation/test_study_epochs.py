"""The benchmark of epochs has its keys, and names what tenants and provider would link."""

import numpy as np
import pytest

from federation.protocol.plan import Plan
from simulation.studies import attendance, epochs, learning
from tests.support.factories import InsecureSilence


@pytest.mark.nightly
def test_tokens_change_with_the_epoch_and_each_window_is_released_alone() -> None:
    year = learning.live(epochs.scenario(quick=True), 0)
    assert [plan.end_hour // 168 for plan in year.plans] == [2, 4, 6, 8, 10, 12]
    first, second = ({token for plan in year.plans if plan.epoch == epoch for token in rows(plan)} for epoch in (0, 1))
    assert first.isdisjoint(second)
    linked, alone = (epochs.names_of(year, linked=linked) for linked in (True, False))
    assert first <= linked.keys()
    assert {token for token in first if "context" in token} == first & alone.keys()
    assert second <= set(linked.values())
    answers = np.ones((len(year.plans), year.cloud.scenario.tenants), np.bool_)
    made = attendance.releases(year, attendance.failures_of(year), answers, InsecureSilence())
    whole = [sum(float(table.sum()) for table in counts) for counts in year.exact]
    assert [sum(float(table.events.sum()) for table in one.tables) for one in made] == pytest.approx(whole)


def rows(plan: Plan) -> set[str]:
    return {level for dimension in plan.dimensions if dimension.owners for level in dimension.levels}
