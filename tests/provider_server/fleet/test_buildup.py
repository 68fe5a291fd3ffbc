"""Build-up levels: thresholds by hand, what must change nothing, order, resumption, and planted drifts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from crypto.errors import DecodeError
from federation.protocol.toml_tables import BadTable
from provider_server.fleet.analysis.buildup import (
    CALM_H,
    FORGET_H,
    FRESH,
    SILENT,
    STALE,
    UNKNOWN,
    BuildUp,
    parse,
    signals,
)
from provider_server.fleet.telemetry.catalogue import METRICS, Kind
from provider_server.fleet.telemetry.quality import Reason, Tally
from provider_server.fleet.telemetry.samples import HOUR_S, Chunk, SeriesBook, Window
from provider_server.fleet.telemetry.summaries import MISSING, REPORTED, HourSummary, Summaries

ECC, FLAPS, HEAT = "ecc_corrected", "ib_link_downed", "gpu_temperature"
UNIT = next(signal.unit for signal in signals() if signal.metric == ECC)
ROWS = {"node": pl.String, "device": pl.String, "metric": pl.String, "increase": pl.Float64, "mean": pl.Float64}
Values = Mapping[tuple[str, str], float | None]
"""By node (its only device is g0) and metric; None is a series that says nothing."""


def summary(hour: int, values: Values, silent: Sequence[str] = (), device: str = "g0") -> HourSummary:
    rows = [
        (node, device, metric, *((value, None) if METRICS[metric].kind is Kind.COUNTER else (None, value)))
        for (node, metric), value in values.items()
    ]
    names = {node: REPORTED for node, _metric in values} | dict.fromkeys(silent, MISSING)
    nodes = pl.DataFrame({"node": list(names), "status": list(names.values())})
    return HourSummary(hour, pl.DataFrame(rows, schema=ROWS, orient="row"), nodes, pl.DataFrame())


def fleet(
    metric: str, size: int = 16, value: float = 0.0, **others: float | None
) -> dict[tuple[str, str], float | None]:
    """The same value for n0, n1, …, but for those that are named."""
    return {(f"n{node}", metric): value for node in range(size)} | {(node, metric): it for node, it in others.items()}


def row(shown: pl.DataFrame, node: str) -> dict[str, Any]:
    return shown.row(by_predicate=pl.col("node") == node, named=True)


def level(shown: pl.DataFrame, node: str = "n0") -> int:
    return int(row(shown, node)["level"])


def after(build: BuildUp, hours: Sequence[HourSummary]) -> pl.DataFrame:
    """What the last of several hours shows."""
    return [build.add(hour) for hour in hours][-1]


# ---- the table -----------------------------------------------------------------------------------------------------

TABLE = '[ecc_corrected]\nsummary = "increase"\nhalf_life_h = 72\nunit = 4\nwords = "w"\nreason = "r"\nsource = "s"\n'


def test_the_table_names_summaries_that_telemetry_has() -> None:
    assert {ECC, FLAPS, HEAT, "rows_remapped_uncorrectable", "nvlink_replays", "thermal_violation"} <= {
        signal.metric for signal in signals()
    }
    assert all(signal.reason and signal.source for signal in signals())
    assert parse(TABLE)[0].kept ** 72 == pytest.approx(0.5)


def test_the_page_shows_the_table_that_is_used() -> None:
    page = (Path(__file__).parents[3] / "docs" / "nodes.md").read_text(encoding="utf-8")
    rows = [f"| `{one.metric}` | {one.half_life_h:g} h | {one.unit:g} | {one.reason} |" for one in signals()]
    assert [row for row in rows if row not in page] == []
    assert page.count(" h | ") == len(rows)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("ecc_corrected", "ecc_correct", "ecc_correct: telemetry has no increase"),
        ('"increase"', '"mean"', "no mean"),
        ('"increase"', '"last"', "summary has an unknown value"),
        ("unit = 4", "unit = 0", "unit"),
        ("unit = 4", "unit = 4\nweight = 2", "weight"),
        ('source = "s"', 'source = ""', "source"),
    ],
)
def test_a_table_that_cannot_be_is_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(BadTable, match=says):
        parse(TABLE.replace(old, new))


# ---- levels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("doublings", "expected"), [(3, 1), (5, 2), (7, 3)])
def test_levels_begin_where_the_text_says(doublings: int, expected: int) -> None:
    errors = UNIT * (2.0**doublings - 1.0)
    assert level(BuildUp().add(summary(0, fleet(ECC, n0=errors)))) == expected
    assert level(BuildUp().add(summary(0, fleet(ECC, n0=errors - 0.1)))) == expected - 1


def test_a_level_says_where_it_comes_from() -> None:
    shown = BuildUp().add(summary(0, fleet(ECC, n3=100.0) | fleet(FLAPS, n3=1.0)))
    assert row(shown, "n3")["why"] == "g0: 100 corrected memory errors lately, usual 0"
    assert row(shown, "n3")[ECC] == pytest.approx(np.log2(1 + 100 / UNIT))
    assert row(shown, "n3")[FLAPS] == pytest.approx(np.log2(3.0))
    assert (row(shown, "n0")["why"], row(shown, "n0")["level"], row(shown, "n0")[HEAT]) == ("", 0, None)


@pytest.mark.nightly
def test_a_hot_day_and_a_storm_of_errors_everywhere_raise_nobody() -> None:
    rng, build = np.random.default_rng(0), BuildUp()
    for hour in range(80):
        hot, storm = (25.0, 30.0) if hour >= 40 else (0.0, 1.0)
        heat = {(f"n{node}", HEAT): 50.0 + node % 5 + hot + rng.normal() for node in range(40)}
        errors = {(f"n{node}", ECC): float(rng.poisson(0.2 * storm)) for node in range(40)}
        assert build.add(summary(hour, heat | errors))["level"].max() == 0
    own = [summary(hour, fleet(HEAT, 40, 60.0, n7=85.0) | fleet(ECC, 40)) for hour in range(80, 120)]
    shown = after(build, own)
    assert shown.filter(pl.col("level") > 0)["node"].to_list() == ["n7"]  # what is not shared is found
    assert "degrees of GPU temperature lately above its peers" in row(shown, "n7")["why"]


@pytest.mark.nightly
def test_a_hall_that_warms_as_a_whole_is_told_and_raises_nobody() -> None:
    degrees = next(signal.unit for signal in signals() if signal.metric == HEAT)
    halls = {f"n{node}": "old" if node < 16 else "new" for node in range(32)}
    build = BuildUp(halls)

    def hour(at: int, warmer: float) -> HourSummary:
        daily = 2.0 * degrees * np.sin(at * np.pi / 12)
        old = {(node, HEAT): 50.0 + daily + warmer for node, hall in halls.items() if hall == "old"}
        return summary(at, old | {(node, HEAT): 60.0 + daily for node, hall in halls.items() if hall == "new"})

    after(build, [hour(at, 0.0) for at in range(21 * 24)])
    assert build.shifts() == []  # days are warmer than nights
    resumed = BuildUp.resumed(build.state(), halls)
    for one in (build, resumed):
        shown = after(one, [hour(at, 5.0 * degrees) for at in range(21 * 24, 24 * 24)])
        (shift,) = one.shifts()
        assert (shift.group, shift.metric) == ("old", HEAT)
        assert 3.0 < shift.units < 5.0
        assert shown["level"].max() == 0
    assert resumed.state() == build.state()


def test_a_storm_of_errors_everywhere_is_told_and_one_node_or_a_state_of_before_is_no_shift() -> None:
    build = BuildUp()
    after(build, [summary(at, fleet(ECC, n0=40.0 if at > 200 else 0.0)) for at in range(300)])
    assert build.shifts() == []
    old = {key: value for key, value in json.loads(build.state()).items() if key != "medians"}
    assert BuildUp.resumed(json.dumps(old).encode()).shifts() == []
    after(build, [summary(at, fleet(ECC, value=40.0)) for at in range(300, 400)])
    assert [(one.group, one.metric) for one in build.shifts()] == [("", ECC)]


def test_peers_are_those_of_the_same_context() -> None:
    warm = {(f"n{node}", HEAT): 50.0 + 25.0 * (node < 10) for node in range(40)}
    group = {f"n{node}": "warm" if node < 10 else "cool" for node in range(40)}
    hours = [summary(hour, warm) for hour in range(50)]
    assert after(BuildUp(), hours).filter(pl.col("level") > 0).height == 10
    assert after(BuildUp(group), hours)["level"].max() == 0


def test_few_nodes_are_compared_with_no_errors_and_not_by_heat() -> None:
    values = {("a", HEAT): 90.0, ("b", HEAT): 40.0, ("a", ECC): 0.0, ("b", ECC): 20.0}
    shown = after(BuildUp(), [summary(hour, values) for hour in range(40)])
    assert (level(shown, "a"), level(shown, "b")) == (0, 3)


def test_levels_do_not_flap_and_fall_after_calm_hours() -> None:
    build = BuildUp(table=parse(TABLE.replace("half_life_h = 72", "half_life_h = 12")))
    levels = [level(build.add(summary(0, fleet(ECC, n0=UNIT * 7))))]  # score 3
    more = [summary(hour, fleet(ECC, n0=UNIT * 2.5 if hour % 8 == 0 else 0.0)) for hour in range(1, 40)]
    levels += [level(build.add(hour)) for hour in more]  # scores between 2 and 3
    assert set(levels) == {1}
    scores, falling = [], []
    for hour in range(40, 90):
        shown = build.add(summary(hour, fleet(ECC)))
        scores.append(row(shown, "n0")["score"])
        falling.append(level(shown))
    below = next(place for place, score in enumerate(scores) if score < 2.0)
    assert falling.index(0) == below + CALM_H - 1
    assert falling == sorted(falling, reverse=True)


# ---- what is missing -----------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_silence_lowers_nothing_and_is_counted() -> None:
    build = BuildUp(table=parse(TABLE.replace("half_life_h = 72", "half_life_h = 1")))
    assert level(build.add(summary(0, fleet(ECC, n0=UNIT * 31)))) == 2
    others = {key: it for key, it in fleet(ECC).items() if key[0] != "n0"}
    shown = after(build, [summary(hour, others, silent=["n0"]) for hour in range(1, 60)])
    assert (level(shown), row(shown, "n0")["status"]) == (2, SILENT)
    assert row(shown, "n0")["why"].endswith("; not reported for 59 h")
    assert build.doubts == {"node_hours_silent": 59}
    # up again, but the series that matters says nothing
    shown = after(build, [summary(hour, fleet(ECC, n0=None)) for hour in range(60, 90)])
    assert (level(shown), row(shown, "n0")["status"]) == (2, STALE)
    assert build.doubts == {"node_hours_silent": 59, "node_hours_stale": 30}
    shown = after(build, [summary(hour, fleet(ECC)) for hour in range(90, 130)])
    assert (level(shown), row(shown, "n0")["status"]) == (0, FRESH)


def test_hours_that_were_never_read_are_silence() -> None:
    build = BuildUp()
    build.add(summary(0, fleet(ECC, n0=UNIT * 31)))
    shown = build.add(summary(500, fleet(ECC)))
    assert (level(shown), dict(build.doubts)) == (2, {"hours_skipped": 499})
    with pytest.raises(ValueError, match="hour 500 came after hour 500"):
        build.add(summary(500, fleet(ECC)))


def test_what_is_silent_for_weeks_is_forgotten_and_counted() -> None:
    build = BuildUp()
    build.add(summary(0, fleet(ECC, n0=UNIT * 31)))
    others = {key: it for key, it in fleet(ECC).items() if key[0] != "n0"}
    shown = build.add(summary(FORGET_H, others, silent=["n0"]))
    assert (level(shown), row(shown, "n0")["status"]) == (2, SILENT)
    shown = build.add(summary(FORGET_H + 1, others, silent=["n0"]))
    assert (row(shown, "n0")["status"], build.doubts["streams_forgotten"]) == (UNKNOWN, 1)


def test_a_node_that_never_reported_is_unknown() -> None:
    build = BuildUp()
    shown = build.add(summary(0, fleet(ECC, n1=None), silent=["ghost"]))
    assert {node: row(shown, node)["status"] for node in ("ghost", "n0", "n1")} == {
        "ghost": UNKNOWN,
        "n0": FRESH,
        "n1": UNKNOWN,
    }
    assert build.doubts == {"node_hours_unknown": 2}


def test_a_repaired_node_begins_anew() -> None:
    build = BuildUp()
    build.add(summary(0, fleet(ECC, n0=1e6, n1=1e6)))
    build.repaired(["n0"])
    shown = build.add(summary(1, fleet(ECC)))
    assert (level(shown, "n0"), level(shown, "n1")) == (0, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -5.0])
def test_a_count_that_cannot_be_is_a_missing_one(value: float) -> None:
    bad, missing = BuildUp(), BuildUp()
    for build in (bad, missing):
        build.add(summary(0, fleet(ECC, n0=UNIT * 31)))
    shown = bad.add(summary(1, fleet(ECC, n0=value)))
    assert shown.equals(missing.add(summary(1, fleet(ECC, n0=None))))
    assert row(shown, "n0")["status"] == STALE
    assert (bad.doubts["values_refused"], missing.doubts.get("values_refused")) == (1, None)


def read(trap: str) -> tuple[pl.DataFrame, SeriesBook]:
    """Levels of 10 nodes over 6 hours from samples of a counter; n0 has errors, and one trap is laid on every node."""
    window, book, build = Window(1000, 1006, 1006.0 * HOUR_S), SeriesBook(Tally()), BuildUp()
    summaries, shown = Summaries(book, window), list[HourSummary]()
    for node in range(10):
        times = 1000.0 * HOUR_S + 60.0 * np.arange(6 * 60)
        values = np.floor(np.arange(6 * 60) / 4.0) if node == 0 else np.zeros(6 * 60)
        labels = {"__name__": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Hostname": f"n{node}", "gpu": "0", "UUID": f"g{node}"}
        if trap in {"nan", "sentinel"}:
            times, at = np.insert(times, 100, times[99] + 30.0), {"nan": np.nan, "sentinel": 9223372036854775794.0}
            values = np.insert(values, 100, at[trap])
        if trap == "clock":
            times, values = np.append(times, times[50]), np.append(values, 1e6)
        if trap == "future":
            times, values = np.append(times, 2000.0 * HOUR_S), np.append(values, 1e6)
        names = [labels["__name__"]] + ["dcgm_ecc_sbe_volatile_total"] * (trap == "twice")
        for name in names:
            number = book.number(labels | {"__name__": name}, len(times))
            columns = np.array([times, values], np.float64)
            shown += summaries.add(Chunk(np.full(len(times), number, np.uint32), columns[0], columns[1], 0.0))
    return pl.concat(build.add(hour) for hour in [*shown, *summaries.finish()]), book


@pytest.mark.parametrize(
    ("trap", "reason"),
    [
        ("nan", Reason.NOT_A_NUMBER),
        ("sentinel", Reason.BLANK),
        ("clock", Reason.OUT_OF_ORDER),
        ("future", Reason.FUTURE),
        ("twice", Reason.DUPLICATE),
    ],
)
def test_traps_of_telemetry_change_no_level_and_are_counted_there(trap: str, reason: Reason) -> None:
    clean, _book = read("")
    trapped, book = read(trap)
    assert clean.filter(pl.col("level") > 0)["node"].unique().to_list() == ["n0"]
    assert trapped.equals(clean)
    assert book.tally.quality().of(reason, ECC) >= 10


# ---- order, state and size -----------------------------------------------------------------------------------------


@pytest.mark.nightly
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=9, max_size=9), min_size=2, max_size=15),
    st.lists(st.integers(0, 60), min_size=15, max_size=15),
    st.sampled_from([ECC, FLAPS, HEAT]),
)
def test_more_errors_never_lower_a_level(errors: list[list[int]], more: list[int], metric: str) -> None:
    build, worse = BuildUp(), BuildUp()
    for hour, counts in enumerate(errors):
        values: dict[tuple[str, str], float | None] = {
            (f"n{node}", metric): float(count) for node, count in enumerate(counts)
        }
        raised = values | {("n0", metric): float(counts[0] + more[hour])}
        one, other = build.add(summary(hour, values)), worse.add(summary(hour, raised))
        assert level(one) <= level(other)
        assert row(one, "n0")["score"] <= row(other, "n0")["score"] + 1e-9


def test_a_run_goes_on_where_it_ended() -> None:
    rng = np.random.default_rng(3)
    hours = [
        summary(
            hour,
            {(f"n{node}", ECC): float(rng.poisson(3.0 if node < 2 else 0.1)) for node in range(12)}
            | {(f"n{node}", HEAT): None if hour % 7 == node else 50.0 + rng.normal() for node in range(12)},
        )
        for hour in range(40)
    ]
    whole, part = BuildUp(), BuildUp()
    for hour in hours[:20]:
        whole.add(hour), part.add(hour)
    for hour in hours[20:]:
        part = BuildUp.resumed(part.state())
        assert part.add(hour).equals(whole.add(hour))
    assert part.doubts == whole.doubts
    assert whole.doubts["node_hours_stale"] > 0


@pytest.mark.parametrize("damage", [b"", b"{}", b'"version"', b"[1]"])
def test_a_damaged_state_is_refused(damage: bytes) -> None:
    build = BuildUp()
    build.add(summary(0, fleet(ECC)))
    with pytest.raises(DecodeError):
        BuildUp.resumed(damage)
    with pytest.raises(DecodeError):
        BuildUp.resumed(build.state().replace(b'"version":1', b'"version":2'))
    with pytest.raises(DecodeError):
        BuildUp.resumed(build.state().replace(b'"total":[0.0,', b'"total":['))
    with pytest.raises(DecodeError):
        BuildUp.resumed(build.state().replace(b'"total":', b'"totals":'))


def test_memory_does_not_grow_with_hours() -> None:
    build = BuildUp()
    build.add(summary(0, fleet(ECC, 50, 1.5)))
    first = len(build.state())
    after(build, [summary(hour, fleet(ECC, 50, 1.5)) for hour in range(1, 50)])
    assert len(build.state()) < 2 * first


# ---- planted drifts ------------------------------------------------------------------------------------------------

HEALTHY = {ECC: 0.05, "nvlink_replays": 0.05, "pcie_replays": 0.2, "ib_symbol_errors": 0.3, FLAPS: 0.001}
NODES, SICK, DAYS, ONSET_H = 400, 20, 10, 72


def drifting_hour(rng: np.random.Generator, hour: int) -> HourSummary:
    """Of the first 20 nodes every sixth gets hotter by 3 degrees a day, the others' errors double every 12 hours."""
    age, kinds = max(0, hour - ONSET_H), list(HEALTHY)
    names, frames = [f"n{node:03}" for node in range(NODES)], []
    for place, (metric, rate) in enumerate(HEALTHY.items()):
        rates = np.full(NODES, rate)
        rates[place : SICK : len(kinds) + 1] *= min(2.0 ** (age / 12.0), 300.0)
        counts = rng.poisson(rates).astype(np.float64)
        frames.append(pl.DataFrame({"node": names, "metric": metric, "increase": counts, "mean": None}, strict=False))
    day = 8.0 * np.sin(hour / 24.0 * 2.0 * np.pi)
    heat = 55.0 + day + 10.0 * (rng.random(NODES) < 0.7) + rng.normal(0.0, 2.0, NODES)
    heat[len(kinds) : SICK : len(kinds) + 1] += min(age / 8.0, 20.0)
    frames.append(pl.DataFrame({"node": names, "metric": HEAT, "increase": None, "mean": heat}, strict=False))
    columns = [pl.col("increase", "mean").cast(pl.Float64), pl.lit("g0").alias("device")]
    rows = pl.concat([frame.with_columns(columns) for frame in frames])
    return HourSummary(hour, rows, pl.DataFrame({"node": names, "status": REPORTED}), pl.DataFrame())


@pytest.mark.nightly
def test_planted_drifts_are_found_and_healthy_nodes_left_alone() -> None:
    rng, build = np.random.default_rng(7), BuildUp()
    shown = pl.concat(build.add(drifting_hour(rng, hour)) for hour in range(24 * DAYS))
    sick = pl.col("node").is_in([f"n{node:03}" for node in range(SICK)])
    found = shown.filter(sick & (pl.col("level") > 0)).group_by("node").agg(first=pl.col("hour").min() - ONSET_H)
    assert found.height == SICK
    delays = found["first"].to_numpy()
    assert delays.min() > 0
    assert np.median(delays) < 96
    assert delays.max() < 144
    healthy = shown.filter(~sick)
    rises = healthy.filter((pl.col("level") > 0) & (pl.col("level").shift(1).over("node") == 0)).height
    assert rises / (healthy.height / 24.0) * 1000.0 < 0.5  # per 1,000 node-days
    before = shown.filter(pl.col("hour") == 24 * DAYS - 1)
    lowest, highest = before.filter(sick)["score"].to_numpy().min(), before.filter(~sick)["score"].to_numpy().max()
    assert lowest > highest  # at the end, the area under the ROC is 1
