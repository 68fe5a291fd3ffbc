"""Hazards from the provider's own events and repairs of nodes, by the verbs, from files of telemetry and Prometheus."""

import json
import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from federation.protocol.service_messages import Action, HintState, Suspicion
from provider_server.fleet.analysis.buildup import BuildUp
from provider_server.fleet.learning import hardware
from provider_server.fleet.learning.hardware import REPAIRS, WARM_UP_H, Repair, load, load_repairs
from provider_server.fleet.telemetry.files import FileSource
from provider_server.fleet.telemetry.inventory import Inventory
from provider_server.fleet.telemetry.samples import Window
from provider_server.program.cli import app
from provider_server.program.operations.poller import STATE
from provider_server.program.verbs.feed import HOURS
from tests.provider_server.fleet.test_live import HEATING, HOT, Scene, feed, scene
from tests.support import calling

__all__ = ["feed", "scene"]  # fixtures

FIRST = 480_000  # hour of the first sample
START = FIRST + WARM_UP_H
END = START + HOURS
STEP_S = 900

# Corrected memory errors in an hour that hold a node at each level, from the warm-up on, and what it costs there.
ERRORS = (0, 1, 4, 24)
BASE, TIMES = 1 / 400, (1.0, 3.0, 6.0, 10.0)
AT_LEVEL = (100, 20, 20, 20)
NODES = sum(AT_LEVEL)
LEVEL_OF = np.repeat(np.arange(4), AT_LEVEL)


call = partial(calling.call, app)
told = partial(calling.told, app, "pharoah-provider")


def write(file: Path, corrected_in_h: np.ndarray, failed: np.ndarray, silent: np.ndarray | None = None) -> Path:
    """Telemetry of nodes by hours (nodes, hours): corrected memory errors, and an Xid 79 half an hour into an hour."""
    nodes, hours = failed.shape
    each = 3600 // STEP_S
    times = FIRST * 3600 + 5 + STEP_S * np.arange(hours * each)
    frames = []
    for node in range(nodes):
        counts = np.cumsum(np.repeat(corrected_in_h[node] / each, each))
        codes = np.where(np.tile(np.arange(each) == each // 2, hours) & np.repeat(failed[node], each), 79.0, 0.0)
        said = np.repeat(np.ones(hours, bool) if silent is None else ~silent[node], each)
        for metric, values in (("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", counts), ("DCGM_FI_DEV_XID_ERRORS", codes)):
            columns = {"time_s": times[said], "metric": metric, "value": values[said]}
            frames.append(pl.DataFrame(columns).with_columns(Hostname=pl.lit(f"n{node:03}"), gpu=pl.lit("0")))
    pl.concat(frames).sort("time_s", maintain_order=True).write_parquet(file)
    return file


def planted(root: Path, *, shuffled: bool = False) -> Path:
    """A home, and nodes that stay at their levels and fail as often as these cost; or as if levels were others'."""
    rng = np.random.default_rng(5)
    rates = BASE * np.array(TIMES)[LEVEL_OF]
    failed = rng.random((NODES, WARM_UP_H + HOURS)) < -np.expm1(-rates)[:, None]
    drifting = np.array(ERRORS, float)[rng.permutation(LEVEL_OF) if shuffled else LEVEL_OF]
    (root / "provider.toml").touch()
    return write(root / "telemetry.parquet", np.repeat(drifting[:, None], WARM_UP_H + HOURS, axis=1), failed)


def hazard(root: Path, file: Path, *more: object) -> Any:
    (row,) = told("nodes", "hazard", "--home", root, "--file", file, "--start", START, "--end", END, *more)
    return row


# ---- hazard ----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_planted_ratios_of_levels_come_back_within_their_intervals(tmp_path: Path) -> None:
    row = hazard(tmp_path, planted(tmp_path))
    assert [one["nodes"] for one in row["levels"]] == list(AT_LEVEL)
    assert sum(one["failures"] for one in row["levels"]) == row["failures"] > 150
    assert row["failures_by_kind"] == {"GPU fell off the bus": row["failures"]}
    assert (row["start_hour"], row["end_hour"], row["nodes"]) == (START, END, NODES)
    for one, times in zip(row["levels"], TIMES, strict=True):
        rate, low, high = (one[f"failures_per_1000_node_hours{end}"] for end in ("", "_low", "_high"))
        assert low < 1000 * one["failures"] / one["node_hours"] < high
        assert abs(np.log(rate / (1000 * BASE * times))) < 1.6 * np.log(high / rate)  # 99.8% for each of four rates
        if one["level"] == 0:
            assert one["ratio"] is None
        else:
            assert 1.0 < one["ratio_low"] < times < one["ratio_high"]
    assert not (tmp_path / hardware.STATE).exists()  # it reads, and keeps nothing


@pytest.mark.nightly
def test_levels_that_say_nothing_about_failures_have_ratios_near_one(tmp_path: Path) -> None:
    row = hazard(tmp_path, planted(tmp_path, shuffled=True))
    for one in row["levels"][1:]:
        assert one["ratio_low"] < 1.0 < one["ratio_high"]
        assert one["ratio_high"] < TIMES[3]
    assert [one["nodes"] for one in row["levels"]] == list(AT_LEVEL)


@pytest.mark.nightly
def test_contexts_have_rates_and_ratios_of_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    worse = np.arange(60) % 2 == 1
    failed = rng.random((60, WARM_UP_H + HOURS)) < np.where(worse, 0.02, 0.004)[:, None]
    file = write(tmp_path / "telemetry.parquet", np.zeros(failed.shape), failed)
    (tmp_path / "provider.toml").touch()
    inventory = tmp_path / "inventory.toml"
    inventory.write_text("".join(f'[[node]]\nname = "n{n:03}"\nmodel = "{"HA"[n % 2 == 0]}"\n' for n in range(60)))
    window = "--file", file, "--inventory", inventory, "--start", START, "--end", END
    (alone,) = told("nodes", "hazard", "--home", tmp_path, *window)
    assert [(one["context"], one["ratio"], one["nodes"]) for one in alone["contexts"]] == [(None, None, 60)]
    told("nodes", "contexts", "--home", tmp_path, *window)
    before = (tmp_path / hardware.STATE).read_bytes()
    (row,) = told("nodes", "hazard", "--home", tmp_path, *window)
    assert (tmp_path / hardware.STATE).read_bytes() == before
    assert [one["nodes"] for one in row["contexts"]] == [30, 30]
    (usual,) = (one for one in row["contexts"] if one["ratio"] is None)
    (other,) = (one for one in row["contexts"] if one["ratio"] is not None)
    truth = 5.0 if "model A" in usual["description"] else 0.2
    assert other["ratio_low"] < truth < other["ratio_high"]
    text = call("nodes", "hazard", "--home", tmp_path, *window)
    assert f"{other['failures']} in {other['node_hours']:,} node-hours of 30 nodes" in text.stdout
    assert "level 1: no hours at risk" in text.stdout


@pytest.mark.nightly
def test_what_does_not_count_is_said(tmp_path: Path) -> None:
    hours = WARM_UP_H + HOURS
    silent, failed = np.zeros((30, hours), bool), np.zeros((30, hours), bool)
    silent[:8, 100:104] = True  # a switch
    silent[9, 120:] = True  # a node
    failed[10, [30, 130]] = True
    (tmp_path / "provider.toml").touch()
    file = write(tmp_path / "telemetry.parquet", np.zeros((30, hours)), failed, silent)
    row = hazard(tmp_path, file)
    assert row["failures_by_kind"] == {"node lost": 1, "GPU fell off the bus": 1}
    quiet, gone, alone = 24, 8 * 4, hours - 120 - 1
    assert row["node_hours"] == 30 * HOURS - quiet - gone - alone
    risk, together = row["left_out"]
    assert risk.startswith(f"{quiet + gone + alone:,} of {30 * HOURS:,} node-hours")
    assert together.startswith("8 silences")
    assert row["quality"]["read"] == row["quality"]["used"] > 0
    assert row["doubts"]["node_hours_silent"] == 8 * 4 + hours - 120
    shown = call("nodes", "hazard", "--home", tmp_path, "--file", file, "--start", START, "--end", END)
    assert f"left out: {together}" in shown.stderr
    assert "samples read" in shown.stderr


@pytest.mark.nightly
@pytest.mark.nightly
def test_files_that_are_said_to_be_in_order_of_time_give_the_same_and_others_say_what_they_lost(tmp_path: Path) -> None:
    (tmp_path / "provider.toml").touch()
    failed = np.random.default_rng(3).random((12, WARM_UP_H + 24)) < 0.02
    file = write(tmp_path / "telemetry.parquet", np.zeros(failed.shape), failed)
    window = "--start", START, "--end", START + 24
    (plain,) = told("nodes", "hazard", "--home", tmp_path, "--file", file, *window)
    (ordered,) = told("nodes", "hazard", "--home", tmp_path, "--file", file, *window, "--sorted")
    assert ordered == plain
    assert "late" not in call("nodes", "hazard", "--home", tmp_path, "--file", file, *window, "--sorted").stderr
    backwards = tmp_path / "backwards.parquet"
    days = [pl.read_parquet(file).filter(pl.col("time_s") // 86_400 == day) for day in range(FIRST // 24, END // 24)]
    parts = [backwards.with_stem(f"part {number}") for number in range(len(days))]
    for part, day in zip(parts, reversed(days), strict=True):
        day.write_parquet(part)
    files = [word for part in parts for word in ("--file", part)]
    result = call("nodes", "hazard", "--home", tmp_path, *files, *window, "--sorted")
    assert "late" in result.stderr


def test_that_only_lost_nodes_can_be_seen_is_told_with_and_without_one(tmp_path: Path) -> None:
    (tmp_path / "provider.toml").touch()
    file, words = tmp_path / "t.csv", "nothing here shows Xid codes, failed row remappings or the health of GPUs"
    verb = ("hazard", "--home", tmp_path, "--file", file, "--start", START, "--end", START + 3)
    for silent in (1, 9):
        rows = [
            f"{START * 3600 + 60 * minute},node_edac_correctable_errors_total,0,mc0,n{node}"
            for minute in range(180)
            for node in range(11)
            if (minute // 60, node) != (silent, 4)
        ]
        file.write_text("\n".join(["time_s,metric,value,controller,instance", *rows]))
        result = call(*verb)
        assert result.exit_code == (0 if silent == 1 else 3), result.stderr
        assert words in result.stderr
        assert ("1 failure in" in result.stdout) == (silent == 1)


def test_without_failures_or_hours_nothing_is_made_up(tmp_path: Path) -> None:
    (tmp_path / "provider.toml").touch()
    still = np.zeros((10, WARM_UP_H + HOURS))
    file = write(tmp_path / "telemetry.parquet", still, still > 0)
    result = call("nodes", "hazard", "--home", tmp_path, "--file", file, "--start", START, "--end", START + 12)
    assert result.exit_code == 3
    assert "no failure in 120 node-hours at risk: at most 31 per 1,000 (95% bound)" in result.stderr
    later = call("nodes", "hazard", "--home", tmp_path, "--file", file, "--start", END + 500, "--end", END + 501)
    assert later.exit_code == 3
    assert "no node-hours at risk" in later.stderr
    assert call("nodes", "hazard", "--home", tmp_path, "--file", file, "--start", 9, "--end", 9).exit_code == 2
    start_s = START * 3600
    hour = ("hazard", "--home", tmp_path, "--file", tmp_path / "t.csv", "--start", START, "--end", START + 1)
    rows = [
        f"{start_s + 60 * minute},DCGM_FI_DEV_XID_ERRORS,{79 * (node == 'n2' and minute > 9)},0,{node}"
        for minute in range(30)
        for node in ("n1", "n2")
    ]
    (tmp_path / "t.csv").write_text("\n".join(["time_s,metric,value,gpu,Hostname", *rows]))
    assert "1 failure: GPU fell off the bus on n2" in call(*hour).stderr
    (tmp_path / "t.csv").write_text(f"time_s,metric,value,gpu,Hostname\n{start_s + 60},my_own_metric,1,0,n1\n")
    assert "no failure could be seen: no metric of this telemetry is known" in call(*hour).stderr
    assert "prometheus_url" in call("nodes", "hazard", "--home", tmp_path).stderr


# ---- repaired --------------------------------------------------------------------------------------------------------

WORN, TWIN, REPAIRED_AT = "n000", "n001", 100


def worn(root: Path) -> Path:
    """A home, and two nodes with many corrected errors until an hour in which one of them gets new memory."""
    root.mkdir(exist_ok=True)
    (root / "provider.toml").touch()
    corrected = np.zeros((30, 140))
    corrected[:2, :REPAIRED_AT] = ERRORS[3]
    return write(root / "telemetry.parquet", corrected, corrected > np.inf)


def contexts(root: Path, file: Path, end: int, start: int = 0) -> dict[str, int]:
    told("nodes", "contexts", "--home", root, "--file", file, "--start", FIRST + start, "--end", FIRST + end)
    return levels(root)


def levels(root: Path) -> dict[str, int]:
    kept = load(root)
    assert kept is not None
    return {node: kept.levels[node] for node in (WORN, TWIN, "n009")}


def at(monkeypatch: pytest.MonkeyPatch, hour: float) -> None:
    monkeypatch.setattr(time, "time", lambda: 3600.0 * (FIRST + hour))


@pytest.mark.nightly
def test_a_repaired_node_begins_at_level_0_and_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, untold, gap = tmp_path / "home", tmp_path / "untold", tmp_path / "gap"
    file = worn(home)
    at(monkeypatch, REPAIRED_AT - 0.5)
    assert contexts(home, file, 90) == {WORN: 3, TWIN: 3, "n009": 0}
    shutil.copytree(home, untold)
    (row,) = told("nodes", "repaired", WORN, WORN, "--home", home)
    back = {"node": WORN, "from_hour": FIRST + REPAIRED_AT, "level_before": 3}
    assert row == {**back, "level": 3, "probation_until_hour": FIRST + REPAIRED_AT + 336}
    assert levels(home) == {WORN: 0, TWIN: 3, "n009": 0}
    shutil.copytree(home, gap)
    # hours before the repair are read after it: the old hardware's, and no evidence against the new
    assert contexts(home, file, 98) == {WORN: 0, TWIN: 3, "n009": 0}
    at(monkeypatch, 130.5)
    assert contexts(untold, file, 130) == {WORN: 3, TWIN: 3, "n009": 0}
    assert contexts(gap, file, 130, 110) == {WORN: 0, TWIN: 3, "n009": 0}
    for end, start in ((110, 98), (125, 0), (130, 90), (126, 3)):
        assert contexts(home, file, end, start) == {WORN: 0, TWIN: 3, "n009": 0}
    assert load_repairs(home) == (Repair(WORN, FIRST + REPAIRED_AT),)


@pytest.mark.nightly
def test_what_is_new_can_wear_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = worn(tmp_path)
    at(monkeypatch, 40.5)
    assert contexts(tmp_path, file, 40)[WORN] == 3
    told("nodes", "repaired", WORN, "--home", tmp_path)
    assert levels(tmp_path)[WORN] == 0
    at(monkeypatch, 90.5)
    assert contexts(tmp_path, file, 90)[WORN] == 3


@pytest.mark.nightly
def test_hours_before_a_repair_count_at_the_level_of_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = worn(tmp_path)
    at(monkeypatch, REPAIRED_AT - 0.5)
    contexts(tmp_path, file, 90)
    told("nodes", "repaired", WORN, "--home", tmp_path)
    kept, repairs = load(tmp_path), load_repairs(tmp_path)
    assert kept is not None
    window = Window(FIRST, FIRST + 140, 3600.0 * (FIRST + 141))
    seen = hardware.follow(FileSource([file]), window, Inventory(), kept.anew(FIRST), repairs)
    of = {
        hour - FIRST: level for hour, level in seen.hours.levels().filter(node=WORN).select("hour", "level").iter_rows()
    }
    assert (of[REPAIRED_AT - 1], of[REPAIRED_AT], of[139]) == (3, 0, 0)
    assert seen.hours.levels().filter(node=TWIN)["level"].to_list()[-1] == 3


@pytest.mark.nightly
def test_an_unknown_name_is_refused_and_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "provider.toml").touch()
    before = call("nodes", "repaired", WORN, "--home", tmp_path)
    assert (before.exit_code, "contexts" in before.stderr) == (3, True)
    file = worn(tmp_path)
    at(monkeypatch, 91.0)
    contexts(tmp_path, file, 90)
    result = call("nodes", "repaired", WORN, "n00l", "--home", tmp_path)
    assert result.exit_code == 2
    assert "n00l" in result.stderr
    assert "spelling" in result.stderr
    assert not (tmp_path / REPAIRS).exists()
    assert levels(tmp_path)[WORN] == 3
    (tmp_path / REPAIRS).write_text("[")
    damaged = call("nodes", "repaired", WORN, "--home", tmp_path)
    assert (damaged.exit_code, REPAIRS in damaged.stderr) == (2, True)


@pytest.mark.nightly
def test_stretches_that_overlap_enter_the_state_once(tmp_path: Path) -> None:
    file = worn(tmp_path)
    contexts(tmp_path, file, 120)
    once = load(tmp_path)
    assert once is not None
    again = contexts(tmp_path, file, 120)
    twice = load(tmp_path)
    assert twice is not None
    assert (twice.until_hour, twice.build_up) == (once.until_hour, once.build_up)
    assert again == {WORN: 3, TWIN: 3, "n009": 0}
    contexts(tmp_path, file, 20)
    older = load(tmp_path)
    assert older is not None
    assert (older.until_hour, older.levels, older.build_up) == (once.until_hour, once.levels, once.build_up)


# ---- the poller of a running provider --------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.xdist_group("prometheus")
def test_who_is_on_a_repaired_node_is_told_of_the_repair_and_not_of_what_was_replaced(scene: Scene) -> None:
    """The new GPU overheats too, and it is too early to tell; but a node that has just come back fails often."""
    kept = load(scene.home)
    assert kept is not None
    scene.step([HEATING[0]])
    assert total(scene) > 0
    hardware.record_repairs(scene.home, [HOT], scene.feed.first_hour + HEATING[0] + 2, kept)
    scene.step([HEATING[0] + 1])
    assert total(scene) == 0  # of the hour in which it was repaired nothing is known
    scene.step(range(HEATING[0] + 2, HEATING[-1] + 1))
    assert total(scene) > 0
    (raised,) = (hint for hint in scene.hints(0) if hint.state is HintState.RAISED)
    assert (raised.suspicion, raised.action) == (Suspicion.UNCLEAR, Action.CHECKPOINT)
    assert raised.at_h <= scene.feed.first_hour + HEATING[0] + 5
    BuildUp.resumed((scene.home / STATE).read_bytes())


def total(scene: Scene) -> float:
    """What the poller's state holds against the hot node."""
    streams = json.loads((scene.home / STATE).read_bytes())["streams"]
    rows: Sequence[tuple[str, str, float]] = list(
        zip(streams["node"], streams["metric"], streams["total"], strict=True)
    )
    return sum(total for node, metric, total in rows if (node, metric) == (HOT, "gpu_temperature"))
