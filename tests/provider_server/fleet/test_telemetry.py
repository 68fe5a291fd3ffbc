"""Telemetry to summaries: every trap with a planted case and its count, and what must hold whatever comes."""

import bz2
import gzip
import json
import lzma
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from federation.base.reading import SourceError
from federation.base.visible import json_text
from federation.protocol.toml_tables import BadTable
from provider_server.fleet.telemetry.catalogue import BLANKS, METRICS, parse
from provider_server.fleet.telemetry.files import FileSource, Layout, UnusableFile
from provider_server.fleet.telemetry.inventory import Inventory, InventoryError, Nic, NvLink, load
from provider_server.fleet.telemetry.quality import MOST_NAMES, OTHERS, Count, Quality, Reason, Tally
from provider_server.fleet.telemetry.samples import HOUR_S, Chunk, SeriesBook, Stamps, Window
from provider_server.fleet.telemetry.summaries import HourSummary, per_node, summarise

HOUR = 490_000
START_S = float(HOUR * HOUR_S)
XID, POWER, TEMPERATURE = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP"
REPLAYS = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
Samples = Sequence[tuple[float, float]]


def window(hours: int = 1) -> Window:
    return Window(HOUR, HOUR + hours, START_S + hours * HOUR_S)


def labels(name: str, **more: str) -> dict[str, str]:
    return {"__name__": name, "Hostname": "n1", "gpu": "0", "UUID": "GPU-a"} | more


def chunk(book: SeriesBook, of: Mapping[str, str], samples: Samples, complete_to_s: float = 0.0) -> Chunk:
    """Samples of one series; times count from the first hour."""
    number = book.number(of, len(samples))
    times, values = np.array(samples, np.float64).reshape(-1, 2).T
    return Chunk(np.full(len(samples), number, np.uint32), START_S + times, values.copy(), complete_to_s)


def every(step_s: float, values: Sequence[float], begin_s: float = 0.0) -> Samples:
    return [(begin_s + step_s * place, value) for place, value in enumerate(values)]


class Given:
    """A source that has its chunks."""

    def __init__(self, *chunks: Chunk) -> None:
        self._chunks = chunks

    def chunks(self, _book: SeriesBook, _window: Window) -> Iterator[Chunk]:
        return iter(self._chunks)


def read(book: SeriesBook, *chunks: Chunk, hours: int = 1, expected: Sequence[str] = ()) -> list[HourSummary]:
    return list(summarise(Given(*chunks), book, window(hours), expected))


def a_book() -> SeriesBook:
    return SeriesBook(Tally())


def quality(book: SeriesBook) -> Quality:
    found = book.tally.quality()
    assert found.used + found.dropped == found.read
    return found


def row(summary: HourSummary, metric: str, device: str = "GPU-a") -> dict[str, Any]:
    found = summary.rows.filter((pl.col("metric") == metric) & (pl.col("device") == device))
    assert found.height == 1, found
    return found.row(0, named=True)


# ---- the table -----------------------------------------------------------------------------------------------------

TABLE = """[power]
unit = "watts"
kind = "gauge"
of = "gpu"
names = { p = 1 }
blanks = ["f64"]
low = 0
high = 10
summarise = ["mean"]
"""


def test_the_table_knows_both_spellings_of_a_name_and_their_units() -> None:
    assert {"DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"} <= set(METRICS["xid"].names)
    assert METRICS["power"].names["nvml_power_usage_milliwatts"] == pytest.approx(1e-3)
    assert parse(TABLE)["power"].high == 10


def test_each_disk_of_a_node_is_a_stream_of_its_own() -> None:
    book = a_book()
    chunks = [
        chunk(book, {"__name__": name, "instance": f"n1:{port}", "device": disk}, every(60, values))
        for name, port, disk, values in (
            ("smartctl_device_media_errors", 9633, "nvme0", [7] * 60),
            ("smartctl_device_media_errors", 9633, "nvme1", [7] * 30 + [9] * 30),
            ("node_edac_correctable_errors_total", 9100, "", range(60)),
        )
    ]
    (hour,) = read(book, *chunks)
    increases = [row(hour, "disk_media_errors", f"device={disk}")["increase"] for disk in ("nvme0", "nvme1")]
    assert increases == [0, 2]
    assert row(hour, "edac_corrected", "controller=")["node"] == "n1"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"gauge"', '"guage"', "power: kind has an unknown value"),
        ('["f64"]', '["f65"]', "f65"),
        ('["mean"]', '["increase"]', "increase"),
        ("high = 10", "high = 0", r"low \(0\) must be below high \(0\)"),
        ("low = 0", 'low = -1\nblanks_too = ["i32"]', "blanks_too"),
        ("high = 10", "high = 10\nevent = true", "events"),
        ('kind = "gauge"', 'kind = "state"\nabove = 3', "no summary mean"),
        ("summarise", "[other]\nsummarise", "power"),
    ],
)
def test_a_table_that_cannot_be_is_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(BadTable, match=says):
        parse(TABLE.replace(old, new))


def test_a_name_has_one_metric() -> None:
    with pytest.raises(BadTable, match="p is a name of both"):
        parse(TABLE + TABLE.replace("[power]", "[force]"))


# ---- values that mean nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", sorted({"f64", "i32", "i64", "u32", "minus_one"}))
def test_blank_values_are_dropped_and_counted(family: str) -> None:
    book, low, high = a_book(), *BLANKS[family]
    assert family in METRICS["power"].blanks
    [hour] = read(book, chunk(book, labels(POWER), every(15, [100, low, 200, high, 300])))
    assert (row(hour, "power")["count"], row(hour, "power")["max"]) == (3, 300)
    assert quality(book).counts[0] == Count(Reason.BLANK, "power", 2)


def test_the_exact_blank_of_a_64_bit_field_survives_its_way_through_a_double() -> None:
    book = a_book()
    read(book, chunk(book, labels(XID), every(15, [0, 9223372036854775794, 0])))
    assert quality(book).of(Reason.BLANK, "xid") == 1


def test_a_counter_may_pass_the_numbers_that_are_blank_for_others() -> None:
    book, name = a_book(), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    values = [0x7FFFFFF0 - 5, 0x7FFFFFF0, 0x7FFFFFF0 + 5]
    [hour] = read(book, chunk(book, labels(name), every(15, values)))
    assert (row(hour, "energy")["count"], quality(book).dropped) == (3, 0)
    assert row(hour, "energy")["increase"] == pytest.approx(0.010)


def test_no_numbers_and_impossible_numbers_are_dropped_each_for_its_reason() -> None:
    book = a_book()
    [hour] = read(book, chunk(book, labels(TEMPERATURE), every(15, [40, np.nan, 4000, -3, np.inf, 60])))
    assert (row(hour, "gpu_temperature")["mean"], row(hour, "gpu_temperature")["min"]) == (50, 40)
    assert [quality(book).of(reason) for reason in (Reason.NOT_A_NUMBER, Reason.IMPLAUSIBLE)] == [1, 3]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (TEMPERATURE, 4000.0, Reason.IMPLAUSIBLE),
        (TEMPERATURE, -3.0, Reason.IMPLAUSIBLE),
        ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 2147483634.0, Reason.BLANK),  # within what is plausible
    ],
)
def test_one_bad_value_among_good_ones_is_enough(name: str, value: float, reason: Reason) -> None:
    book = a_book()
    [hour] = read(book, chunk(book, labels(name), every(15, [40, value, 41])))
    assert hour.rows["count"].to_list() == [2]
    assert quality(book).of(reason) == 1


def test_a_series_of_nothing_but_blanks_is_missing_and_not_healthy() -> None:
    book = a_book()
    [hour] = read(book, chunk(book, labels(XID), every(15, [2**63, 2**63])))
    assert (row(hour, "xid")["status"], row(hour, "xid")["last"]) == ("missing", None)
    assert hour.nodes["status"].to_list() == ["missing"]


# ---- counters ------------------------------------------------------------------------------------------------------


def test_a_counter_that_began_anew_adds_what_it_reached_since() -> None:
    book = a_book()
    [hour] = read(book, chunk(book, labels(REPLAYS), every(15, [10, 14, 3, 5, 1])))
    assert (row(hour, "pcie_replays")["increase"], row(hour, "pcie_replays")["resets"]) == (4 + 3 + 2 + 1, 2)
    assert quality(book).of(Reason.RESET, "pcie_replays") == 2


def test_a_reset_between_two_hours_is_seen() -> None:
    book = a_book()
    samples = [(0.0, 10.0), (3000.0, 20.0), (3700.0, 4.0)]
    hours = read(book, chunk(book, labels(REPLAYS), samples), hours=2)
    assert [row(hour, "pcie_replays")["increase"] for hour in hours] == [10, 4]
    assert quality(book).of(Reason.RESET) == 1


increments = st.lists(st.tuples(st.integers(1, 900), st.integers(0, 9)), min_size=2, max_size=60)


@pytest.mark.nightly
@given(increments, st.randoms(use_true_random=False))
def test_increases_over_hours_add_up_however_the_samples_are_cut_and_shuffled(
    steps: list[tuple[int, int]], dice: Random
) -> None:
    book, samples = a_book(), []
    time_s = value = 0
    for step_s, more in steps:
        time_s, value = time_s + step_s, value + more
        samples.append((float(time_s), float(value)))
    hours = time_s // HOUR_S + 1
    cuts = sorted(dice.sample(range(len(samples)), dice.randint(0, min(5, len(samples)))))
    parts = [samples[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(samples)], strict=True)]
    chunks = [chunk(book, labels(REPLAYS), part) for part in parts if part]
    dice.shuffle(chunks)
    found = read(book, *chunks, hours=hours)
    total = sum(row(hour, "pcie_replays")["increase"] or 0 for hour in found)
    assert total == samples[-1][1] - samples[0][1]
    assert quality(book).dropped == 0


@pytest.mark.nightly
@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_the_order_of_chunks_does_not_matter(codes: list[int], dice: Random) -> None:
    def found(order: Sequence[int]) -> tuple[str, Quality]:
        book = a_book()
        samples = every(400, [float(code) for code in codes])
        pieces = [
            chunk(book, labels(name, pod=f"p{place % 2}"), samples[place : place + 4])
            for name in (XID, REPLAYS, POWER)
            for place in range(0, len(samples), 4)
        ]
        hours = read(book, *(pieces[place] for place in order if place < len(pieces)), hours=6)
        return "".join(hour.rows.write_json() + hour.events.write_json() for hour in hours), quality(book)

    order = list(range(3 * 40))
    shuffled = order.copy()
    dice.shuffle(shuffled)
    assert found(order) == found(shuffled)


# ---- Xid -----------------------------------------------------------------------------------------------------------


def test_an_xid_is_an_event_when_it_changes_and_not_while_it_stands() -> None:
    book = a_book()
    values = [0, 0, 79, 79, 79, 31, 31]
    hours = read(book, chunk(book, labels(XID), every(900, values)), hours=2)
    assert hours[0].events.rows() == [("n1", "GPU-a", "xid", START_S + 1800, 79.0)]
    assert hours[1].events.rows() == [("n1", "GPU-a", "xid", START_S + 4500, 31.0)]
    assert [row(hour, "xid")["changes"] for hour in hours] == [1, 1]


def test_an_xid_that_changes_between_two_hours_or_chunks_is_one_event() -> None:
    book = a_book()
    before, after = every(900, [0, 0, 0, 0]), every(900, [48, 48, 48, 48], 3600)
    hours = read(
        book,
        chunk(book, labels(XID), after[2:]),
        chunk(book, labels(XID), before),
        chunk(book, labels(XID), after[:2]),
        hours=2,
    )
    assert [hour.events.height for hour in hours] == [0, 1]
    assert hours[1].events["time_s"].to_list() == [START_S + 3600]


def test_an_xid_that_was_there_before_is_a_doubt_and_no_event() -> None:
    book = a_book()
    [hour] = read(book, chunk(book, labels(XID), every(15, [79, 79, 79])))
    assert (hour.events.height, row(hour, "xid")["last"], row(hour, "xid")["changes"]) == (0, 79, 0)
    assert quality(book).of(Reason.STANDING, "xid") == 1


def test_setting_a_code_back_is_a_change_and_no_event() -> None:
    book = a_book()
    [hour] = read(book, chunk(book, labels(XID), every(15, [0, 79, 0])))
    assert (hour.events.height, row(hour, "xid")["changes"]) == (1, 2)


def test_the_same_code_again_is_an_event_where_times_are_those_of_values() -> None:
    book = a_book()
    samples = [(100.0, 79.0), (100.0, 79.0), (500.0, 79.0), (500.0, 79.0)]
    [hour] = read(book, replace(chunk(book, labels(XID), samples), stamps=Stamps.VALUE))
    assert hour.events["time_s"].to_list() == [START_S + 100, START_S + 500]
    assert quality(book).of(Reason.REPEATED, "xid") == 2
    book = a_book()
    [hour] = read(book, chunk(book, labels(XID), [(100.0, 79.0), (500.0, 79.0)]))
    assert hour.events.height == 0


# ---- what vanishes, what is there twice, what comes at the wrong time ----------------------------------------------


def test_a_gpu_that_vanishes_is_missing_from_then_on_and_not_healthy() -> None:
    book = a_book()
    stays = chunk(book, labels(POWER, gpu="1", UUID="GPU-b"), every(15, [100.0] * 480))
    falls = chunk(book, labels(POWER), every(15, [100.0] * 120))
    hours = read(book, stays, falls, hours=3)
    assert [row(hour, "power")["status"] for hour in hours] == ["partial", "missing", "missing"]
    assert [row(hour, "power", "GPU-b")["status"] for hour in hours] == ["reported", "reported", "missing"]
    assert [hour.nodes["status"].item() for hour in hours] == ["partial", "partial", "missing"]
    assert row(hours[1], "power")["mean"] is None
    assert row(hours[0], "power")["gap_s"] == 3600 - 119 * 15
    assert quality(book).of(Reason.MISSING, "power") == 3


def test_a_node_that_never_reports_is_missing_if_it_is_expected() -> None:
    book = a_book()
    [hour] = read(book, chunk(book, labels(POWER), every(15, [100.0] * 240)), expected=["n1", "n2"])
    assert hour.nodes.rows() == [("n1", "reported"), ("n2", "missing")]
    assert quality(book).of(Reason.MISSING, "(node)") == 1


def test_of_two_exporters_of_one_thing_one_is_taken() -> None:
    book = a_book()
    one = chunk(book, labels(POWER, job="dcgm"), every(15, [100.0] * 240))
    other = chunk(book, labels(POWER, job="gpu"), every(30, [300.0] * 120, 7))
    [hour] = read(book, other, one)
    assert (row(hour, "power")["count"], row(hour, "power")["max"]) == (240, 100)
    assert quality(book).of(Reason.DUPLICATE, "power") == 120


def test_of_two_names_at_once_the_preferred_one_is_taken_and_its_events_once() -> None:
    book = a_book()
    new = chunk(book, labels(XID), every(15, [0, 0, 79, 79]))
    old = chunk(book, labels("dcgm_xid_errors"), every(15, [0, 0, 79, 79], 3))
    [hour] = read(book, old, new)
    assert hour.events["time_s"].to_list() == [START_S + 30]
    assert (quality(book).of(Reason.DUPLICATE, "xid"), row(hour, "xid")["count"]) == (4, 4)


def test_a_pod_that_comes_makes_no_duplicate_and_no_reset() -> None:
    book = a_book()
    idle = chunk(book, labels(REPLAYS), every(15, [5, 6, 7]))
    busy = chunk(book, labels(REPLAYS, pod="train-0", namespace="a"), every(15, [7, 9], 45))
    [hour] = read(book, busy, idle)
    assert (row(hour, "pcie_replays")["increase"], row(hour, "pcie_replays")["count"]) == (4, 5)
    assert quality(book).counts[0].reason is Reason.GAP


def test_a_counter_behind_another_exporters_is_a_doubt_and_no_reset() -> None:
    book = a_book()
    one = chunk(book, labels(REPLAYS, job="a"), every(15, [1000, 1010]))
    other = chunk(book, labels(REPLAYS, job="b"), every(15, [1008, 1009], 30))
    [hour] = read(book, one, other)
    assert (row(hour, "pcie_replays")["increase"], row(hour, "pcie_replays")["resets"]) == (11, 0)
    assert quality(book).of(Reason.SEAM) == 1


def test_samples_out_of_order_repeated_in_the_future_and_outside_are_dropped() -> None:
    book = a_book()
    samples = [
        (0.0, 1.0),
        (60.0, 2.0),
        (30.0, 9.0),
        (60.0, 9.0),
        (90.0, 3.0),
        (9000.0, 9.0),
        (-30.0, 9.0),
        (120.0, 4.0),
    ]
    [hour] = read(book, chunk(book, labels(POWER), samples))
    assert (row(hour, "power")["count"], row(hour, "power")["max"], row(hour, "power")["last"]) == (4, 4, 4)
    found = quality(book)
    reasons = (Reason.OUT_OF_ORDER, Reason.REPEATED, Reason.FUTURE, Reason.OUTSIDE)
    assert [found.of(reason, "power") for reason in reasons] == [1, 1, 1, 1]


def test_a_sample_for_an_hour_that_was_given_away_is_late() -> None:
    book = a_book()
    first = chunk(book, labels(POWER), [(10.0, 100.0)])
    next_hour = chunk(book, labels(POWER), [(3700.0, 100.0), (3500.0, 9.0)], complete_to_s=START_S + HOUR_S)
    hours = read(book, first, next_hour, hours=2)
    assert [row(hour, "power")["count"] for hour in hours] == [1, 1]
    assert quality(book).of(Reason.LATE, "power") == 1


def test_hours_are_given_away_while_samples_still_come() -> None:
    book, given = a_book(), list[int]()

    class Hourly:
        def chunks(self, book: SeriesBook, window: Window) -> Iterator[Chunk]:
            for hour in range(window.start_hour, window.end_hour):
                assert len(given) == max(0, hour - window.start_hour - 1)
                begin_s = HOUR_S * float(hour - HOUR)
                yield chunk(book, labels(POWER), every(15, [100.0] * 240, begin_s), START_S + begin_s)

    for summary in summarise(Hourly(), book, window(5)):
        given.append(summary.hour)
    assert given == [HOUR + place for place in range(5)]


def test_series_that_mean_nothing_are_counted_by_name_and_names_are_bounded() -> None:
    book = a_book()
    assert book.number(labels("DCGM_FI_DEV_NEW\x1b[31m"), 7) == -1
    assert book.number({"__name__": POWER, "gpu": "0"}, 3) == -1
    assert book.number({"__name__": POWER, "Hostname": "n1"}, 2) == -1
    found = quality(book)
    assert found.of(Reason.UNKNOWN_METRIC, r"DCGM_FI_DEV_NEW\x1b[31m") == 7
    assert (found.of(Reason.NO_NODE, "power"), found.of(Reason.NO_DEVICE, "power")) == (3, 2)
    for number in range(MOST_NAMES + 5):
        book.number(labels(f"x{number}"), 1)
    assert quality(book).of(Reason.UNKNOWN_METRIC, OTHERS) == 7


def test_quality_is_shown_as_text_and_as_a_row() -> None:
    tally = Tally()
    tally.read(5)
    tally.count(Reason.BLANK, "power", 2)
    tally.count(Reason.RESET, "energy", 1)
    found = tally.quality()
    assert found.lines()[0] == "5 samples read, 3 used, 2 dropped"
    assert json.loads(json_text(found.row()))["counts"][0] == {"reason": "blank", "metric": "power", "count": 2}


def test_means_extremes_and_shares_are_those_of_numpy() -> None:
    book, values = a_book(), np.random.default_rng(3).uniform(20, 110, 240)
    [hour] = read(book, chunk(book, labels(TEMPERATURE), every(15, values.tolist())))
    found = row(hour, "gpu_temperature")
    assert found["mean"] == pytest.approx(values.mean())
    assert (found["max"], found["min"], found["last"]) == (values.max(), values.min(), values[-1])
    assert found["above_share"] == pytest.approx((values > 85).mean())
    assert 0.1 < (values > 85).mean() < 0.9
    assert found["increase"] is None


def test_a_node_is_the_sum_of_its_devices() -> None:
    book = a_book()
    one = chunk(book, labels(POWER), every(15, [100.0] * 30))
    two = chunk(book, labels(POWER, gpu="1", UUID="GPU-b"), every(15, [400.0] * 10))
    [hour] = read(book, one, two)
    found = per_node(hour.rows).row(0, named=True)
    assert (found["devices"], found["mean"], found["max"], found["increase"]) == (2, 175, 400, None)


# ---- files ---------------------------------------------------------------------------------------------------------


def a_table() -> pl.DataFrame:
    times = [START_S + 15 * place for place in range(500)]
    values = [float(place) for place in range(500)]
    one = pl.DataFrame({"time_s": times, "metric": REPLAYS, "value": values, "Hostname": "n1", "gpu": "0", "pod": None})
    two = one.with_columns(gpu=pl.lit("1"), pod=pl.lit("train"), value=pl.col("value") * 2)
    return pl.concat([one.with_columns(pl.col("pod").cast(pl.String)), two]).sort("time_s", maintain_order=True)


@pytest.mark.parametrize("layout", [Layout(), Layout(lag_s=60.0)])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_files_say_the_same_as_their_samples(tmp_path: Path, suffix: str, layout: Layout) -> None:
    path, book = tmp_path / f"week.{suffix}", a_book()
    a_table().write_csv(path) if suffix == "csv" else a_table().write_parquet(path, row_group_size=64)
    hours = list(summarise(FileSource([path], layout, batch_rows=70), book, window(3)))
    found = [[row(hour, "pcie_replays", gpu)["increase"] for gpu in "01"] for hour in hours]
    assert found == [[239, 478], [240, 480], [20, 40]]
    assert quality(book).read == 1000
    assert quality(book).dropped == 0


def test_summaries_survive_parquet(tmp_path: Path) -> None:
    book = a_book()
    [hour] = read(book, chunk(book, labels(POWER), every(15, [100.0] * 30)))
    hour.rows.write_parquet(tmp_path / "rows.parquet")
    assert pl.read_parquet(tmp_path / "rows.parquet").equals(hour.rows)


def test_times_may_be_dates_or_milliseconds(tmp_path: Path) -> None:
    table = a_table().with_columns(time_s=(pl.col("time_s") * 1000).cast(pl.Int64))
    table.write_parquet(tmp_path / "ms.parquet")
    table.with_columns(pl.col("time_s").cast(pl.Datetime("ms"))).write_parquet(tmp_path / "date.parquet")
    for name, layout in (("ms", Layout(unit="ms")), ("date", Layout())):
        book = a_book()
        hours = list(summarise(FileSource([tmp_path / f"{name}.parquet"], layout), book, window(3)))
        assert [row(hour, "pcie_replays", "0")["count"] for hour in hours] == [240, 240, 20]


def test_rows_that_are_no_samples_are_counted(tmp_path: Path) -> None:
    rows = [
        f"{START_S},{POWER},100,n1,0",
        f"soon,{POWER},100,n1,0",
        f"{START_S + 15},{POWER},lots,n1,0",
        f"{START_S + 30},{POWER},NaN,n1,0",
    ]
    (tmp_path / "a.csv").write_text("time_s,metric,value,Hostname,gpu\n" + "\n".join(rows) + "\n")
    book = a_book()
    list(summarise(FileSource([tmp_path / "a.csv"]), book, window()))
    found = quality(book)
    assert (found.of(Reason.BAD_ROW, POWER), found.of(Reason.NOT_A_NUMBER, "power"), found.used) == (2, 1, 1)


def answered(*metrics: dict[str, str]) -> str:
    """What Prometheus answers to a query of a range."""
    values = [[START_S + 15 * n, str(200 + n)] for n in range(240)]
    result = [{"metric": metric, "values": values} for metric in metrics]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_a_saved_answer_of_prometheus_is_read_as_the_table_of_its_samples(tmp_path: Path) -> None:
    named = [labels(POWER, Hostname=node, UUID=f"GPU-{node}", job="x") for node in ("n1", "n2")]
    (tmp_path / "range.json").write_text(answered(*named, {"__name__": "other", "Hostname": "n1"}))
    book = a_book()
    hours = list(summarise(FileSource([tmp_path / "range.json"]), book, window(3)))
    assert (quality(book).read, quality(book).used) == (720, 480)
    power = hours[0].rows.filter(pl.col("metric") == "power")
    means = dict(power.select("node", "mean").iter_rows())
    assert means == {"n1": 319.5, "n2": 319.5}


def test_an_export_of_victoria_metrics_is_read_as_the_table_of_its_samples(tmp_path: Path) -> None:
    times = [int(1000 * START_S) + 15_000 * n for n in range(240)]
    lines = [
        {"metric": labels(POWER, Hostname=node), "values": [200 + n for n in range(240)], "timestamps": times}
        for node in ("n1", "n2")
    ]
    (tmp_path / "export.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    book = a_book()
    hours = list(summarise(FileSource([tmp_path / "export.jsonl"]), book, window(3)))
    assert (quality(book).read, quality(book).used) == (480, 480)
    assert hours[0].rows.filter(pl.col("metric") == "power")["mean"].to_list() == [319.5, 319.5]


def test_a_file_of_another_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,metric\n1,2\n")
    (tmp_path / "b.csv").write_text("\ufefftime_s;metric;value;Hostname\r\n1;m;50,5;n1\r\n")
    (tmp_path / "a.parquet").write_text("PAR1 no")
    (tmp_path / "a.prom").write_text('# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP{gpu="0"} 45\n')
    (tmp_path / "bare.prom").write_text('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 45\n')
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7\n\0\1\2\3")
    (tmp_path / "wide.csv").write_text('"Time","n1:9400"\n"2026-11-24 06:00:00","51"\n')
    (tmp_path / "a.lp").write_text("gpu,host=n1,index=0 temperature=51i,power=300.5 1795500000000000000\n")
    (tmp_path / "vector.json").write_text(
        '{"status":"success","data":{"resultType":"vector","result":[{"metric":{}}]}}'
    )
    (tmp_path / "sum.json").write_text(answered({"instance": "n1"}))
    (tmp_path / "error.json").write_text('{"status":"error","errorType":"bad_data","error":"too many points"}')
    (tmp_path / "timed.prom").write_text('# TYPE a gauge\na{instance="n1"} 51 1795500000\n# EOF\n')
    (tmp_path / "dmon.txt").write_text("#Entity   GPUTL  TMPTR\nID\nGPU 0     99     51\n")
    (tmp_path / "other.json").write_text('{"panels": []}')
    for name, words in {
        "a.csv": "has no column",
        "b.csv": "has ';' between its columns",
        "a.parquet": "cannot be read",
        "absent.parquet": "No such file",
        "a.prom": "a scrape of /metrics",
        "bare.prom": "a scrape of /metrics",
        "a.pdf": "a PDF",
        "wide.csv": "has no column metric, time_s, value, but Time, n1:9400",
        "a.lp": "InfluxDB's line protocol",
        "vector.json": "for one moment",
        "sum.json": "no series with the name of a metric",
        "error.json": "Prometheus reports 'too many points'",
        "other.json": "is other JSON",
        "timed.prom": "text of OpenMetrics with times",
        "dmon.txt": "a table that `dcgmi dmon` prints",
    }.items():
        with pytest.raises((UnusableFile, SourceError), match=f"{re.escape(name)}.*{words}"):
            list(FileSource([tmp_path / name]).chunks(a_book(), window()))


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, lambda data: b"\xef\xbb\xbf" + data])
def test_a_packed_table_is_unpacked(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    a_table().write_csv(tmp_path / "week.csv")
    (tmp_path / "packed").write_bytes(pack((tmp_path / "week.csv").read_bytes()))
    book = a_book()
    list(summarise(FileSource([tmp_path / "packed"]), book, window(3)))
    assert (quality(book).read, quality(book).dropped) == (1000, 0)


def test_labels_that_name_nothing_tell_series_apart_in_one_number(tmp_path: Path) -> None:
    """Two exporters of one GPU are two series, whose samples do not mix."""
    table = a_table().with_columns(pl.lit(None).alias(f"label_{number}") for number in range(50))
    table.with_columns(job=pl.lit("one")).write_csv(tmp_path / "one.csv")
    table.with_columns(job=pl.lit("two")).write_csv(tmp_path / "two.csv")
    book = a_book()
    list(summarise(FileSource([tmp_path / "one.csv", tmp_path / "two.csv"]), book, window(3)))
    assert len(book.series) == 4
    assert len(book.slots) == 2
    assert {len(series.labels) for series in book.series} == {4}  # name, node, GPU, the others


# ---- inventory -----------------------------------------------------------------------------------------------------

TOML = """# rack 7
[[switch]]
name = "spine"
[[switch]]
name = "leaf"
above = "spine"
[[node]]
name = "n1"
address = "192.0.2.7"
[[gpu]]
node = "n1"
index = 0
uuid = "GPU-a"
[[gpu]]
node = "n1"
index = 1
[[nvlink]]
node = "n1"
a = 0
b = 1
links = 18
[[nic]]
node = "n1"
name = "mlx5_0"
switch = "leaf"
"""
CSV = """kind,name,node,index,uuid,a,b,links,switch,above,address
switch,spine,,,,,,,,,
switch,leaf,,,,,,,,spine,
node,n1,,,,,,,,,192.0.2.7
gpu,,n1,0,GPU-a,,,,,,
gpu,,n1,1,,,,,,,
nvlink,,n1,,,0,1,18,,,
nic,mlx5_0,n1,,,,,,leaf,,
"""


def an_inventory(folder: Path, text: str, suffix: str = "toml") -> Inventory:
    (folder / f"fleet.{suffix}").write_text(text)
    return load(folder / f"fleet.{suffix}")


def test_an_inventory_is_the_same_from_toml_and_csv(tmp_path: Path) -> None:
    found = an_inventory(tmp_path, TOML)
    assert found == an_inventory(tmp_path, CSV, "csv")
    assert (found.nvlinks, found.nics) == ((NvLink("n1", 0, 1, 18),), (Nic("n1", "mlx5_0", "leaf"),))
    assert (found.names, found.addresses()) == (("n1",), {"192.0.2.7": "n1"})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("index = 1", "index = -1", "fleet.toml:14: gpu: .*>= 0"),
        ("index = 1", "index = 0", "fleet.toml:14: gpu n1 0 is in line 10 already"),
        ("index = 1", 'index = 1\nuuid = "GPU-a"', "fleet.toml:14: uuid GPU-a is in line 10"),
        ("b = 1", "b = 2", "fleet.toml:17: gpu n1 2 is not in the file"),
        ("b = 1", "b = 0", "fleet.toml:17: a link from GPU 0 of n1 to itself"),
        ('switch = "leaf"', 'switch = "loaf"', "fleet.toml:22: switch loaf is not in the file"),
        ('above = "spine"', 'under = "spine"', "fleet.toml:4: switch: .*under"),
        ("[[nic]]", "[[nick]]", "fleet.toml:22: unknown kind 'nick'"),
        ("links = 18", "links = ", "fleet.toml: .*line 21"),
    ],
)
def test_an_impossible_inventory_names_its_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(InventoryError, match=says):
        an_inventory(tmp_path, TOML.replace(old, new))


def test_an_impossible_csv_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"fleet\.csv:5: gpu: "):
        an_inventory(tmp_path, CSV.replace("gpu,,n1,0,GPU-a", "gpu,,n1,first,GPU-a"), "csv")
    with pytest.raises(InventoryError, match=r"fleet\.csv:1: the column kind is missing"):
        an_inventory(tmp_path, CSV.replace("kind,", "what,"), "csv")


def test_an_inventory_joins_what_exporters_call_by_index_and_by_uuid(tmp_path: Path) -> None:
    book = SeriesBook(Tally(), devices=an_inventory(tmp_path, TOML).devices())
    by_uuid = chunk(book, labels(POWER), every(15, [100.0] * 5))
    by_index = chunk(book, {"__name__": POWER, "hostname": "n1", "gpu": "0"}, every(15, [100.0] * 5, 100))
    [hour] = read(book, by_uuid, by_index)
    assert row(hour, "power")["count"] == 10
    assert hour.rows.height == 1
