"""Plans of tests: within budget, none on busy nodes, the urgent ones first, and better than tests in turn."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from federation.base.clock import now_hour
from provider_server.fleet.analysis.probe_plan import LEAD_H, Probe, ProbeState, plan, worth
from provider_server.fleet.hints import node_reports
from provider_server.fleet.hints.node_probes import ProbeVisit, UnusableTests, probes, read_tests
from provider_server.fleet.hints.node_reports import NodeReport
from provider_server.fleet.hints.node_risk import NodeRisk
from provider_server.program.cli import app

MINUTE = Probe("a", 1.0)
NOW = 480_000.0


def state(rates: list[float], since_h: list[float], idle: list[float], hours: int = 1) -> ProbeState:
    columns = [np.array(each, np.float64) for each in (rates, since_h, idle)]
    ones = np.ones(len(rates))
    rate, idle_h = (np.repeat(columns[at][:, None], hours, axis=1) for at in (0, 2))
    return ProbeState(rate, ones[:, None], columns[1][:, None], ones, idle_h)


nodes_ = st.lists(
    st.tuples(st.floats(0, 0.1), st.floats(0, 1e4), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=30
)


@given(nodes_, st.floats(0.0, 0.2), st.integers(1, 24))
def test_a_plan_keeps_its_budget_and_leaves_busy_nodes_alone(
    nodes: list[tuple[float, float, float]], budget: float, hours: int
) -> None:
    columns = [list(column) for column in zip(*nodes, strict=True)]
    visits = plan(state(columns[0], columns[1], columns[2], hours), [MINUTE], budget)
    assert sum(visit.minutes for visit in visits) <= budget * len(nodes) * hours * 60 + 1e-9
    assert len({visit.node for visit in visits}) == len(visits)
    assert all(columns[2][visit.node] > 0 and 0 <= visit.hour < hours for visit in visits)
    assert [visit.worth for visit in visits] == sorted((visit.worth for visit in visits), reverse=True)


def test_the_likeliest_and_the_longest_untested_come_first() -> None:
    visits = plan(state([1e-3, 4e-3, 1e-3, 1e-3], [48.0, 48.0, 480.0, 1.0], [1.0] * 4), [MINUTE], 1.0)
    assert [visit.node for visit in visits][:2] == [1, 2]
    assert worth(np.array(1e-3), np.array(0.0), np.array(1.0), np.array(1.0)) == 0.0
    short, long = (float(worth(np.array(1e-3), np.array(h), np.array(1.0), np.array(1.0))) for h in (0.24, 0.48))
    assert long / short == pytest.approx(4.0, rel=0.02)  # the square of the time since, well below the lead time
    assert LEAD_H == 24.0


def test_a_test_waits_for_the_hour_in_which_its_node_is_free() -> None:
    of = state([1e-2], [1e4], [1.0], hours=4)
    of.idle[0] = [0.0, 0.0, 0.0, 1.0]
    (visit,) = plan(of, [MINUTE], 1.0)
    assert (visit.node, visit.hour, visit.test, visit.minutes) == (0, 3, 0, 1.0)


def test_a_state_of_other_shapes_is_an_error() -> None:
    with pytest.raises(ValueError, match="same nodes"):
        ProbeState(np.ones((2, 1)), np.ones((2, 1)), np.ones((3, 1)), np.ones(2), np.ones((2, 1)))
    with pytest.raises(ValueError, match="positive"):
        Probe("none", 0.0)


# ---- the provider's nodes ------------------------------------------------------------------------------------------


def at_risk(node: str, *, is_heard: bool = True) -> NodeRisk:
    return NodeRisk(node, (0.002, 0.05, 0.3), 2.0, 1.0, is_heard, "H100")


def planned(**more: object) -> list[ProbeVisit]:
    given_ = {"suspicions": {}, "tested_h": {}, "busy_until_h": {}, "now_h": NOW, "hours": 6, "budget": 0.01}
    nodes = [at_risk("n1"), at_risk("n2"), at_risk("n3", is_heard=False)]
    return probes(nodes, **{**given_, **more})  # type: ignore[arg-type]


def test_suspicion_chooses_the_test_and_silence_is_not_tested() -> None:
    found = {visit["node"]: visit for visit in planned(suspicions={"n2": "memory"})}
    assert found["n2"]["test"] == "memory"
    assert found["n1"]["test"] == "compute"  # the likeliest kind
    assert found["n2"]["worth"] > found["n1"]["worth"]
    assert "n3" not in found


def test_what_was_tested_and_what_is_leased_waits() -> None:
    tested = {("n1", "compute"): NOW - 0.5}
    assert next(visit for visit in planned(tested_h=tested) if visit["node"] == "n1")["test"] == "memory"
    assert "n1" not in {visit["node"] for visit in planned(tested_h={("n1", "all"): NOW})}
    assert "n2" not in {visit["node"] for visit in planned(busy_until_h={"n2": NOW + 100})}
    later = {visit["node"]: visit["in_hours"] for visit in planned(busy_until_h={"n2": NOW + 3})}
    assert later["n2"] >= 3


def test_files_of_tests_are_read_and_errors_name_the_line(tmp_path: Path) -> None:
    file = tmp_path / "tested.csv"
    file.write_text("at,node,test\n2026-11-24T03:00:00Z,n1,all\n2026-11-24T02:00:00+00:00,n1,all\n")
    assert read_tests(file) == {("n1", "all"): 498747.0}
    file.write_text("at,node,test\nyesterday,n1,all\n")
    with pytest.raises(UnusableTests, match="line 2: no time: 'yesterday'"):
        read_tests(file)
    file.write_text("node,at\n")
    with pytest.raises(UnusableTests, match="no column test"):
        read_tests(file)
    with pytest.raises(UnusableTests, match="cannot be read"):
        read_tests(tmp_path / "absent.csv")


def test_the_verb_plans_from_the_newest_reports(tmp_path: Path) -> None:
    hour = int(now_hour())
    node_reports.keep(
        tmp_path,
        [
            NodeReport("n1", hour, 0, is_heard=True, suspicion="", failures_per_1000_node_hours=1.0),
            NodeReport("n2", hour, 3, is_heard=True, suspicion="storage", failures_per_1000_node_hours=1.0),
        ],
    )
    words = ["nodes", "probes", "--home", str(tmp_path), "--budget", "0.01"]
    rows = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert (rows[0]["node"], rows[0]["test"]) == ("n2", "storage")
    assert sum(row["minutes"] for row in rows) <= 0.01 * 2 * 6 * 60
    assert "n2: test storage now, 1 min" in CliRunner().invoke(app, words).stdout
