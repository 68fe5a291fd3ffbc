"""The benchmark of openings has its keys, and counts how soon a pair is found as it says."""

import pytest
from typer.testing import CliRunner

from simulation.bench.learning import live
from simulation.bench.openings import ANSWERING, SHIPPED, WAYS, Seen, shipped
from simulation.cli import app
from tests.support import schemas


def test_a_pair_that_is_never_found_counts_for_the_whole_year() -> None:
    one, other = (1, 1), (2, 2)
    found = {4: frozenset[tuple[int, int]](), 13: frozenset({one}), 26: frozenset({one, other})}
    seen = Seen("weekly", 1.0, (), {}, found, planted=4)
    assert seen.weeks_to_find(52) == (13 + 26 + 52 + 52) / 4


def test_rounds_are_at_the_openings_and_hold_every_week_once() -> None:
    year, weekly = live(shipped((1, 4), quick=True), 0), live(shipped((), quick=True), 0)
    assert [plan.end_hour // 168 for plan in year.plans] == [1, 4, 6]
    assert year.plans[0].noise_shares == SHIPPED.noise_shares
    hours = [sum(slices.node_hours.sum() for slices in one.slices) for one in (year, weekly)]
    assert hours[0] == pytest.approx(hours[1])
    ran = [sum(len(slices.leases) for slices in one.slices) for one in (year, weekly)]
    assert ran[0] == ran[1]  # job-weeks, not leases


@pytest.mark.nightly
def test_figures_have_a_row_for_each_way() -> None:
    words = ["bench", "openings", "--quick", "--clouds", "1", "--json"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    held = schemas.held("pharoah-sim bench openings", result.stdout)
    assert {(row["way"], row["answering"]) for row in held["rows"]} == {(way, a) for way in WAYS for a in ANSWERING}
    assert [row["way"] for row in held["delays"]] == list(WAYS)
    assert all(1 <= row["weeks_to_find"] <= 6 for row in held["delays"])
