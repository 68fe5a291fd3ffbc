"""The benchmark of real nodes, small: whoever is killed, nothing is lost, and every release is exact."""

import pytest
from typer.testing import CliRunner

from simulation.cli import app
from tests.support import schemas


@pytest.mark.nightly
def test_nodes_that_are_killed_all_the_time_lose_nothing() -> None:
    options = ["--nodes", "6", "--rounds", "3", "--pace", "20", "--kill-every", "25", "--json"]
    result = CliRunner().invoke(app, ["bench", "nodes", *options], catch_exceptions=False)
    assert result.exit_code == 0
    told = schemas.held("pharoah-sim bench nodes", result.stdout)
    assert told["nodes"] == 6
    assert told["kills"] >= 1
    assert 2 <= told["rounds_completed"] <= told["rounds_due"] == 4
    assert told["inexact_releases"] == told["weeks_lost"] == 0
    assert told["answers_missed"] <= told["answers_wanted"] - 4 * told["rounds_completed"]
    assert 1e7 < told["node_memory_bytes"] < 1e9
    assert 0 < told["back_s_median"] <= told["back_s_most"]
