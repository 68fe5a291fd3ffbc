"""Persistent, gray and transient faults: against sums over all subsets by hand, and in fleets whose truth is known."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import poisson
from typer.testing import CliRunner

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.fault_classes import IDLE, JOBS, RATIOS, Exposure, _evidence, classify, exposure
from provider_server.fleet.analysis.recurrent import spells
from provider_server.fleet.outage_files import SCHEMA, UnusableOutages, read_jobs
from provider_server.program.cli import app
from tests.support import schemas
from tests.support.faulty_fleets import CLASSES, one_fleet


def by_hand(failures: Floats, expected: Floats) -> tuple[float, float, list[float]]:
    """Likelihoods of persistent and gray over transient's, and of each workload being affected, by enumeration."""
    usual = np.prod(poisson.pmf(failures, expected))
    subsets = [subset for subset in product((0, 1), repeat=len(failures)) if 0 < sum(subset) < len(failures)]
    of = {
        subset: np.mean([np.prod(poisson.pmf(failures, expected * r ** np.array(subset))) for r in RATIOS])
        for subset in [*subsets, (1,) * len(failures)]
    }
    gray = sum(of[subset] for subset in subsets)
    affected = [sum(of[subset] for subset in subsets if subset[w]) / gray for w in range(len(failures))]
    return float(of[(1,) * len(failures)] / usual), float(gray / len(subsets) / usual), affected


@pytest.mark.parametrize(
    ("failures", "expected"),
    [([0.0, 0.0], [0.1, 0.2]), ([5.0, 0.0, 0.0], [0.2, 0.3, 0.1]), ([3.0, 2.0, 4.0, 1.0], [0.3, 0.2, 0.1, 0.1])],
)
def test_the_evidence_is_the_mean_over_all_ratios_and_subsets(failures: list[float], expected: list[float]) -> None:
    ran = np.ones((1, len(failures)), bool)
    evidence, affected = _evidence(np.array([failures]), np.array([expected]), ran, RATIOS)
    persistent, gray, each = by_hand(np.array(failures), np.array(expected))
    assert np.exp(evidence[0]) == pytest.approx([persistent, gray, 1.0])
    assert affected[0] == pytest.approx(each)


def test_a_workload_that_never_ran_says_nothing_and_one_alone_is_not_gray() -> None:
    ran = np.array([[True, True, False], [True, False, False]])
    expected = np.array([[0.1, 0.2, 0.0], [0.1, 0.0, 0.0]])
    failures = np.array([[4.0, 0.0, 0.0], [4.0, 0.0, 0.0]])
    evidence, affected = _evidence(failures, expected, ran, RATIOS)
    two, _ = _evidence(failures[:1, :2], expected[:1, :2], ran[:1, :2], RATIOS)
    assert evidence[0] == pytest.approx(two[0])
    assert evidence[1, 1] == -math.inf
    assert np.all(affected[1] == 0)


def test_probabilities_of_a_node_add_up_to_1_and_a_lemon_does_not_make_its_own_rate_usual() -> None:
    hours = np.full((50, 2), 4000.0)
    failures = np.zeros((50, 2))
    failures[0], failures[1], failures[2, 0] = (12, 14), (15, 0), 1
    (found,) = classify(Exposure(tuple(f"n{n}" for n in range(50)), ("a", "b"), hours, {"x": failures}))
    assert found.probability.sum(axis=1) == pytest.approx(np.ones(50))
    assert [int(row.argmax()) for row in found.probability[:4]] == [0, 1, 2, 2]
    assert found.affected[1] == pytest.approx([1.0, 0.0], abs=0.01)
    assert found.expected.sum(axis=1)[0] < 0.2  # of 27


@pytest.mark.nightly
def test_nine_of_ten_are_called_what_they_are() -> None:
    """At a hundred times the usual rate, of each class; of all pairs, at thirty times as well."""
    for ratio, classes in ((100.0, (0, 1, 2)), (30.0, (0, 2))):
        truth, called = one_fleet(7, ratio)
        assert np.mean(truth == called) >= 0.9
        for place in classes:
            assert np.mean(called[truth == place] == place) >= 0.85 + 0.05 * (ratio > 30), CLASSES[place]


# ---- what ran where --------------------------------------------------------------------------------------------------


def test_hours_and_failures_are_those_of_the_job_that_ran() -> None:
    rows = [("a", 10.0, 20.0, "x"), ("a", 50.0, 51.0, "x"), ("b", 5.0, 6.0, "y")]
    found = spells(pl.DataFrame(rows, SCHEMA, orient="row"), ["a", "b", "c"], 0.0, 100.0)
    jobs = [("a", 0.0, 15.0, "p"), ("a", 15.0, 40.0, "q"), ("c", 90.0, 200.0, "p"), ("z", 0.0, 9.0, "p")]
    seen = exposure(found, pl.DataFrame(jobs, JOBS, orient="row"))
    assert (seen.nodes, seen.workloads) == (("a", "b", "c"), (IDLE, "p", "q"))
    assert seen.hours.tolist() == [[59.0, 10.0, 20.0], [99.0, 0.0, 0.0], [90.0, 10.0, 0.0]]
    assert seen.failures["x"].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert seen.failures["y"].sum() == seen.failures["y"][1, 0] == 1
    assert seen.hours.sum() == pytest.approx(found.at_risk_h)


def test_a_burst_is_one_failure() -> None:
    rows = [("a", float(at), at + 0.1, "x") for at in (10, 11, 30, 60, 90)] + [("a", 12.0, 12.1, "y")]
    found = spells(pl.DataFrame(rows, SCHEMA, orient="row"), ["a"], 0.0, 100.0)
    seen = exposure(found)
    assert (seen.failures["x"].sum(), seen.failures["y"].sum()) == (3, 1)


def test_without_jobs_there_is_one_workload_and_nothing_gray() -> None:
    rows = [("a", float(at), at + 1.0, "x") for at in range(30, 990, 120)]
    found = spells(pl.DataFrame(rows, SCHEMA, orient="row"), ["a", *(f"n{n}" for n in range(30))], 0.0, 1000.0)
    (seen,) = classify(exposure(found))
    assert seen.workloads == (IDLE,)
    assert np.all(seen.probability[:, 1] == 0)
    assert seen.probability[0, 0] > 0.9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node,start,end\na,1,2\n", "no columns"),
        ("node,start,end,workload\na,1,9,p\na,5,6,q\n", "two jobs on a at hour 5"),
        ("node,start,end,workload\na,1,,p\na,5,6,q\n", "two jobs on a at hour 5"),
        ("node,start,end,workload\na,soon,9,p\n", "start 'soon' is no time"),
    ],
)
def test_jobs_that_cannot_be_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(text)
    with pytest.raises(UnusableOutages, match=words):
        read_jobs(file)


# ---- the verb --------------------------------------------------------------------------------------------------------


def test_the_verb_says_what_to_do_and_why(tmp_path: Path) -> None:
    outages = [("lemon", at, at + 1) for at in range(50, 950, 60)]
    outages += [("picky", at, at + 1) for at in range(10, 500, 40)] + [("once", 300, 301)]
    (tmp_path / "events.csv").write_text("node,start,end,kind\n" + "".join(f"{n},{a},{b},hw\n" for n, a, b in outages))
    jobs: list[tuple[str, int, int | str, str]] = [(node, 0, 500, "p") for node in ("lemon", "picky", "once")]
    jobs += [(node, 500, "", "q") for node in ("lemon", "picky", "once")]
    (tmp_path / "jobs.csv").write_text(
        "node,start,end,workload\n" + "".join(f"{n},{a},{b},{w}\n" for n, a, b, w in jobs)
    )
    words = ["--events", f"{tmp_path}/events.csv", "--jobs", f"{tmp_path}/jobs.csv", "--nodes", "40", "--end", "1000"]
    result = CliRunner().invoke(app, ["nodes", "hazard", *words, "--start", "0", "--json"])
    row: Any = schemas.held("pharoah-provider nodes hazard --events", result.stdout)[0]
    faults = {fault["node"]: fault for fault in row["faults"]}
    assert {node: fault["action"] for node, fault in faults.items()} == {
        "lemon": "quarantine",
        "picky": "avoid for these workloads",
        "once": "run again",
    }
    assert faults["picky"]["workloads"] == ["p"]
    assert faults["lemon"]["workloads"] == []
    assert faults["picky"]["evidence"].endswith("under 1 of 2 workloads")
    text = CliRunner().invoke(app, ["nodes", "hazard", *words, "--start", "0"]).stdout
    assert "picky: hw: gray (p), " in text
    assert "once: hw" not in text
