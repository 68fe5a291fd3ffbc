"""Placement by hazard: least interruptions of long jobs by brute force, capacity as it was, and the operator's verb."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from provider_server.fleet.hints.node_placement import PlacedNode, placed
from typer.testing import CliRunner

from provider_server.fleet.analysis.placement import choose, matched
from provider_server.fleet.analysis.probation import shipped
from provider_server.fleet.hints import node_reports
from provider_server.fleet.hints.node_reports import NodeReport
from provider_server.fleet.learning.hardware import Repair
from provider_server.fleet.learning.on_probation import OnProbation
from provider_server.program.cli import app

HOUR = 480_000


def report(node: str, level: int = 0, rate: float | None = 2.0, *, heard: bool = True) -> NodeReport:
    return NodeReport(node, HOUR, level, heard, "memory" if level else "", 1, "H100", failures_per_1000_node_hours=rate)


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 50)), min_size=1, max_size=6, unique_by=lambda one: one[0])
)
def test_no_other_order_interrupts_less(jobs: list[tuple[int, int]]) -> None:
    hours, rates = (np.array(column, np.float64) for column in zip(*jobs, strict=True))
    ones = np.ones(len(jobs))
    place = matched(hours, ones, rates, ones)
    assert sorted(place.tolist()) == list(range(len(jobs)))
    least = min(float(hours @ rates[list(order)]) for order in itertools.permutations(range(len(jobs))))
    assert float(hours @ rates[place]) == pytest.approx(least)


def test_places_keep_their_capacity_to_within_one_job() -> None:
    rng = np.random.default_rng(1)
    hours, nodes = rng.exponential(24.0, 500), rng.integers(1, 5, 500)
    takes, rates, capacity = hours * nodes, rng.random(8), rng.random(8)
    place = matched(hours, takes, rates, capacity)
    filled = np.bincount(place, takes, 8)
    assert np.abs(filled - capacity * takes.sum() / capacity.sum()).max() <= takes.max()
    healthiest, riskiest = hours[place == rates.argmin()], hours[place == rates.argmax()]
    assert healthiest.min() >= riskiest.max()


def test_jobs_without_a_place_are_an_error() -> None:
    with pytest.raises(ValueError, match="capacity"):
        matched(np.ones(1), np.ones(1), np.ones(2), np.zeros(2))


def test_long_jobs_take_the_healthiest_and_short_ones_the_riskiest() -> None:
    rates = np.array([3.0, 1.0, 2.0, 9.0])
    assert choose(rates, 2, is_long=True).tolist() == [1, 2]
    assert choose(rates, 2, is_long=False).tolist() == [3, 0]
    assert len(choose(rates, 9, is_long=False)) == 4


def test_silence_drift_and_repairs_make_a_node_risky() -> None:
    probation = OnProbation.since([Repair("back", HOUR - 24), Repair("long ago", HOUR - 9_000)], shipped())
    nodes = [
        report("calm"),
        report("drifts", level=2),
        report("back"),
        report("long ago"),
        report("mute", heard=False),
        report("other", rate=None),
    ]
    rows = {row["node"]: row for row in placed(nodes, probation, HOUR, 0.5)}
    assert next(iter(rows)) == "mute"
    assert [name for name, row in rows.items() if row["jobs"] == "short"] == list(rows)[:3]
    assert {"mute", "drifts", "back"} == set(list(rows)[:3])
    assert rows["drifts"]["failures_per_1000_node_hours"] == 8.0
    assert rows["other"]["failures_per_1000_node_hours"] == 2.0  # the mean of the others
    assert rows["back"]["times_usual"] == shipped().ratio(24.0)
    assert rows["mute"]["failures_per_1000_node_hours"] is None


def test_where_nothing_has_failed_yet_worn_nodes_are_still_the_riskiest() -> None:
    probation = OnProbation.since([], shipped())
    nodes = [report("a", rate=0.0), report("worn", level=3, rate=0.0), report("b", rate=0.0)]
    rows = placed(nodes, probation, HOUR, 0.34)
    assert rows[0]["node"] == "worn"
    assert [row["jobs"] for row in rows] == ["short", "long", "long"]
    assert rows[0]["failures_per_1000_node_hours"] == 0.0
    told = placed([*nodes, report("failing", rate=0.5)], probation, HOUR, 0.0)
    assert told[0]["node"] == "worn"  # eight times the mean of the others, not eight times nothing


def called(home: Path, *words: str) -> str:
    result = CliRunner().invoke(app, ["nodes", "placement", "--home", str(home), *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_verb_prints_rows_and_names(tmp_path: Path) -> None:
    node_reports.keep(tmp_path, [report("n1"), report("n2", level=3), report("n3"), report("n4")])
    rows: list[PlacedNode] = json.loads(called(tmp_path, "--share", "0.25", "--json"))
    assert (rows[0]["node"], rows[0]["jobs"]) == ("n2", "short")
    assert {row["jobs"] for row in rows[1:]} == {"long"}
    assert called(tmp_path, "--share", "0.25", "--names") == "n2\n"
    assert "n2: for short jobs, 16 failures per 1,000 node-hours, 8 times the usual" in called(
        tmp_path, "--share", "0.25"
    )


def test_a_home_without_reports_says_what_to_do(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["nodes", "placement", "--home", str(tmp_path)])
    assert result.exit_code == 2
    assert "nodes watch" in result.output
