"""The hazard after a repair: against closed forms, lifelines and clouds of known truth; what is shipped is frozen."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pytest
from lifelines import CoxTimeVaryingFitter
from scipy.special import gammaln
from scipy.stats import nbinom

from provider_server.fleet.analysis import probation
from provider_server.fleet.analysis.probation import (
    LONGEST_H,
    Probation,
    _after,
    _likelihood,
    _paths,
    fit_probation,
    pieces,
    shipped,
    standing,
)
from provider_server.fleet.analysis.recurrent import Spells, spells
from provider_server.fleet.outage_files import SCHEMA, read_outages

EDGES = (24.0, 240.0)
TRACE = Path(__file__).resolve().parents[4] / "shared/data/infinitehbd/fault_trace.json.gz"
NODES, HALF_H = 400, 174 * 24.0


def fleet(outages: list[tuple[str, float, float | None, str]], nodes: int, end_h: float) -> Spells:
    rows = pl.DataFrame(outages, schema=SCHEMA, orient="row")
    return spells(rows, [f"n{number}" for number in range(nodes)], 0.0, end_h)


def cloud(seed: int, nodes: int, end_h: float, ratios: tuple[float, float], variance: float, rate: float) -> Spells:
    """A fleet that fails at `rate` times its gamma frailty, times ratios in the 24 and 240 h after an outage."""
    rng = np.random.default_rng(seed)
    outages: list[tuple[str, float, float | None, str]] = []
    for node in range(nodes):
        own = rate * (rng.gamma(1 / variance, variance) if variance else 1.0)
        at, back = 0.0, -math.inf
        while at < end_h:
            cuts = [back + EDGES[0], back + EDGES[1], math.inf]
            factor, until = next((f, c) for f, c in zip((*ratios, 1.0), cuts, strict=True) if at < c)
            step = rng.exponential(1 / (own * factor))
            if at + step > until:
                at = until
            elif at + step < end_h:
                back = at + step + rng.uniform(0.2, 10)
                outages.append((f"n{node}", at + step, back, "x"))
                at = back
            else:
                break
    return fleet(outages, nodes, end_h)


# ---- the likelihood --------------------------------------------------------------------------------------------------


def test_pieces_hold_every_hour_and_failure_once_and_lie_in_their_band() -> None:
    found = cloud(1, 50, 5000, (8.0, 3.0), 1.0, 1e-3)
    table = pieces(found, EDGES)
    assert table["hours"].sum() == pytest.approx(found.at_risk_h)
    assert table["failed"].sum() == found.spells["failed"].sum()
    assert np.all(table["hours"].to_numpy() <= LONGEST_H)
    spells_begin = found.spells.sort("start_h").select("node", "start_h", "back_h")
    joined = table.sort("start_h").join_asof(spells_begin, on="start_h", by="node")
    since = (joined["start_h"] - joined["back_h"]).to_list()
    expected = [0 if hours is None else 1 + sum(hours + 1e-9 >= edge for edge in EDGES) for hours in since]
    assert joined["band"].to_list() == expected


def test_without_fading_it_is_the_gamma_frailty_of_counts() -> None:
    """Of one band, a node's count is negative binomial; scipy has that."""
    found = cloud(2, 40, 3000, (1.0, 1.0), 1.0, 1e-3)
    (paths,) = _paths(pieces(found, ()))
    likelihood = _likelihood(paths, np.full(2, math.log(8e-4)), 0.7, 1e15)[0]
    failures, expected = _after(paths, 8e-4 * paths.hours, 1e15)
    failures = np.round(failures)
    theirs = nbinom.logpmf(failures, 0.7, 0.7 / (0.7 + expected)) + gammaln(failures + 1) - failures * np.log(expected)
    assert likelihood == pytest.approx(float(theirs.sum() + failures.sum() * math.log(8e-4)), rel=1e-9)
    assert expected.sum() == pytest.approx(8e-4 * found.at_risk_h)


def test_without_frailty_the_best_rates_are_failures_over_hours() -> None:
    found = cloud(3, 40, 3000, (6.0, 2.0), 0.0, 1e-3)
    table = pieces(found, EDGES)
    (paths,), by_band = _paths(table), table.group_by("band").agg(pl.col("hours", "failed").sum()).sort("band")
    crude = np.log(by_band["failed"].to_numpy() / by_band["hours"].to_numpy())
    best = _likelihood(paths, crude, 1e9, 1e9)[0]
    for band in range(len(crude)):
        for step in (-0.05, 0.05):
            other = crude + step * (np.arange(len(crude)) == band)
            assert _likelihood(paths, other, 1e9, 1e9)[0] < best


def test_fading_forgets_both_failures_and_hours() -> None:
    found = fleet([("n0", 100.0, 101.0, "x")], 1, 101.0 + 700.0)
    (paths,) = _paths(pieces(found, ()))
    failures, expected = _after(paths, 1e-3 * paths.hours, 350.0)
    assert failures[0] == pytest.approx(math.exp(-701 / 350))
    assert expected[0] == pytest.approx(0.1 * math.exp(-701 / 350) + 0.7)


def test_derivatives_are_those_of_differences() -> None:
    (paths,) = _paths(pieces(cloud(6, 30, 4000, (6.0, 2.0), 1.0, 1e-3), EDGES))
    at = np.array([-7.0, -5.5, -6.0, -6.5, math.log(0.8), math.log(900.0)])

    def value(at: np.ndarray) -> np.ndarray:
        return _likelihood(paths, at[:-2], math.exp(at[-2]), math.exp(at[-1]))

    steps = 1e-5 * np.eye(len(at))
    differences = [(value(at + step)[0] - value(at - step)[0]) / 2e-5 for step in steps]
    assert value(at)[1:] == pytest.approx(differences, rel=1e-5, abs=1e-4)


def test_a_large_fleet_is_worked_out_in_parts_of_whole_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cloud(6, 30, 4000, (6.0, 2.0), 1.0, 1e-3)
    (whole,), model, now = _paths(pieces(found, EDGES)), fit_probation(found, EDGES), standing(shipped(), found, 3000.0)
    most = int(np.diff(whole.first).max())
    for at_once in (1, most // 2, most + 1):
        monkeypatch.setattr(probation, "PIECES_AT_ONCE", at_once)
        parts = _paths(pieces(found, EDGES))
        assert 1 < len(parts) <= len(whole.nodes)
        assert sum((part.nodes for part in parts), ()) == whole.nodes
        assert np.concatenate([part.gap_h for part in parts]).tolist() == whole.gap_h.tolist()
        assert fit_probation(found, EDGES).ratios == pytest.approx(model.ratios, rel=1e-9)
        assert standing(shipped(), found, 3000.0)["frailty"].to_list() == pytest.approx(now["frailty"].to_list())


# ---- the fit ---------------------------------------------------------------------------------------------------------


def test_ratios_are_those_of_cox_by_lifelines_where_nodes_are_alike() -> None:
    found = cloud(4, 300, 4000, (8.0, 3.0), 0.0, 1e-3)
    ours = fit_probation(found, EDGES)
    table = pieces(found, EDGES).with_columns(stop_h=pl.col("start_h") + pl.col("hours"))
    table = table.with_columns((pl.col("band") == band).cast(pl.Float64).alias(f"b{band}") for band in (1, 2, 3))
    frame = pd.DataFrame(table.drop("band", "hours").to_dict(as_series=False))
    columns = {"id_col": "node", "event_col": "failed", "start_col": "start_h", "stop_col": "stop_h"}
    theirs = CoxTimeVaryingFitter().fit(frame, **columns)
    error = theirs.standard_errors_.to_numpy()
    assert np.all(np.abs(np.log(ours.ratios) - theirs.params_.to_numpy()) < 0.5 * error)
    assert np.array(ours.log_sds) == pytest.approx(error, rel=0.25)


@pytest.mark.nightly
def test_intervals_hold_the_truth_where_nodes_differ_and_a_fit_without_frailty_does_not() -> None:
    inside, crude_inside, variances = 0, 0, []
    for seed in range(40):
        found = cloud(seed, 400, 6000, (12.0, 3.0), 2.0, 3e-4)
        fit = fit_probation(found, EDGES)
        low, high = fit.estimate().interval()
        inside += int(np.sum((low <= [12.0, 3.0, 1.0]) & (high >= [12.0, 3.0, 1.0])))
        variances.append(fit.frailty_variance)
        rates = pieces(found, EDGES).group_by("band").agg(pl.col("hours", "failed").sum()).sort("band")
        crude = rates["failed"].to_numpy() / rates["hours"].to_numpy()
        crude_inside += int(np.sum((low <= crude[1:] / crude[0]) & (crude[1:] / crude[0] <= high)))
    assert inside >= 0.88 * 120
    assert crude_inside < 0.7 * 120  # lemons look like probation without it
    assert 1.2 < np.median(variances) < 3.2


def test_there_is_nothing_to_learn_from_no_failure() -> None:
    with pytest.raises(ValueError, match="no failure"):
        fit_probation(fleet([("n0", 5.0, 6.0, "repair")], 3, 10.0))


# ---- nodes now -------------------------------------------------------------------------------------------------------


def test_standing_reads_nothing_at_or_after_its_time() -> None:
    whole = cloud(5, 60, 3000, (8.0, 3.0), 1.0, 1e-3)
    model = fit_probation(whole, EDGES)
    at_h = float(np.sort(whole.spells.filter("failed")["stop_h"].to_numpy())[100])
    cut = whole.spells.filter(pl.col("start_h") < at_h).with_columns(
        failed=pl.col("failed") & (pl.col("stop_h") < at_h), stop_h=pl.min_horizontal("stop_h", at_h)
    )
    assert standing(model, replace(whole, spells=cut), at_h).equals(standing(model, whole, at_h))


def test_a_node_that_came_back_is_worse_than_before_and_one_that_fails_again_worse_still() -> None:
    outages = [("n0", 100.0, 101.0, "x"), ("n1", 90.0, 91.0, "x"), ("n1", 100.0, 101.0, "x"), ("n2", 100.0, None, "x")]
    now = standing(shipped(), fleet([*outages], 4, 200.0), 104.0)
    rate = dict(now.select("node", "rate").iter_rows())
    assert set(rate) == {"n0", "n1", "n3"}  # n2 is down
    assert rate["n1"] > rate["n0"] > 20 * rate["n3"]
    later = dict(standing(shipped(), fleet([*outages], 4, 2000.0), 1900.0).select("node", "rate").iter_rows())
    assert later["n0"] < rate["n0"] / 15


@pytest.mark.parametrize(
    "change",
    [
        {"edges_h": (24.0, 6.0), "ratios": (1.0, 1.0, 1.0), "log_sds": (1.0, 1.0, 1.0)},
        {"edges_h": (0.0,), "ratios": (1.0, 1.0), "log_sds": (1.0, 1.0)},
        {"ratios": (1.0,)},
        {"rate_per_node_hour": 0.0},
        {"memory_h": -1.0},
    ],
)
def test_a_table_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    table = msgspec.to_builtins(shipped()) | change
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, Probation)


@pytest.mark.skipif(not TRACE.exists(), reason=f"../shared/data/infinitehbd/{TRACE.name} is missing")
def test_what_is_shipped_is_what_the_first_half_of_the_trace_gives() -> None:
    rows = read_outages(TRACE).rows.filter(pl.col("start_h") < HALF_H)
    rows = rows.with_columns(end_h=pl.when(pl.col("end_h") < HALF_H).then("end_h"))  # as they were known then
    named = sorted(set(rows["node"]))
    nodes = [*named, *(f"never down {number}" for number in range(NODES - len(named)))]
    again, kept = fit_probation(spells(rows, nodes, 0.0, HALF_H, ("Hardware Failure",))), shipped()
    assert kept.failures == again.failures == 138
    assert kept.ratios == pytest.approx(again.ratios, rel=2e-3)
    assert kept.rate_per_node_hour == pytest.approx(again.rate_per_node_hour, rel=2e-3)
    assert (kept.frailty_variance, kept.memory_h) == pytest.approx((again.frailty_variance, again.memory_h), rel=1e-2)
