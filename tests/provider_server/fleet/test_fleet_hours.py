"""Levels of a fleet as runs: what is read back, part by part, is what was recorded, with the same hours at risk."""

import numpy as np
import polars as pl
import pytest

from provider_server.fleet.analysis.buildup import FRESH, SILENT, STATUS, UNKNOWN
from provider_server.fleet.analysis.fleet_events import (
    at_risk_in_parts,
    count_silent_together,
    fit_levels,
    gather,
    hours_at_risk,
    silent_together,
)
from provider_server.fleet.analysis.fleet_hours import BATCH_H, FleetHours, Recorder
from provider_server.fleet.telemetry.samples import HOUR_S
from provider_server.fleet.telemetry.summaries import EVENT_SCHEMA

NODES, HOURS, FIRST = 30, 2 * BATCH_H + 17, 480_000


def recorded(seed: int) -> tuple[list[pl.DataFrame], pl.DataFrame]:
    """Hourly levels that come and go, nodes that come late, an hour without any, a crowd that falls silent; events."""
    rng = np.random.default_rng(seed)
    level, status = np.zeros(NODES, np.int8), np.full(NODES, FRESH, object)
    frames = []
    for place in range(HOURS):
        if place == 100:
            continue
        level = np.where(rng.random(NODES) < 0.05, rng.integers(0, 4, NODES), level).astype(np.int8)
        status = np.where(rng.random(NODES) < 0.03, rng.choice([SILENT, UNKNOWN, FRESH], NODES), FRESH)
        if place == 200:
            status[:10] = SILENT
        here = np.arange(NODES) < NODES - 5 * (place < 50)
        names = [f"n{node:02}" for node in np.flatnonzero(here)]
        columns = {"node": names, "hour": FIRST + place, "level": level[here], "status": status[here].tolist()}
        frames.append(pl.DataFrame(columns).cast({"hour": pl.Int64, "status": STATUS}))
    events = [
        (f"n{rng.integers(NODES):02}", "g0", "xid", (FIRST + rng.integers(HOURS) + 0.5) * HOUR_S, 79.0)
        for _ in range(60)
    ]
    return frames, pl.DataFrame(events, EVENT_SCHEMA, orient="row")


def kept(frames: list[pl.DataFrame]) -> FleetHours:
    recorder = Recorder()
    for frame in frames:
        recorder.add(frame.with_columns(score=pl.lit(0.5)))
    return recorder.hours()


def test_what_is_read_back_is_what_was_recorded() -> None:
    frames, _ = recorded(1)
    hours, every = kept(frames), pl.concat(frames)
    assert hours.levels().equals(every.sort("hour", "node"))
    assert pl.concat(hours.parts(7)).equals(every.sort("node", "hour"))
    assert (hours.start_hour, hours.end_hour, hours.node_hours) == (FIRST, FIRST + HOURS, every.height)
    assert hours.nodes == sorted(set(every["node"]))


@pytest.mark.parametrize("from_hour", [FIRST - 1, FIRST + 99, FIRST + 100, FIRST + BATCH_H, FIRST + HOURS - 1])
def test_a_later_beginning_cuts_runs(from_hour: int) -> None:
    frames, _ = recorded(2)
    since, every = kept(frames).since(from_hour), pl.concat(frames)
    assert since.levels().equals(every.filter(pl.col("hour") >= from_hour).sort("hour", "node"))


@pytest.mark.parametrize("seed", range(3))
def test_hours_at_risk_do_not_depend_on_the_parts(seed: int) -> None:
    frames, events = recorded(seed)
    hours, every = kept(frames), pl.concat(frames)
    expected = hours_at_risk(every, events)
    assert expected["kind"].count() > 20
    assert pl.concat(at_risk_in_parts(hours, events)).equals(expected)
    small = [hours_at_risk(part, events.filter(pl.col("node").is_in(part["node"].unique()))) for part in hours.parts(4)]
    assert not pl.concat(small).equals(expected)  # a part alone cannot tell a crowd
    assert count_silent_together(hours) == silent_together(every).height >= 10


def test_estimates_do_not_depend_on_the_parts() -> None:
    frames, events = recorded(4)
    at_risk = hours_at_risk(pl.concat(frames), events)
    contexts = {node: number % 2 for number, node in enumerate(sorted(set(at_risk["node"])))} | {"never seen": 9}
    whole = gather([at_risk], contexts)
    split = gather(at_risk.partition_by("node", maintain_order=True), contexts)
    assert split.evidence.equals(whole.evidence)
    assert split.kinds.equals(whole.kinds)
    assert split.node_hours == at_risk.height
    one, other = fit_levels(whole.table), fit_levels(split.table)
    assert other.ratios.value == pytest.approx(one.ratios.value)
    assert one.contexts == ("0", "1")  # of the third there is no hour


def test_nothing_recorded_is_an_error_and_no_node_is_an_empty_part() -> None:
    with pytest.raises(ValueError, match="cannot concat"):
        Recorder().hours()
    frames, events = recorded(5)
    none = kept([frames[0].clear()])
    assert [part.height for part in at_risk_in_parts(none, events)] == [0]
    assert gather(at_risk_in_parts(none, events), {}).node_hours == 0
