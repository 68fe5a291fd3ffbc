"""The benchmark of many looks counts each accusation once, and has clouds that can be played."""

import pytest

from federation.protocol.bundle import PairJudgement
from simulation.cloud.scenario import load
from simulation.studies.looks import CELLS, Accusations, Accused, summary
from tests.support.changing import replace
from tests.support.pairs import pair


def test_an_accusation_counts_once_and_costs_what_it_cost_first() -> None:
    told, worse, suspected = Accusations(), PairJudgement.WORSE, PairJudgement.SUSPECTED
    told.add([pair("a", "x", 0.9, worse), pair("b", "x", 0.6, suspected)])
    told.add([pair("a", "x", 0.99, worse), pair("b", "x", 0.95, worse)])
    told.add([pair("a", "x", 0.7, suspected), pair("b", "x", 1.0, worse)])
    assert told.charges == {("a", "x"): pytest.approx(0.1), ("b", "x"): pytest.approx(0.05)}
    assert told.at_last == {("b", "x")}


def test_a_row_counts_distinct_pairs_of_all_years() -> None:
    def year(*ever: tuple[int, int]) -> Accused:
        return Accused("drift", "each_alone", frozenset(ever), frozenset(ever[:1]), frozenset({(1, 1)}))

    (row,) = summary([year((1, 1), (2, 2)), year((3, 3), (1, 1))]).rows
    assert (row.called, row.false, row.false_share, row.found, row.planted, row.seeds) == (4, 2, 0.5, 1, 2, 2)
    assert summary([replace(year(), ever=frozenset())]).rows[0].false_share is None


def test_every_kind_of_cloud_can_be_played() -> None:
    scenarios = {name: replace(load("standard"), **changes) for name, changes in CELLS.items()}
    assert {name for name, one in scenarios.items() if one.mismatches == 0} == {
        "null",
        "null_bursts",
        "null_drift",
        "null_late_workloads",
    }
