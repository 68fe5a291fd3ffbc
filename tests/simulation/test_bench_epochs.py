"""The benchmark of epochs has its keys, and names what tenants and provider would link."""

import numpy as np
import pytest
from typer.testing import CliRunner

from federation.protocol.plan import Plan
from simulation.bench import attendance, epochs, learning
from simulation.cli import app
from tests.support import schemas
from tests.support.factories import InsecureSilence


@pytest.mark.nightly
def test_tokens_change_and_totals_begin_anew_with_the_epoch() -> None:
    year = learning.live(epochs.scenario(quick=True), 0)
    assert [plan.end_hour // 168 for plan in year.plans] == [1, 4, 13, 14, 17, 26]
    first, second = ({token for plan in year.plans if plan.epoch == epoch for token in rows(plan)} for epoch in (0, 1))
    assert first.isdisjoint(second)
    linked, alone = (epochs.names_of(year, linked=linked) for linked in (True, False))
    assert first <= linked.keys()
    assert {token for token in first if "context" in token} == first & alone.keys()
    assert second <= set(linked.values())
    answers = np.ones((len(year.plans), year.cloud.scenario.tenants), np.bool_)
    made = attendance.releases(year, attendance.failures_of(year), answers, InsecureSilence())
    whole = [sum(float(table.sum()) for table in counts) for counts in year.exact]
    shown = [sum(float(table.events.sum()) for table in made[at].tables) for at in (2, 5)]
    assert shown == pytest.approx([sum(whole[:3]), sum(whole[3:])])


def rows(plan: Plan) -> set[str]:
    return {level for dimension in plan.dimensions if dimension.owners for level in dimension.levels}


@pytest.mark.nightly
def test_figures_have_a_row_with_and_without_links_from_the_end_of_the_first_epoch_on() -> None:
    result = CliRunner().invoke(app, ["bench", "epochs", "--quick", "--clouds", "1", "--json"], catch_exceptions=False)
    held = schemas.held("pharoah-sim bench epochs", result.stdout)["rows"]
    assert [(row["weeks"], row["linked"]) for row in held] == [
        (w, on) for w in (13, 14, 17, 26) for on in (False, True)
    ]
    assert held[0]["average_precision"] == held[1]["average_precision"]  # before the change there is nothing to link
