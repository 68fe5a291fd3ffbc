"""Hazards by build-up level from the provider's own events: by hand, against lifelines, and against simulations."""

import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
from lifelines import CoxTimeVaryingFitter

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.buildup import FRESH, SILENT, UNKNOWN
from provider_server.fleet.analysis.fleet_events import (
    LOST,
    QUIET_H,
    Bands,
    exposure_and_events,
    fit_levels,
    gather,
    hour_of_week,
    hours_at_risk,
    silent_together,
)
from provider_server.fleet.telemetry.samples import HOUR_S
from provider_server.fleet.telemetry.summaries import EVENT_SCHEMA

MONDAY = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp()) // HOUR_S
STAY = np.array([[0.99, 0.01, 0.0, 0.0], [0.02, 0.96, 0.02, 0.0], [0.0, 0.03, 0.94, 0.03], [0.0, 0.0, 0.05, 0.95]])


def levels(of: Mapping[str, Sequence[int | str]], begin: int = MONDAY) -> pl.DataFrame:
    """Hourly levels of nodes; a word is a status, at level 0."""
    rows = [
        (node, begin + place, one if isinstance(one, int) else 0, FRESH if isinstance(one, int) else one)
        for node, path in of.items()
        for place, one in enumerate(path)
    ]
    schema = {"node": pl.String, "hour": pl.Int64, "level": pl.Int8, "status": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def events(*of: tuple[str, int, str, int]) -> pl.DataFrame:
    rows = [(node, "g0", metric, (MONDAY + place + 0.5) * HOUR_S, float(code)) for node, place, metric, code in of]
    return pl.DataFrame(rows, schema=EVENT_SCHEMA, orient="row")


def failures(at_risk: pl.DataFrame) -> list[tuple[str, int, str]]:
    found = at_risk.filter(pl.col("kind").is_not_null())
    return [(node, hour - MONDAY, kind) for node, hour, kind in found.select("node", "hour", "kind").iter_rows()]


# ---- what counts ---------------------------------------------------------------------------------------------------


def test_an_event_counts_at_the_level_of_the_hour_before() -> None:
    path = levels({"a": [0, 0, 3, 3, 3]})
    at_risk = hours_at_risk(path, events(("a", 2, "xid", 79)))
    table = exposure_and_events(at_risk, {"a": 7})
    assert table.levels("context") == ("7",)
    assert table.marginal("level").events.tolist() == [1, 0, 0, 0]  # its own hour is at level 3 already
    assert table.marginal("level").exposure_node_hours.tolist() == [2, 0, 0, 0]


def test_errors_that_a_failure_causes_are_no_evidence_against_their_level() -> None:
    rng = np.random.default_rng(1)
    nodes, hours, rate = 200, 1500, 1 / 300
    failed = rng.random((nodes, hours)) < rate
    raised = np.array(
        [np.convolve(row, np.ones(48))[:hours] > 0 for row in failed]
    )  # the hour of a failure and 47 more
    path = levels({f"n{node}": (3 * raised[node]).tolist() for node in range(nodes)})
    found = events(*((f"n{node}", int(place), "xid", 79) for node, place in np.argwhere(failed)))
    contexts = dict.fromkeys(path["node"].unique(), 0)
    low, high = fit_levels(exposure_and_events(hours_at_risk(path, found), contexts)).ratios.interval(0.999)
    assert low[2] < 1.0 < high[2]
    early = path.with_columns(pl.col("hour") - 1)  # as if the level of the same hour were known before it
    low, _high = fit_levels(exposure_and_events(hours_at_risk(early, found), contexts)).ratios.interval(0.999)
    assert low[2] > 5.0


def test_what_follows_a_failure_is_the_same_failure_and_not_at_risk() -> None:
    path = levels({"a": [0] * 100})
    found = events(("a", 10, "xid", 79), ("a", 12, "xid", 48), ("a", 12 + QUIET_H, "xid", 48), ("a", 90, "xid", 64))
    at_risk = hours_at_risk(path, found)
    assert failures(at_risk) == [("a", 10, "GPU fell off the bus"), ("a", 90, "row remapping failure")]
    assert at_risk.height == 99 - (12 + 2 * QUIET_H - 10) - 9  # hours 11 to 60, and those after 90
    later = events(("a", 10, "xid", 79), ("a", 10 + QUIET_H + 1, "xid", 48))
    assert len(failures(hours_at_risk(path, later))) == 2


def test_only_errors_that_mean_hardware_count() -> None:
    path = levels({"a": [0] * 9})
    software = events(("a", 2, "xid", 13), ("a", 3, "xid", 45), ("a", 4, "row_remap_failure", 0), ("a", 5, "power", 79))
    assert failures(hours_at_risk(path, software)) == []
    assert failures(hours_at_risk(path, events(("a", 4, "row_remap_failure", 1)))) == [
        ("a", 4, "row remapping failure")
    ]


def test_a_node_that_falls_silent_is_lost_once() -> None:
    path = levels({"a": [2, 2, SILENT, SILENT, 2, 2], "b": [0] * 6, "c": [UNKNOWN, UNKNOWN, SILENT, 0, 0, 0]})
    at_risk = hours_at_risk(path, events())
    assert failures(at_risk) == [("a", 2, LOST)]
    table = exposure_and_events(at_risk, {"a": 0, "b": 0, "c": 1}).marginal("context", "level")
    assert table.exposure_node_hours.tolist() == [[5, 0, 2, 0], [2, 0, 0, 0]]
    assert table.events.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    planned = pl.DataFrame({"node": ["a"], "hour": [MONDAY + 2]}, schema_overrides={"hour": pl.Int64})
    assert failures(hours_at_risk(path, events(), planned)) == []


def test_many_that_fall_silent_together_are_not_lost() -> None:
    together = levels({f"n{one}": [0, 0, SILENT if one < 3 else 0] for one in range(20)})
    apart = levels({f"n{one}": [0, 0, SILENT if one < 2 else 0] for one in range(20)})
    assert failures(hours_at_risk(together, events())) == []
    assert sorted(silent_together(together).rows()) == [(f"n{one}", MONDAY + 2) for one in range(3)]
    assert len(failures(hours_at_risk(apart, events()))) == 2
    assert silent_together(apart).is_empty()


# ---- the table -----------------------------------------------------------------------------------------------------


def test_seasons_are_those_of_the_calendar() -> None:
    bands = hour_of_week()
    hours = pl.DataFrame({"hour": range(MONDAY, MONDAY + 168)}).with_columns(found=bands.position)
    for hour, found in hours.iter_rows():
        when = datetime.fromtimestamp(hour * HOUR_S, tz=UTC)
        day = "weekday day" if 8 <= when.hour < 20 else "weekday night"
        assert bands.levels[found] == ("weekend" if when.weekday() >= 5 else day)


def test_a_node_without_a_context_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 nodes have no context, b among them"):
        exposure_and_events(hours_at_risk(levels({"a": [0, 0], "b": [0, 0]}), events()), {"a": 0})


def test_a_rare_context_is_drawn_to_the_others() -> None:
    dimensions = (
        Dimension("context", ("0", "1", "2")),
        Dimension("level", tuple("0123")),
        Dimension("season", hour_of_week().levels),
    )
    hours = np.ones((3, 4, 3)) * np.array([1e5, 1e5, 100.0])[:, None, None]
    failed = np.zeros((3, 4, 3)) + 20.0 * np.array([1, 1, 0])[:, None, None]
    failed[2, 0, 0] = 2.0  # 30 times what the others have
    table = LifeTable(dimensions, failed, hours, hours, np.zeros(hours.shape))
    pooled, free = fit_levels(table, prior_sd=0.5), fit_levels(table, prior_sd=np.inf)
    assert free.rates.value[2, 0] == pytest.approx(2.0 / 1200.0, rel=0.02)
    assert 2e-4 < pooled.rates.value[2, 0] < 0.5 * free.rates.value[2, 0]
    assert pooled.rates.value[0, 0] == pytest.approx(free.rates.value[0, 0], rel=0.03)


# ---- simulated clouds, and lifelines -------------------------------------------------------------------------------


def drifting(rng: np.random.Generator, nodes: int, hours: int) -> np.ndarray:
    """Levels (nodes, hours) of a Markov chain."""
    path = np.zeros((nodes, hours), np.int64)
    steps = np.cumsum(STAY, axis=1)
    for hour in range(1, hours):
        path[:, hour] = (rng.random((nodes, 1)) > steps[path[:, hour - 1]]).sum(axis=1)
    return path


def cloud(
    seed: int, nodes: int, hours: int, rates: Floats, worse: float = 1.0
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, int]]:
    """Levels, Xid events, contexts; even nodes have so many times the rates, a third of the nodes come later."""
    rng = np.random.default_rng(seed)
    path = drifting(rng, nodes, hours)
    factor = np.where(np.arange(nodes) % 2 == 0, worse, 1.0)
    failed = rng.random((nodes, hours - 1)) < 1.0 - np.exp(-rates[path[:, :-1]] * factor[:, None])
    late = {node: int(rng.integers(1, hours // 2)) if node % 3 == 0 else 0 for node in range(nodes)}
    seen = {f"n{node}": [UNKNOWN] * late[node] + path[node, late[node] :].tolist() for node in range(nodes)}
    found = events(*((f"n{node}", int(place) + 1, "xid", 79) for node, place in np.argwhere(failed)))
    return levels(seen), found, {f"n{node}": node % 2 for node in range(nodes)}


RATES = np.array([2e-4, 6e-4, 2e-3, 6e-3])
TOLERANCE_SE = 0.1  # between two estimators of one ratio, in standard errors of either


@pytest.mark.nightly
def test_levels_that_change_over_time_are_found_with_honest_intervals() -> None:
    inside, ratios = [], []
    for seed in range(6):
        path, found, contexts = cloud(seed, 150, 800, RATES, worse=2.0)
        fit = fit_levels(exposure_and_events(hours_at_risk(path, found), contexts), prior_sd=3.0)
        low, high = fit.ratios.interval()
        inside += ((low < RATES[1:] / RATES[0]) & (RATES[1:] / RATES[0] < high)).tolist()
        ratios.append(np.log(fit.ratios.value))
        low, high = fit.rates.interval()
        truth = RATES * np.array([2.0, 1.0])[:, None]
        inside += ((low < truth) & (truth < high)).ravel().tolist()
    assert np.mean(inside) > 0.88
    assert np.mean(ratios, axis=0) == pytest.approx(np.log([3.0, 10.0, 30.0]), abs=0.3)  # 0.11 is the standard error


def episodes(at_risk: pl.DataFrame) -> pl.DataFrame:
    """Unbroken stretches at one level up to a node's first failure: node, start_h, stop_h, failed, level 1, 2 and 3.

    A stretch is at risk after its start: nodes that come later, or were silent for a while, are left-truncated.
    """
    ordered = at_risk.sort("node", "hour").with_columns(failed=pl.col("kind").is_not_null())
    ordered = ordered.filter(pl.col("failed").cum_sum().over("node") - pl.col("failed").cast(pl.Int64) == 0)
    broken = (pl.col("hour").diff() != 1) | (pl.col("level").diff() != 0)
    runs = ordered.with_columns(run=broken.fill_null(value=True).cum_sum().over("node")).group_by("node", "run")
    ends = {"start_h": pl.col("hour").min() - MONDAY, "stop_h": pl.col("hour").max() + 1 - MONDAY}
    lives = runs.agg(**ends, level=pl.col("level").first(), failed=pl.col("failed").any())
    level = {f"level {level}": (pl.col("level") == level).cast(pl.Float64) for level in (1, 2, 3)}
    return lives.with_columns(**level).drop("run", "level")


def cox(lives: pl.DataFrame) -> tuple[Floats, Floats]:
    """Log ratios of levels 1 to 3 to level 0 and their standard errors by lifelines, an independent implementation."""
    columns = {"id_col": "node", "event_col": "failed", "start_col": "start_h", "stop_col": "stop_h"}
    frame = pd.DataFrame(lives.to_dict(as_series=False))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s).*very low variance")
        fitted = CoxTimeVaryingFitter().fit(frame, fit_options={"step_size": 0.25}, **columns)
    names = [f"level {level}" for level in (1, 2, 3)]
    return fitted.params_[names].to_numpy(np.float64), fitted.standard_errors_[names].to_numpy(np.float64)


@pytest.mark.nightly
def test_cox_with_time_varying_levels_agrees() -> None:
    path, found, contexts = cloud(11, 500, 500, RATES)
    at_risk = hours_at_risk(path, found)
    # Cox's nodes leave with their first failure and its baseline may change at any time: so ours do, every 10 hours
    first = at_risk.filter(pl.col("kind").is_not_null()).group_by("node").agg(end=pl.col("hour").min())
    once = at_risk.join(first, on="node", how="left").filter(
        pl.col("end").is_null() | (pl.col("hour") <= pl.col("end"))
    )
    times = Bands("time", tuple(str(band) for band in range(50)), (pl.col("hour") - MONDAY) // 10)
    table = exposure_and_events(once, dict.fromkeys(contexts, 0), times)
    ours, (log, log_sd) = fit_levels(table, prior_sd=10.0).ratios, cox(episodes(at_risk))
    assert np.log(ours.value) == pytest.approx(log, abs=TOLERANCE_SE * log_sd.min())
    assert ours.log_sd == pytest.approx(log_sd, rel=0.02)
    swapped, _ = cox(episodes(at_risk.with_columns(level=pl.col("level").replace({1: 2, 2: 1}))))
    assert np.abs(swapped - np.log(ours.value)).max() > 0.5


def test_contexts_and_levels_are_told_apart() -> None:
    path, found, contexts = cloud(7, 300, 600, RATES, worse=3.0)
    fit = fit_levels(gather([hours_at_risk(path, found)], contexts).table)
    (usual,) = {"0", "1"} - {name for (name,) in fit.fit.ratios("context")[0]}
    (low,), (high,) = fit.fit.ratios("context")[1].interval()
    assert low < (3.0 if usual == "1" else 1 / 3.0) < high
    low, high = fit.ratios.interval()
    assert (low < [3.0, 10.0, 30.0]).all()
    assert (high > [3.0, 10.0, 30.0]).all()
    # what a mixed fleet has at a level lies between what either context has there
    both = fit.rates.value
    assert (both.min(axis=0) < fit.by_level.value).all()
    assert (fit.by_level.value < both.max(axis=0)).all()


def test_levels_that_cannot_be_told_from_contexts_share_one_effect() -> None:
    rng = np.random.default_rng(3)
    path = levels({f"n{node}": [2 * (node % 2)] * 200 for node in range(100)})
    found = events(*((f"n{node}", int(rng.integers(1, 200)), "xid", 79) for node in range(0, 100, 3)))
    table = gather([hours_at_risk(path, found)], {f"n{node}": node % 2 for node in range(100)}).table
    assert np.isfinite(fit_levels(table).ratios.value).all()  # by the prior
