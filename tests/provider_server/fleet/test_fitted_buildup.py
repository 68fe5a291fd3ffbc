"""Injected faults: what a trace is, and fits that must find what is planted, and nothing where nothing is."""

from collections.abc import Iterator

import numpy as np
import polars as pl
import pytest

from provider_server.fleet.analysis.buildup import UP, BuildUp, Signal
from provider_server.fleet.analysis.fitted_buildup import (
    FALSE_PER_MONTH,
    Group,
    by_job,
    false_per_month,
    fit,
    healthy,
    leads,
    scores,
    telling,
)
from provider_server.fleet.analysis.injected import INJURED, Label, Trace, UnusableTrace, read
from provider_server.fleet.telemetry.summaries import REPORTED, HourSummary

ECC, HEAT = "ecc_corrected", "gpu_temperature"
ROWS = {"node": pl.String, "device": pl.String, "metric": pl.String, "increase": pl.Float64, "mean": pl.Float64}
LABEL = '{"label":{"job":"graph","kind":"net_loss","dose":0.5,"window_s":0.5,"healthy":2,"faulty":2}}'


def traces(faults: float, rng: np.random.Generator, count: int = 24) -> Iterator[Trace]:
    """Counts that grow at the injured node by `faults` an hour, and a temperature that nothing moves."""
    label = Label("graph", "disk_slow", 0.5, 3600.0, 60, 30)
    for _ in range(count):
        grown = np.zeros((90, 2))
        grown[60:, INJURED] = faults * np.arange(1, 31)
        ecc = rng.poisson(0.5 + grown).astype(np.float64)
        yield Trace(label, {ECC: ecc, HEAT: rng.normal(60.0, 1.0, (90, 2))}, np.zeros((90, 2)))


def group(faults: float, seed: int = 0) -> Group:
    (one,) = by_job(traces(faults, np.random.default_rng(seed)))
    return one


# ---- traces ----------------------------------------------------------------------------------------------------------


def row(window: int, node: int, value: float) -> str:
    return f'{{"window":{window},"node":{node},"steps":{window},"values":{{"load":{value}}}}}'


def test_a_trace_ends_where_its_job_did_and_one_without_windows_is_none() -> None:
    lines = [LABEL, LABEL, *(row(window, node, 10 * window + node) for window in range(2) for node in range(2))]
    (found,) = read([*lines, row(2, 0, 0.0)])
    assert found.windows == 2
    assert found.values["load"].tolist() == [[0.0, 1.0], [10.0, 11.0]]


@pytest.mark.parametrize("lines", [["{"], [row(0, 0, 1.0)], [LABEL, '{"windows":1}'], ['{"label":{"job":"graph"}}']])
def test_anything_else_is_no_trace(lines: list[str]) -> None:
    with pytest.raises(UnusableTrace):
        list(read(lines))


def test_kind_and_dose_alone_say_what_is_held_out() -> None:
    labels = [Label(job, "net_flap", 0.5, window_s, 1, 1) for job in ("graph", "decoder") for window_s in (0.5, 3600.0)]
    assert len({label.is_held_out for label in labels}) == 1
    doses = [Label("graph", f"kind {number}", 0.5, 1.0, 1, 1).is_held_out for number in range(400)]
    assert 150 < sum(doses) < 250


# ---- scores and fits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("metric", "half_life", "unit"), [(ECC, 24.0, 4.0), (HEAT, 8.0, 0.5)])
def test_scores_are_those_of_build_up(metric: str, half_life: float, unit: float) -> None:
    """Of a fleet of all peers and one injured node, which do not move the median."""
    one = group(0.2)
    table = [Signal(metric, "increase" if metric == ECC else "mean", half_life, unit, "words", "reason", "source")]
    build_up, found = BuildUp(table=table), scores(one, metric, half_life, unit)
    for hour in range(90):
        values = one.values[metric][hour, :, 0].tolist()
        rows = [
            (f"n{node:02}", "g", metric, *((value, None) if metric == ECC else (None, value)))
            for node, value in enumerate(values)
        ]
        nodes = pl.DataFrame({"node": [line[0] for line in rows], "status": [REPORTED] * len(rows)})
        levels = build_up.add(HourSummary(hour, pl.DataFrame(rows, schema=ROWS, orient="row"), nodes, pl.DataFrame()))
        assert levels[metric].to_numpy() == pytest.approx(found[hour, :, 0], abs=1e-9)


def test_a_fit_finds_what_moves_and_keeps_false_alarms_to_the_budget() -> None:
    early, late = group(0.3), group(0.3, seed=1)
    rows = {one.metric: one for one in fit([early], np.random.default_rng(0), draws=5)}
    assert [one.kind for one in rows[ECC].moved] == ["disk_slow"]
    assert rows[ECC].unit_range[0] <= rows[ECC].unit <= rows[ECC].unit_range[1]
    assert rows[HEAT].moved == ()
    assert telling([*rows.values()]) == {"graph": (ECC,)}
    for row_ in rows.values():
        ours, others = (scores(one, row_.metric, row_.half_life_h, row_.unit) for one in (early, late))
        assert false_per_month(healthy(ours, early), UP[0]) <= FALSE_PER_MONTH / 2.0
        assert false_per_month(healthy(others, late), UP[0]) < 10.0  # five months of a node are few to fit to
    assert leads(scores(late, ECC, rows[ECC].half_life_h, rows[ECC].unit), late, UP[0]).mean() > 10.0


def test_where_nothing_is_injected_nothing_moves() -> None:
    assert all(row_.moved == () for row_ in fit([group(0.0)], np.random.default_rng(0), draws=1))


def test_an_alarm_that_stays_is_counted_every_day() -> None:
    assert false_per_month([np.full(72, 5.0)], UP[0]) == pytest.approx(720 / 72 * 4)
    assert false_per_month([np.zeros(72)], UP[0]) == 0.0
