"""The benchmark of secure sums runs both sides on the same vectors, has its keys, and fails if a sum is wrong."""

from collections.abc import Callable
from functools import cache
from typing import Any

import click.testing
import numpy as np
import pytest
from typer.testing import CliRunner

from crypto.masking import Words, sum_of_masks
from federation.protocol.noise import Integers
from simulation.bench import aggregation
from simulation.bench.aggregation import ALONE, BESIDE_FLOWER, check, committee_round, measure, secaggplus_round
from simulation.cli import app
from tests.support import schemas

OWN = ["n", "length", "client_cpu_seconds", "trustee_cpu_seconds", "server_seconds", "wall_seconds", "bytes_up"]
FLOWER = ["flower_client_cpu_seconds", "flower_server_seconds", "flower_wall_seconds"]


@cache
def quick() -> click.testing.Result:
    return CliRunner().invoke(app, ["bench", "aggregation", "--quick", "--json"], catch_exceptions=False)


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = schemas.held("pharoah-sim bench aggregation", quick().stdout)["rows"]
    return found


@pytest.mark.nightly
def test_every_row_has_every_key_and_flowers_are_null_where_it_was_not_run() -> None:
    assert quick().exit_code == 0
    assert [list(row) for row in rows()] == 3 * [OWN + FLOWER]
    assert [(row["n"], row["length"]) for row in rows()] == [(20, 1000), (20, 2000), (50, 1000)]
    assert [[row[key] is None for key in FLOWER] for row in rows()] == [3 * [False], 3 * [False], 3 * [True]]


@pytest.mark.nightly
def test_figures_are_of_their_units_and_the_parts_are_within_the_whole() -> None:
    for row in rows():
        assert row["bytes_up"] == 8 * row["length"]
        assert 0 < row["server_seconds"] < row["wall_seconds"]
        assert row["client_cpu_seconds"] > 0
        if row["flower_wall_seconds"] is not None:
            assert 0 < row["flower_server_seconds"] < row["flower_wall_seconds"]


def test_without_json_there_is_a_line_per_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "QUICK_BESIDE_FLOWER", ())
    told = CliRunner().invoke(app, ["bench", "aggregation", "--quick"], catch_exceptions=False).stdout
    assert [line.split(": ")[0] for line in told.splitlines()] == OWN


def test_the_sizes_that_are_measured() -> None:
    assert BESIDE_FLOWER == ((100, 10_000), (100, 100_000), (100, 1_000_000))
    assert ALONE == ((1_000, 100_000), (10_000, 10_000))


def test_a_sum_that_is_off_by_one_in_one_cell_is_no_result() -> None:
    truth = np.arange(5)
    check("nobody", truth.copy(), truth)
    with pytest.raises(ArithmeticError, match="the sum of nobody is wrong in 1 of 5 cells"):
        check("nobody", truth + np.array([0, 0, 1, 0, 0]), truth)


def largest(_: int) -> Integers:
    return np.array([0, 1, 2**20 - 1])


def too_large(_: int) -> Integers:
    return np.array([0, 1, 2**20 + 1])


@pytest.mark.nightly
@pytest.mark.parametrize("side", [committee_round, secaggplus_round])
def test_both_sides_are_checked_against_the_truth(side: Callable[..., object]) -> None:
    side(16, largest, 16 * largest(0))
    with pytest.raises(ArithmeticError, match="is wrong in 1 of 3 cells"):
        side(16, largest, 16 * largest(0) + np.array([0, 0, 1]))


def test_a_count_that_secaggplus_clips_shows_and_the_committee_sums_it() -> None:
    committee_round(16, too_large, 16 * too_large(0))
    with pytest.raises(ArithmeticError, match=r"SecAgg\+ is wrong in 1 of 3 cells"):
        secaggplus_round(16, too_large, 16 * too_large(0))


def test_a_trustee_that_answers_wrongly_stops_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Words:
        return sum_of_masks(*arguments) + np.uint64(1)

    monkeypatch.setattr("simulation.bench.aggregation.sum_of_masks", wrong)
    with pytest.raises(ArithmeticError, match="the committee is wrong in 10 of 10 cells"):
        measure(3, 10, flower=False)
