"""Risks of nodes: closed forms, forecasts that know no future, a bend that is needed and one that is not, the verb."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st
from scipy.stats import nbinom
from typer.testing import CliRunner

from federation.protocol.known_rates import experience
from provider_server.fleet.analysis.node_risk import (
    HORIZONS,
    STRAIGHT,
    Bend,
    bend_of,
    bent,
    forecasts,
    probability,
    usual_failures,
)
from provider_server.fleet.analysis.probation import Probation, shipped
from provider_server.fleet.analysis.recurrent import spells
from provider_server.fleet.analysis.risk_calibration import calibrations, reliability
from provider_server.fleet.hints import node_reports
from provider_server.fleet.hints.node_reports import NodeReport
from provider_server.fleet.hints.node_risk import Facts, of_names, risks
from provider_server.fleet.learning import on_probation, risk_history
from provider_server.fleet.learning.hardware import Repair
from provider_server.fleet.learning.on_probation import OnProbation
from provider_server.fleet.learning.risk_history import GAP_EDGES_S, learn
from provider_server.fleet.outage_files import SCHEMA, read_outages
from provider_server.program.cli import app
from simulation.cloud.node_faults import fitted, fleet_outages

HOUR = 480_000
MODEL = Probation((10.0, 20.0), 1e-3, (8.0, 4.0, 2.0), (0.1,) * 3, 0.5, 1000.0, 50)
NEVER = float("nan")
TRACE = Path(__file__).resolve().parents[4] / "shared/data/infinitehbd/fault_trace.json.gz"


# ---- the hazard ahead ------------------------------------------------------------------------------------------------


def test_usual_failures_are_the_hazard_added_up_over_the_bands_that_are_passed() -> None:
    since = np.array([NEVER, 0.0, 5.0, 15.0, 500.0])
    assert usual_failures(MODEL, since, 24.0) * 1000 == pytest.approx(
        [24.0, 10 * 8 + 10 * 4 + 4 * 2, 5 * 8 + 10 * 4 + 9 * 2, 5 * 4 + 19 * 2, 24 * 2]
    )
    worn = usual_failures(MODEL, since, 24.0, np.full(5, 4.0)) * 1000
    assert worn == pytest.approx([24 * 4, 10 * 8 + 14 * 4, 5 * 8 + 19 * 4, 24 * 4, 24 * 4])


def test_the_probability_is_that_of_a_count_above_none() -> None:
    """K and H of gamma frailties make counts negative binomial; scipy has that."""
    failures, expected, usual = np.array([0.0, 3.0]), np.array([0.2, 1.5]), np.array([0.01, 0.4])
    shape, rate = 2.0 + failures, 2.0 + expected
    none = nbinom.pmf(0, shape, rate / (rate + usual))
    assert probability(usual, failures, expected, 0.5) == pytest.approx(1.0 - none)


@given(st.floats(-9, -4), st.floats(-0.5, 0.5), st.floats(0.1, 1.0), st.lists(st.floats(1e-6, 0.5), min_size=2))
def test_a_bend_keeps_the_order_of_nodes_and_of_horizons(
    middle: float, level: float, slope: float, hazards: list[float]
) -> None:
    bend, day = Bend(middle, level, slope, 9), -np.expm1(-24.0 * np.array(hazards) / 24.0)
    told = bend.of(day, 24.0)
    assert np.all(np.diff(told[np.argsort(day)]) >= -1e-12)
    hour, week = bend.of(-np.expm1(-np.array(hazards) / 24.0), 1.0), bend.of(-np.expm1(-7.0 * np.array(hazards)), 168.0)
    assert np.all(hour <= told + 1e-12)
    assert np.all(told <= week + 1e-12)


# ---- the past --------------------------------------------------------------------------------------------------------


def fleet(seed: int, days: int = 240, nodes: int = 200) -> tuple[pl.DataFrame, list[str]]:
    outages = fleet_outages(fitted(), nodes, days * 24.0, np.random.default_rng([seed, 5]))
    return outages, [f"node-{number}" for number in range(nodes)]


@pytest.mark.nightly
def test_no_forecast_knows_what_comes_after_it() -> None:
    outages, nodes = fleet(1, 100)
    before = pl.col("start_h") < 60 * 24.0
    other = pl.concat([outages.filter(before), fleet(2, 100)[0].filter(~before)]).sort("start_h", "node")
    of = [forecasts(one, nodes, (0.0, 2400.0), 1200.0).filter(pl.col("at_h") < 1440.0) for one in (outages, other)]
    for one, another in zip(*(bent(each).partition_by("at_h") for each in of), strict=True):
        assert one["probability"].to_list() == pytest.approx(another["probability"].to_list())
    assert of[0]["failed"].to_list() != of[1]["failed"].to_list()


def drawn(slope: float, seed: int) -> pl.DataFrame:
    """Forecasts of half a year, of which failures come as if log hazards lay `slope` times as far apart as told."""
    rng = np.random.default_rng(seed)
    log = rng.normal(np.log(2e-4), 1.0, (182, 300))
    truth = -np.expm1(-24.0 * np.exp(np.log(2e-4) + slope * (log - np.log(2e-4))))
    days, nodes = np.indices(log.shape)
    return pl.DataFrame(
        {
            "at_h": days.ravel() * 24.0,
            "node": nodes.ravel().astype(str),
            "hours": 24,
            "probability": -np.expm1(-24.0 * np.exp(log.ravel())),
            "failed": rng.random(log.size) < truth.ravel(),
            "known": 300,
        }
    )


@pytest.mark.nightly
def test_a_bend_is_found_where_there_is_one_and_nowhere_else() -> None:
    for slope, low, high in ((1.0, 0.93, 1.0), (0.5, 0.5, 0.75)):
        found = [bend_of(drawn(slope, seed), 182 * 24.0, 300).slope for seed in range(6)]
        assert low <= np.mean(found) <= high
    twice = drawn(0.5, 1)
    told = twice.with_columns(probability=bend_of(twice, 182 * 24.0, 300).of(twice["probability"].to_numpy(), 24.0))
    (before,), (after,) = calibrations(twice), calibrations(told)
    assert before.slope is not None
    assert after.slope is not None
    assert before.slope < 0.6 < 0.7 < after.slope
    assert after.brier < before.brier
    assert sum(one.low <= one.predicted <= one.high for one in reliability(drawn(1.0, 3))) >= 8


def test_without_outcomes_nothing_is_bent() -> None:
    nothing = drawn(1.0, 1).with_columns(failed=pl.lit(value=False))
    assert bend_of(nothing, 1e9, 300) == bend_of(nothing, 0.0, 300) == STRAIGHT
    assert STRAIGHT.of(np.array([0.25]), 24.0) == pytest.approx([0.25])
    assert bent(nothing.clear()).is_empty()


@pytest.mark.nightly
def test_on_the_unseen_half_of_a_real_trace_nodes_fail_as_often_as_is_foretold() -> None:
    if not TRACE.exists():
        pytest.skip(f"{TRACE} is not here")
    rows = read_outages(TRACE).rows
    named = sorted(set(rows["node"]))
    nodes = named + [f"never down {number}" for number in range(400 - len(named))]
    told = bent(forecasts(rows, nodes, (0.0, 8352.0), 0.0)).filter(pl.col("at_h") >= 4176.0)
    of = {one.hours: one for one in calibrations(told)}
    day = of[24]
    assert day.slope is not None
    assert 0.9 <= day.slope <= 1.1
    assert day.brier < day.brier_usual
    assert day.failures == pytest.approx(day.predicted, rel=0.15)


# ---- nodes now -------------------------------------------------------------------------------------------------------


def report(node: str, level: int = 0, rate: float | None = 2.0, *, heard: bool = True) -> NodeReport:
    return NodeReport(node, HOUR, level, heard, "memory" if level else "", 1, "H100", failures_per_1000_node_hours=rate)


def facts(*repairs: Repair) -> Facts:
    probation = OnProbation.since(repairs, shipped())
    return Facts(HOUR, shipped(), 1e-9, {}, probation, risk_history.RiskHistory(), 0.0, 0)


def test_silence_drift_and_repairs_make_a_node_risky() -> None:
    nodes = [
        report("calm"),
        report("drifts", level=2),
        report("back"),
        report("long ago"),
        report("mute", heard=False),
        report("other", rate=None),
    ]
    found = {one.node: one for one in risks(nodes, facts(Repair("back", HOUR), Repair("long ago", HOUR - 9_000)), 0.5)}
    assert [name for name, one in found.items() if one.jobs == "short"] == list(found)[:3] == ["mute", "back", "drifts"]
    assert found["drifts"].failures_per_1000_node_hours == pytest.approx(8.0)
    assert found["other"].failures_per_1000_node_hours == pytest.approx(2.0)  # the mean of the others
    assert found["drifts"].times_usual == pytest.approx(4.0)
    edges, ratios = shipped().edges_h, shipped().ratios
    expected = 0.002 * (edges[0] * ratios[0] + (24.0 - edges[0]) * ratios[1])
    assert found["back"].probabilities[1] == pytest.approx(-np.expm1(-expected))
    assert all(list(one.probabilities) == sorted(one.probabilities) for one in found.values())
    assert (found["back"].bucket, found["calm"].bucket) == ("high", "low")


def test_where_nothing_has_failed_yet_worn_nodes_are_still_the_riskiest() -> None:
    found = risks([report("a", rate=0.0), report("worn", level=3, rate=0.0), report("b", rate=0.0)], facts(), 0.34)
    assert [(one.node, one.jobs) for one in found] == [("worn", "short"), ("a", "long"), ("b", "long")]


def test_a_node_that_is_down_fails_once_it_is_back(tmp_path: Path) -> None:
    """Half of the outages last 10 h, half 1,000: after 5 h of one, the node is back within the day in half of cases."""
    rows: list[tuple[str, float, float | None, str]] = [
        ("n1", 100.0 * at, 100.0 * at + 10.0, "x") for at in range(1, 20)
    ]
    rows += [(f"m{number}", 10.0, 1010.0, "x") for number in range(19)] + [("n2", 2195.0, None, "x")]
    outages = pl.DataFrame(rows, schema=SCHEMA, orient="row").sort("start_h")
    nodes = sorted(set(outages["node"])) + [f"calm{number}" for number in range(100)]
    found = spells(outages, nodes, 0.0, 2200.0)
    known = Facts.of_outages(learn(found, outages, nodes))
    told = {one.node: one for one in risks(of_names(nodes, known.at_h, known), known)}
    down = told["n2"]
    assert down.reason == "down"
    assert down.probabilities[0] < 1e-6
    assert 0.0 < down.probabilities[1] < down.probabilities[2]
    assert told["n1"].probabilities[1] > 3 * told["calm1"].probabilities[1]


# ---- the verb --------------------------------------------------------------------------------------------------------


def called(*words: str) -> str:
    result = CliRunner().invoke(app, ["nodes", "risk", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_from_the_first_hour_nodes_have_the_risk_of_other_fleets(tmp_path: Path) -> None:
    (tmp_path / "inventory.csv").write_text("kind,name\nnode,n1\nnode,n2\n")
    told: dict[str, Any] = json.loads(
        called("--home", str(tmp_path), "--inventory", str(tmp_path / "inventory.csv"), "--json")
    )
    assert [(row["node"], row["hours"]) for row in told["rows"]] == [(n, h) for n in ("n1", "n2") for h in HORIZONS]
    assert told["learnt_from"] == 0
    for row in told["rows"]:
        usual = np.array([experience().rate * row["hours"]])
        assert row["probability"] == pytest.approx(
            probability(usual, np.zeros(1), np.zeros(1), shipped().frailty_variance)[0]
        )


def test_the_verb_prints_rows_names_and_commands(tmp_path: Path) -> None:
    node_reports.keep(tmp_path, [report("n1"), report("n2", level=3), report("n3"), report("n4; rm -r")])
    home = ["--home", str(tmp_path), "--share", "0.25"]
    rows = json.loads(called(*home, "--json"))["rows"]
    assert [(row["node"], row["jobs"]) for row in rows[:3]] == [("n2", "short")] * 3
    assert {row["jobs"] for row in rows[3:]} == {"long"}
    assert called(*home, "--names") == "n2\n"
    assert called(*home, "--slurm").splitlines() == [
        "scontrol update NodeName=n1,n3 Weight=1",
        "scontrol update NodeName=n2 Weight=100",
    ]
    assert "n2: raised, for short jobs: fails with probability 0.01" in called(*home)
    result = CliRunner().invoke(app, ["nodes", "placement", *home, "--names"])
    assert (result.stdout, result.exit_code) == ("n2\n", 0)


def test_a_home_without_reports_says_what_to_do(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["nodes", "risk", "--home", str(tmp_path)])
    assert result.exit_code == 2
    assert "nodes watch" in result.output


@pytest.mark.nightly
def test_what_outages_say_is_kept_in_the_home_and_told_from_there(tmp_path: Path) -> None:
    outages, _ = fleet(3, 120, 60)
    file = tmp_path / "outages.csv"
    outages.rename({"start_h": "start", "end_h": "end"}).write_csv(file)
    from_file = json.loads(called("--events", str(file), "--nodes", "60", "--json"))
    home = tmp_path / "home"
    words = ["nodes", "hazard", "--home", str(home), "--events", str(file), "--nodes", "60", "--keep"]
    assert CliRunner().invoke(app, words).exit_code == 0
    kept = risk_history.load(home)
    assert (msgspec.to_builtins(kept.bend), from_file["learnt_from"]) == (
        from_file["bend"],
        on_probation.load_model(home).failures,
    )
    assert [one["hours"] for one in from_file["calibration"]] == list(HORIZONS)
    assert kept.gaps[-1] == outages.height - outages["node"].n_unique()
    assert list(kept.gaps) == sorted(kept.gaps)
    assert len(kept.gaps) == len(GAP_EDGES_S) + 1
    from_home = json.loads(called("--home", str(home), "--json"))
    assert {row["node"] for row in from_home["rows"]} == set(outages["node"])
