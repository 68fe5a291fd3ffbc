"""Outages as they are: three forms of file, overlaps, short and open ones, repairs."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from provider_server.fleet.analysis.probation import shipped
from provider_server.fleet.analysis.recurrent import Spells, rate, spells
from provider_server.fleet.learning import node_offsets
from provider_server.fleet.learning.on_probation import load_model
from provider_server.fleet.outage_files import SCHEMA, UnusableOutages, read_outages
from provider_server.program.cli import app
from tests.support import schemas

TRACE = Path(__file__).resolve().parents[4] / "shared/data/infinitehbd/fault_trace.json.gz"

HEADER = "node,start,end,kind\n"
LANL = (
    ",,,titles,,\n"
    "System,nodes,nodenumz,Prob Started (mm/dd/yy hh:mm),Prob Fixed (mm/dd/yy hh:mm),Down Time,"
    "Facilities,Hardware,Human Error,Network,Undetermined,Software,Same Event\n"
    "2,49,0,6/21/2005 10:54,6/21/2005 11:00,6,,Memory Dimm,,,,,No\n"
    "2,49,0,06/21/05 10:58,06/21/05 12:00,62,,,,,,DST,No\n"
    "20,49,0,6/22/2005 1:00,,,,,,,Unresolvable,,No\n"
)


def written(folder: Path, content: str, name: str = "events.csv") -> Path:
    file = folder / name
    file.write_text(content)
    return file


def rows(*of: tuple[str, float, float | None, str]) -> pl.DataFrame:
    return pl.DataFrame(of, schema=SCHEMA, orient="row")


def told(*words: str | Path) -> Any:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    return schemas.held("pharoah-provider nodes hazard --events", result.stdout)[0]


def a_trace(*of: tuple[str, float, str]) -> str:
    fault = {"Level": "Hardware Failure", "Class": "GPU", "Desc": "lost"}
    events = [{"node_id": n, "event_time": t, "event_type": kind, "fault_type": fault} for n, t, kind in of]
    return json.dumps(events)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_times_are_hours_or_iso_with_and_without_a_zone(tmp_path: Path) -> None:
    text = HEADER + "a,12.5,13,x\nb,1970-01-02T00:00:00Z,1970-01-02T03:00:00+02:00,\nc,1970-01-01 01:30,,y/z\n"
    found = read_outages(written(tmp_path, text)).rows
    assert found.rows() == [("c", 1.5, None, "y/z"), ("a", 12.5, 13.0, "x"), ("b", 24.0, 25.0, "unknown")]


def test_outages_of_the_last_century_are_outages(tmp_path: Path) -> None:
    later = "b,2003-01-01T00:00Z,2003-01-02T00:00Z,x\n" * 3
    found = read_outages(written(tmp_path, f"{HEADER}a,1996-06-01T00:00Z,1996-06-02T00:00Z,x\n{later}"))
    assert (found.rows.height, found.left_out) == (4, ())


def test_large_numbers_are_seconds_or_milliseconds_since_1970_and_what_is_neither_is_no_time(tmp_path: Path) -> None:
    text = HEADER + "h,495000,495001,x\ns,1782000000,1782003600.5,x\nm,1782000000000,,x\nodd,50000000,,x\n"
    read = read_outages(written(tmp_path, text))
    assert sorted(read.rows.rows()) == [
        ("h", 495_000.0, 495_001.0, "x"),
        ("m", 495_000.0, None, "x"),
        ("s", 495_000.0, pytest.approx(495_001.0001, abs=1e-4), "x"),
    ]
    assert "50000000" in read.left_out[0]


def test_los_alamos_as_published(tmp_path: Path) -> None:
    found = read_outages(written(tmp_path, LANL))
    assert found.rows["node"].to_list() == ["2/0", "2/0", "20/0"]
    assert found.rows["kind"].to_list() == ["Hardware/Memory Dimm", "Software/DST", "Undetermined/Unresolvable"]
    hours = (found.rows["end_h"] - found.rows["start_h"]).to_list()
    assert hours[:2] == pytest.approx([0.1, 62 / 60])
    assert hours[2] is None
    assert found.start_h % 24 == 0
    assert found.end_h == found.start_h + 48.0


def test_a_trace_of_starts_and_ends_may_be_gzipped_and_its_clock_begins_at_0(tmp_path: Path) -> None:
    content = a_trace(
        ("a", 2.0, "fault_start"), ("b", 2.5, "fault_end"), ("a", 3.0, "fault_end"), ("a", 4.0, "fault_start")
    )
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(content.encode()))
    found = read_outages(file)
    kind = "Hardware Failure/GPU"
    assert found.rows.rows() == [("b", 0.0, 60.0, kind), ("a", 48.0, 72.0, kind), ("a", 96.0, None, kind)]
    assert (found.start_h, found.end_h) == (0.0, 120.0)


def test_faults_of_one_node_that_overlap_end_in_the_order_they_began(tmp_path: Path) -> None:
    times = (("a", 1.0, "fault_start"), ("a", 2.0, "fault_start"), ("a", 3.0, "fault_end"), ("a", 5.0, "fault_end"))
    found = read_outages(written(tmp_path, a_trace(*times))).rows
    assert found.select("start_h", "end_h").rows() == [(24.0, 72.0), (48.0, 120.0)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEADER + "a,1,2,x\na,soon,2,x\na,never,2,x\n", "row 2: start 'soon' is no time"),
        (HEADER + "a,1,never,x\n", "row 1: end 'never' is no time"),
        (HEADER + "a,1,nan,x\n", "row 1: end 'nan' is no time"),
        (HEADER + ",1,2,x\n", "row 1: no node"),
        (HEADER + "a,,2,x\n", "row 1: no start"),
        (HEADER + "a,3,2,x\n", "row 1: it ends before it starts"),
        (HEADER, "has no outages"),
        ("a,b\n1,2\n", "has no columns node, start, end, kind"),
        ("", "has no columns node, start, end, kind"),
        ('[{"node_id": 3}]', "Expected `str`"),
        ("[", "truncated"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_that_says_where(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(UnusableOutages, match=words):
        read_outages(written(tmp_path, content))


NEW_YEAR_H = 490_896.0  # 2026-01-01, in hours since 1970
ROWS = {
    "semicolons": "node;start;end;kind\na;31.12.2025 14:00;01.01.2026 02:00;gpu\n",
    "tabs": "Node\tStart\tEnd\tKind\na\t2025-12-31 14:00\t2026-01-01 02:00\tgpu\n",
    "bars": "node|start|end|kind\na|2025/12/31 14:00|2026/01/01 02:00|gpu\n",
    "noon": HEADER + "a,12/31/2025 2:00 PM,1/1/2026 2:00 AM,gpu\n",
    "months": HEADER + "a,31/Dec/25 2:00 PM,01/Jan/2026 02:00,gpu\n",
    "objects": '[{"node": "a", "start": "2025-12-31T14:00:00Z", "end": "2026-01-01T02:00:00Z", "kind": "gpu"}]',
    "lines": '{"Node": "a", "Start": 1767189600, "End": 1767232800, "Kind": "gpu"}\n',
}


@pytest.mark.parametrize("form", ROWS)
def test_columns_objects_and_times_in_other_forms_are_the_same_outages(form: str, tmp_path: Path) -> None:
    found = read_outages(written(tmp_path, ROWS[form]))
    assert found.rows.rows() == [("a", NEW_YEAR_H - 10, NEW_YEAR_H + 2, "gpu")]
    assert found.left_out == ()


def test_days_before_months_are_refused_also_where_they_may_be_months(tmp_path: Path) -> None:
    rows = "a,02/01/2026 14:00,02/01/2026 15:00,x\na,03/01/2026 14:00,03/01/2026 15:00,x\na,13/01/2026 14:00,,x\n"
    with pytest.raises(UnusableOutages, match=r"row 3: '13/01/2026 14:00' .* day before the month"):
        read_outages(written(tmp_path, HEADER + rows))


def test_an_outage_of_objects_may_last_and_lack_a_kind(tmp_path: Path) -> None:
    lasting, over = {"node": "a", "start": "1970-01-03T00:00:00Z", "end": None}, {"node": "b", "start": 72, "end": 73}
    text = f"{json.dumps(lasting)}\n{json.dumps(over | {'kind': 'x'})}"
    assert read_outages(written(tmp_path, text)).rows.rows() == [("a", 48.0, None, "unknown"), ("b", 72.0, 73.0, "x")]


def test_rows_that_cannot_be_used_are_told_and_the_others_count(tmp_path: Path) -> None:
    lanl = read_outages(Path(__file__).parent / "outages" / "lanl_no_node.csv")
    assert lanl.rows["node"].to_list() == ["2/0", "2/1"]
    assert lanl.left_out == ("1 row, the first row 2: no node",)
    text = HEADER + "a,1,2,x\nb,9,3,x\na,4,5,x\nc,soon,2,x\n,7,8,x\nd,6,7,x\ne,7,8,x\n"
    found = read_outages(written(tmp_path, text))
    assert found.rows["node"].to_list() == ["a", "a", "d", "e"]
    assert found.left_out == (
        "1 row, the first row 4: start 'soon' is no time",
        "1 row, the first row 5: no node",
        "1 row, the first row 2: it ends before it starts: 'b', from hour 9 to hour 3",
    )


TODAY = "a,2026-01-03T10:00:00Z,2026-01-03T12:00:00Z,x\nb,2026-01-04T10:00:00Z,2026-01-04T12:00:00Z,x\n"


def test_impossible_rows_are_named_by_node_and_time_and_the_others_count(tmp_path: Path) -> None:
    rows = "c,2026-01-19T22:00:00Z,2026-01-18T04:00:00Z,x\nd,1970-01-01T00:00:00Z,,x\n"
    found = read_outages(written(tmp_path, HEADER + TODAY + rows + TODAY))
    assert found.rows["node"].to_list() == ["a", "a", "b", "b"]
    assert found.left_out == (
        "1 row, the first row 3: it ends before it starts: 'c', from 2026-01-19T22:00Z to 2026-01-18T04:00Z",
        "1 row, the first row 4: it starts at another time than the others: 'd', hour 0",
    )
    assert (found.start_h, found.end_h) == (NEW_YEAR_H + 48, NEW_YEAR_H + 96)


def test_they_are_told_beside_json_too(tmp_path: Path) -> None:
    rows = "c,2026-01-19T22:00:00Z,2026-01-18T04:00:00Z,x\n"
    file = written(tmp_path, HEADER + TODAY + rows)
    result = CliRunner().invoke(app, ["hazard", "--events", str(file), "--nodes", "4", "--json"])
    assert "row 3: it ends before it starts: 'c'" in result.stderr
    assert json.loads(result.stdout)[0]["failures"] == 2


def test_an_end_that_stands_for_none_is_none(tmp_path: Path) -> None:
    rows = "c,2026-01-05T10:00:00Z,0001-01-01T00:00:00Z,x\nd,2026-01-05T10:00:00Z,9999-12-31T23:59:59Z,x\n"
    found = read_outages(written(tmp_path, HEADER + TODAY + rows))
    assert found.rows.filter(pl.col("end_h").is_null())["node"].to_list() == ["c", "d"]
    assert found.left_out == ()


def test_times_without_a_zone_beside_others_with_one_are_doubted(tmp_path: Path) -> None:
    mixed = read_outages(written(tmp_path, HEADER + TODAY + "c,2026-01-05 10:00,2026-01-05 12:00,x\n"))
    assert mixed.doubts == ("2 of 6 times have no zone and were read as UTC, the first 2026-01-05 10:00",)
    assert len(mixed.rows) == 3
    assert read_outages(written(tmp_path, HEADER + TODAY)).doubts == ()
    assert read_outages(written(tmp_path, HEADER + TODAY.replace("Z", ""))).doubts == ()


# ---- what monitoring tells -------------------------------------------------------------------------------------------


def alert(node: str, end: str | None, status: object = "firing", **labels: str) -> dict[str, Any]:
    ends = {} if end is None else {"endsAt": end}
    return {
        "status": status,
        "labels": {"alertname": "Down", "node": node, **labels},
        "startsAt": "2026-01-01T06:00:00Z",
        **ends,
    }


ACTIVE = {"state": "active", "silencedBy": []}


@pytest.mark.parametrize(
    "told",
    [
        {
            "version": "4",
            "alerts": [alert("a", "0001-01-01T00:00:00Z"), alert("b", "2026-01-01T08:00:00Z", "resolved")],
        },
        [alert("a", "2026-01-01T06:09:00Z", ACTIVE), alert("b", "2026-01-01T08:00:00Z", {"state": "expired"})],
        [
            {"alerts": [alert("b", None)]},
            {"alerts": [alert("a", None), alert("b", "2026-01-01T08:00:00Z", "resolved")]},
        ],
        {"alerts": [alert("", None, instance="a:9100"), alert("b", "2026-01-01T08:00:00Z", "resolved")]},
    ],
    ids=["webhook", "amtool", "told again", "by instance"],
)
def test_an_alert_that_fires_has_not_ended(told: object, tmp_path: Path) -> None:
    found = read_outages(written(tmp_path, json.dumps(told), "alerts.json"))
    rows = [("a", NEW_YEAR_H + 6, None, "Down"), ("b", NEW_YEAR_H + 6, NEW_YEAR_H + 8, "Down")]
    assert sorted(found.rows.rows()) == rows


def answer(values: dict[str, str], name: str = "up", kind: str = "matrix") -> str:
    start = 3600 * NEW_YEAR_H
    series = [
        {
            "metric": {"__name__": name, "instance": f"{node}:9400"},
            "values": [[start + 600 * at, one] for at, one in enumerate(of)],
        }
        for node, of in values.items()
    ]
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": series}})


def test_an_answer_of_prometheus_is_outages_while_a_target_was_not_up(tmp_path: Path) -> None:
    found = read_outages(written(tmp_path, answer({"a": "111111", "b": "100011", "c": "111100"}), "up.json"))
    sixth = [NEW_YEAR_H + at / 6 for at in range(6)]
    hours = [(node, start, end) for node, start, end, _ in found.rows.rows()]
    assert hours == [
        ("b", pytest.approx(sixth[1]), pytest.approx(sixth[4])),
        ("c", pytest.approx(sixth[4]), None),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            answer({"a": "10"}, name="DCGM_FI_DEV_GPU_UTIL"),
            "answer of Prometheus of DCGM_FI_DEV_GPU_UTIL, which does not say",
        ),
        (answer({"a": "10"}, kind="vector"), "of one moment"),
        ('{"resourceMetrics": []}', r"an export of OpenTelemetry \(OTLP\) with the keys resourceMetrics"),
        ('{"incidents": [{"created_at": "2026"}]}', "a list of incidents with the keys incidents"),
        ('{"what": 1, "ever": 2}', "JSON with the keys what, ever"),
        (
            json.dumps({"alerts": [{"labels": {"alertname": "x"}, "startsAt": "2026-01-01T06:00:00Z"}]}),
            "none of a node",
        ),
        (json.dumps({"alerts": [{"labels": 3}]}), "none of a node: alert 1"),
    ],
)
def test_a_file_of_another_form_is_refused_by_what_it_is(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableOutages, match=words) as refused:
        read_outages(written(tmp_path, text, "x.json"))
    assert "query_range" in (refused.value.hint or "")


# ---- time at risk ----------------------------------------------------------------------------------------------------


def test_an_outage_that_begins_at_midnight_has_time_at_risk_before_it(tmp_path: Path) -> None:
    at_midnight = read_outages(written(tmp_path, HEADER + "a,48,50,x\n"))
    assert (at_midnight.start_h, at_midnight.end_h) == (24.0, 72.0)
    assert read_outages(written(tmp_path, HEADER + "a,49,50,x\n")).start_h == 48.0
    assert read_outages(written(tmp_path, HEADER + "a,0,50,x\n")).start_h == 0.0


def test_overlaps_are_down_once_and_counted_each() -> None:
    found = spells(rows(("a", 10, 20, "x"), ("a", 12, 15, "y"), ("a", 18, 30, "x"), ("a", 50, 50, "x")), ["a"], 0, 100)
    assert found.spells.select("start_h", "stop_h", "failed", "back_h", "before").rows() == [
        (0.0, 10.0, True, None, 0),
        (30.0, 50.0, True, 30.0, 1),
        (50.0, 100.0, False, 50.0, 2),
    ]
    assert found.failures["while_down"].to_list() == [False, True, True, False]
    assert (found.at_risk_h, found.down_h) == (80.0, 20.0)


def test_a_failure_in_the_hours_after_another_counts_and_an_outage_of_minutes_too() -> None:
    found = spells(rows(("a", 10, 10.2, "x"), ("a", 10.5, 10.6, "x"), ("a", 11.0, 12.0, "x")), ["a"], 0, 20)
    assert found.spells["failed"].sum() == 3
    assert found.at_risk_h == pytest.approx(20 - 1.3)


def test_a_repair_is_no_failure_but_ends_the_time_at_risk_and_is_where_the_node_came_back() -> None:
    found = spells(rows(("a", 10, 15, "Repair/board"), ("a", 40, None, "x")), ["a", "b"], 0, 50)
    assert found.spells.filter(node="a").select("stop_h", "failed", "back_h").rows() == [
        (10, False, None),
        (40, True, 15),
    ]
    assert found.failures.height == 1
    assert found.at_risk_h == 10 + 25 + 50


def test_kinds_choose_failures_by_class_and_the_others_stay_outages() -> None:
    outages = rows(("a", 10, 20, "hardware/GPU"), ("a", 30, 40, "hardware-like"), ("a", 50, 60, "software"))
    found = spells(outages, ["a"], 0, 100, ["hardware"])
    assert found.spells["failed"].to_list() == [True, False, False, False]
    assert found.at_risk_h == 70


def test_an_outage_from_before_the_window_is_down_time_and_one_without_end_lasts_to_the_next() -> None:
    outages = rows(
        ("a", -10, 5, "x"), ("b", 10, None, "x"), ("b", 30, 40, "x"), ("c", 20, None, "x"), ("d", 200, 201, "x")
    )
    found = spells(outages, ["a", "b", "c", "d"], 0, 100)
    assert dict(found.spells.group_by("node").agg((pl.col("stop_h") - pl.col("start_h")).sum()).iter_rows()) == {
        "a": 95.0,
        "b": 70.0,
        "c": 20.0,
        "d": 100.0,
    }
    assert found.failures.select("node", "while_down").rows() == [("b", False), ("b", True), ("c", False)]
    assert found.at_risk_h + found.down_h == 400


def drawn(seed: int, nodes: int = 60) -> tuple[pl.DataFrame, list[str]]:
    """Nodes with outages that overlap, follow each other closely, or never end; half of the nodes have none."""
    rng = np.random.default_rng(seed)
    names = [f"n{number}" for number in range(nodes)]
    found: list[tuple[str, float, float | None, str]] = []
    for name in names[: nodes // 2]:
        for start in np.sort(rng.uniform(-50, 500, rng.integers(1, 8))):
            kind = str(rng.choice(["hardware/GPU", "software", "repair"]))
            found.append((name, float(start), float(start + rng.exponential(30)), kind))
    return rows(*found), names


def by_hand(outages: pl.DataFrame, names: list[str], end_h: float) -> list[tuple[str, float, float, bool]]:
    """The same spells by walking over each node's outages in a loop."""
    found = []
    for name in names:
        at = 0.0
        for _, start, end, kind in outages.filter(node=name).sort("start_h").iter_rows():
            if start >= end_h:
                continue
            if start > at:
                found.append((name, at, start, kind != "repair"))
            at = max(at, end)
        if at < end_h:
            found.append((name, at, end_h, False))
    return sorted(found)


@pytest.mark.parametrize("seed", range(5))
def test_spells_are_those_of_a_loop(seed: int) -> None:
    outages, names = drawn(seed)
    found = spells(outages, names, 0, 400)
    expected = by_hand(outages, names, 400)
    assert sorted(found.spells.select("node", "start_h", "stop_h", "failed").rows()) == expected


def test_intervals_of_rates_allow_for_nodes_that_differ() -> None:
    """Nodes with gamma rates of variance 4: the robust interval holds the mean; one by counts would not."""
    rng, inside, by_counts = np.random.default_rng(8), 0, 0
    for _ in range(200):
        rates = 0.002 * rng.gamma(0.25, 4.0, 300)
        outages = [
            (f"n{node}", float(start), float(start) + 1e-3, "x")
            for node, each in enumerate(rates)
            for start in rng.uniform(0, 1000, rng.poisson(1000 * each))
        ]
        found = spells(rows(*outages), [f"n{node}" for node in range(300)], 0, 1000)
        log, true = math.log(float(rate(found).value[0])), math.log(0.002)
        inside += abs(log - true) <= 1.96 * float(rate(found).log_sd[0])
        by_counts += abs(log - true) <= 1.96 / math.sqrt(found.failures.height)
    assert inside >= 180 > 140 >= by_counts


# ---- the verb --------------------------------------------------------------------------------------------------------


def test_the_verb_counts_every_failure_and_says_what_has_no_time_at_risk(tmp_path: Path) -> None:
    text = HEADER + "a,1,9,hw\na,5,6,hw\na,9.5,10,sw\nb,20,,repair\nc,50,51,hw\n"
    row = told("nodes", "hazard", "--events", written(tmp_path, text), "--nodes", "10", "--end", "100", "--kind", "hw")
    assert (row["nodes"], row["outages"], row["failures"], row["failures_while_down"]) == (10, 5, 3, 1)
    assert (row["not_back"], row["hours_down_median"]) == (1, 1.0)
    assert row["node_hours"] == 1000 - 8 - 0.5 - 80 - 1
    assert row["failures_per_1000_node_hours"] == pytest.approx(2000 / row["node_hours"])
    assert row["failures_by_kind"] == {"hw": 3}
    assert [text.split(" ", 1)[0] for text in row["left_out"]] == ["2", "1"]
    assert "nodes that never had" in told("nodes", "hazard", "--events", tmp_path / "events.csv")["left_out"][-1]


def test_the_verb_loads_nothing_that_only_models_of_telemetry_need(tmp_path: Path) -> None:
    words = ["nodes", "hazard", "--events", str(written(tmp_path, HEADER + "a,1,9,hw\nb,1,9,hw\n"))]
    code = f"import atexit, sys; sys.argv[1:] = {words}; from provider_server.program.cli import app;"
    code += " heavy = {'sklearn', 'scipy.stats', 'scipy.optimize'};"
    code += " atexit.register(lambda: print(heavy & {*sys.modules})); app()"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "{'scipy.optimize'}"


def test_the_verb_tells_a_reader_what_is_wrong(tmp_path: Path) -> None:
    file = written(tmp_path, HEADER + "a,1,9,hw\nb,1,9,hw\n")

    def says(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["nodes", "hazard", "--events", str(file), *words])
        return result.exit_code, result.output

    code, text = says("--kind", "software")
    assert code == 3
    assert "of kind software; the file has hw" in text
    assert says("--nodes", "1")[0] == 2
    assert says("--start", "9", "--end", "9")[0] == 2
    code, text = says()
    assert code == 0
    assert "2 failures of 2 nodes" in text


def test_spells_of_no_outage_at_all_are_the_whole_window() -> None:
    found: Spells = spells(rows(), ["a", "b"], 0, 10)
    assert (found.at_risk_h, found.down_h, found.failures.height) == (20.0, 0.0, 0)


def test_the_verb_tells_what_a_repair_does_and_which_nodes_are_on_probation(tmp_path: Path) -> None:
    outages, names = drawn(3)
    text = HEADER + "".join(f"{n},{a},{'' if b is None else b},{k}\n" for n, a, b, k in outages.iter_rows())
    row = told(
        "hazard", "--events", written(tmp_path, text), "--nodes", str(len(names)), "--start", "0", "--end", "500"
    )
    bands = row["after_repair"]["bands"]
    assert [band["from_hours"] for band in bands] == [0, *(band["to_hours"] for band in bands[:-1])]
    found = spells(outages, names, 0, 500)
    never = found.spells.filter(pl.col("back_h").is_null())
    assert (
        sum(band["failures"] for band in bands) == found.spells.filter("failed").height - never.filter("failed").height
    )
    assert all(band["ratio_low"] < band["ratio"] < band["ratio_high"] for band in bands)
    rates = [node["failures_per_1000_node_hours"] for node in row["on_probation"]]
    assert rates == sorted(rates, reverse=True)
    usual = row["after_repair"]["failures_per_1000_node_hours_never_down"]
    assert all(
        node["failures_per_1000_node_hours"] == pytest.approx(usual * node["ratio_of_repair"] * node["ratio_of_node"])
        for node in row["on_probation"]
    )


def test_the_verb_keeps_what_a_repair_does_if_asked(tmp_path: Path) -> None:
    outages, names = drawn(3)
    text = HEADER + "".join(f"{n},{a},{'' if b is None else b},{k}\n" for n, a, b, k in outages.iter_rows())
    home, file = tmp_path / "home", written(tmp_path, text)
    home.mkdir()
    (home / "provider.toml").touch()
    row = told("nodes", "hazard", "--events", file, "--nodes", str(len(names)), "--home", home)
    assert load_model(home) == shipped()
    again = told("nodes", "hazard", "--events", file, "--nodes", str(len(names)), "--home", home, "--keep")
    assert row == again
    kept, offsets = load_model(home), node_offsets.load(home)
    assert list(kept.ratios) == [band["ratio"] for band in row["after_repair"]["bands"]]
    assert kept.source == "events.csv: 60 nodes"
    assert set(offsets.nodes) == set(outages["node"])
    assert sum(own.failures for own in offsets.nodes.values()) > 0.0
    assert CliRunner().invoke(app, ["nodes", "hazard", "--events", str(file), "--keep"]).exit_code == 2  # where?


def test_a_single_failure_is_enough_for_wide_intervals(tmp_path: Path) -> None:
    row = told("nodes", "hazard", "--events", written(tmp_path, HEADER + "a,10,11,x\n"), "--nodes", "5", "--end", "99")
    assert all(band["ratio_high"] > 4 * band["ratio_low"] for band in row["after_repair"]["bands"])


@pytest.mark.skipif(not TRACE.exists(), reason=f"../shared/data/infinitehbd/{TRACE.name} is missing")
def test_the_published_trace_as_it_is() -> None:
    row = told("nodes", "hazard", "--events", TRACE, "--nodes", "400")
    assert (row["failures"], row["outages"], row["nodes"]) == (584, 584, 400)
    assert row["failures_while_down"] == 2
    assert len(json.loads(gzip.decompress(TRACE.read_bytes()))) == 2 * 584
    assert row["node_hours"] + row["node_hours_down"] == pytest.approx(400 * row["end_hour"])
    hardware = told("nodes", "hazard", "--events", TRACE, "--nodes", "400", "--kind", "Hardware Failure")
    assert hardware["failures"] == 298  # as its authors count them
