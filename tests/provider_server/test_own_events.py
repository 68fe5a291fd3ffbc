"""Hazards by build-up level from the provider's own events: by hand, against lifelines, and against simulations."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.analysis.buildup import FRESH, LEVELS, SILENT, UNKNOWN
from provider_server.analysis.fleet_curves import cox, episodes, gather, kaplan_meier, nelson_aalen, own_hazards
from provider_server.analysis.fleet_events import (
    LOST,
    QUIET_H,
    REPAIR,
    Bands,
    exposure_and_events,
    fit_levels,
    hour_of_week,
    hours_at_risk,
    silent_together,
    since_repair,
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


def repaired_fleet(seed: int, ratios: Sequence[float]) -> tuple[pl.DataFrame, dict[str, list[int]]]:
    """Hours at risk of 200 nodes, half of them repaired twice; `ratios` are of the 24 and the 72 hours after that."""
    rng = np.random.default_rng(seed)
    back = {f"n{node}": sorted(rng.integers(MONDAY + 50, MONDAY + 500, 2).tolist()) for node in range(100)}
    hours = np.arange(MONDAY, MONDAY + 600)
    frames = []
    for node in range(200):
        since = np.full(len(hours), np.inf)
        for hour in back.get(f"n{node}", []):
            since = np.where(hours >= hour, hours - hour, since)
        rate = 0.001 * np.where(since < 24, ratios[0], np.where(since < 72, ratios[1], 1.0))
        kind = [LOST if failed else None for failed in rng.random(len(hours)) < rate]
        frames.append(pl.DataFrame({"node": f"n{node}", "hour": hours, "level": 0, "kind": kind}))
    return pl.concat([frame.cast({"kind": pl.String}) for frame in frames]), back


@pytest.mark.parametrize(
    ("ratios", "low", "high"), [((12.0, 4.0), (7.0, 2.2), (18.0, 6.5)), ((1.0, 1.0), (0.2, 0.3), (2.2, 2.0))]
)
def test_what_a_repair_does_is_a_factor_of_its_own(
    ratios: tuple[float, float], low: tuple[float, float], high: tuple[float, float]
) -> None:
    at_risk, back = repaired_fleet(1, ratios)
    bands = since_repair(set(at_risk["node"]), MONDAY + 600, back, (24.0, 72.0))
    assert bands is not None
    seen = own_hazards(gather([at_risk], dict.fromkeys(set(at_risk["node"]), 0), bands))
    names, found = seen.fit.fit.ratios(REPAIR)
    assert [name for (name,) in names] == ["0-24 h", "24-72 h", "72+ h"]
    assert np.all((found.value[:2] > low) & (found.value[:2] < high))
    lower, upper = found.interval()
    assert lower[2] < 1 < upper[2]
    hours = seen.seen.table.marginal(REPAIR).exposure_node_hours
    overlap = sum(min(24, second - first) for first, second in back.values()) + 24 * 100
    assert hours[1] == overlap
    assert hours.sum() == at_risk.height


def test_without_a_repair_before_any_hour_seasons_are_the_third_factor() -> None:
    assert since_repair(["n0"], MONDAY, {}, (24.0,)) is None
    assert since_repair(["n0"], MONDAY, {"n0": [MONDAY], "strange": [MONDAY - 5]}, (24.0,)) is None


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
    ours, theirs = fit_levels(table, prior_sd=10.0).ratios, cox(episodes(at_risk))["level"]
    assert (theirs.reference, theirs.values) == (0, (1, 2, 3))
    assert np.log(ours.value) == pytest.approx(np.log(theirs.ratio), abs=TOLERANCE_SE * theirs.log_sd.min())
    assert ours.log_sd == pytest.approx(theirs.log_sd, rel=0.02)
    swapped = episodes(at_risk).with_columns(level=pl.col("level").replace({1: 2, 2: 1}))
    assert np.abs(np.log(cox(swapped)["level"].ratio) - np.log(ours.value)).max() > 0.5


def test_cox_refuses_a_level_without_a_failure() -> None:
    path = levels({"a": [0] * 30, "b": [2] * 30, "c": [0] * 30})
    lives = episodes(hours_at_risk(path, events(("a", 9, "xid", 79))))
    with pytest.raises(ValueError, match="no failure at level 2"):
        cox(lives)


def test_contexts_and_levels_are_told_apart_by_cox_and_by_the_fit() -> None:
    path, found, contexts = cloud(7, 300, 600, RATES, worse=3.0)
    seen = own_hazards(gather([hours_at_risk(path, found)], contexts))
    assert (seen.cox["context"].reference, seen.cox["context"].values) in ((0, (1,)), (1, (0,)))
    truth = 3.0 if seen.cox["context"].reference else 1 / 3.0
    assert seen.cox["context"].low[0] < truth < seen.cox["context"].high[0]
    ours = seen.fit.fit.ratios("context")[1]
    assert np.log(ours.value) == pytest.approx(np.log(seen.cox["context"].ratio), abs=0.2)
    assert (seen.cox["level"].low < [3.0, 10.0, 30.0]).all()
    assert (seen.cox["level"].high > [3.0, 10.0, 30.0]).all()
    assert seen.left_out == ()
    # what a mixed fleet has at a level lies between what either context has there
    both = seen.fit.rates.value
    assert (both.min(axis=0) < seen.fit.by_level.value).all()
    assert (seen.fit.by_level.value < both.max(axis=0)).all()


def test_what_never_failed_is_left_out_of_cox_and_said() -> None:
    path, found, contexts = cloud(7, 200, 400, RATES)
    at_risk = hours_at_risk(path, found)
    calm = at_risk.filter((pl.col("level") < 3) | pl.col("kind").is_null())
    seen = own_hazards(gather([calm], contexts))
    assert seen.left_out == ("level 3 by Cox: no node failed there for the first time",)
    assert seen.cox["level"].values == (1, 2)
    without = own_hazards(gather([calm.filter(pl.col("level") < 3)], contexts))
    assert seen.cox["level"].ratio == pytest.approx(without.cox["level"].ratio, rel=1e-6)
    assert set(seen.hazard_by_level) == {0, 1, 2}
    with pytest.raises(ValueError, match="no failures"):
        own_hazards(gather([at_risk.filter(pl.col("kind").is_null())], contexts))


def test_levels_that_cannot_be_told_from_contexts_get_no_ratio_by_cox() -> None:
    rng = np.random.default_rng(3)
    path = levels({f"n{node}": [2 * (node % 2)] * 200 for node in range(100)})
    found = events(*((f"n{node}", int(rng.integers(1, 200)), "xid", 79) for node in range(0, 100, 3)))
    seen = own_hazards(gather([hours_at_risk(path, found)], {f"n{node}": node % 2 for node in range(100)}))
    assert seen.cox == {}
    (said,) = seen.left_out
    assert "cannot tell levels and contexts apart" in said
    assert np.isfinite(seen.fit.ratios.value).all()  # the prior shares out what is one effect


def test_curves_are_those_of_the_counting_process_by_hand() -> None:
    path = levels(
        {"a": [0] * 40, "b": [0] * 5 + [1] * 35, "c": [UNKNOWN] * 10 + [0] * 30, "d": [0] * 3 + [SILENT] * 30 + [0] * 7}
    )
    planned = pl.DataFrame({"node": ["d"], "hour": [MONDAY + 3]}, schema_overrides={"hour": pl.Int64})
    at_risk = hours_at_risk(path, events(("b", 10, "xid", 79), ("a", 20, "xid", 79), ("c", 36, "xid", 48)), planned)
    lives = episodes(at_risk)
    assert lives.filter(node="b").select("start_h", "stop_h", "level", "failed").rows() == [
        (0, 5, 0, False),
        (5, 10, 1, True),
    ]
    assert lives.filter(node="c")["start_h"].to_list() == [10]
    assert lives.filter(node="d").select("start_h", "stop_h").rows() == [(0, 3), (33, 39)]
    # b fails at 10, when a and b are at risk (c enters at 10, d is silent); a at 20 beside c; c at 36 beside d
    survival, hazard = kaplan_meier(lives), nelson_aalen(lives)
    assert survival.times.tolist() == [10.0, 20.0, 36.0]
    assert survival.at_risk.tolist() == [2.0, 2.0, 2.0]
    assert survival.value == pytest.approx([1 / 2, 1 / 4, 1 / 8])
    assert hazard.value == pytest.approx([1 / 2, 1.0, 3 / 2])
    assert (survival.low < survival.value).all()
    assert (survival.value < survival.high).all()


def test_left_truncated_curves_find_the_rate_although_nodes_come_late() -> None:
    path, found, _contexts = cloud(3, 400, 600, np.full(LEVELS, 1e-3))
    lives = episodes(hours_at_risk(path, found))
    hazard = nelson_aalen(lives)
    assert hazard.value[-1] == pytest.approx(1e-3 * hazard.times[-1], rel=0.2)
