"""The benchmark of placement: that it runs, and that true rates place better than noise can."""

import pytest
from typer.testing import CliRunner

from simulation.cli import app
from tests.support import schemas


@pytest.mark.nightly
def test_true_rates_spare_long_jobs_at_equal_capacity() -> None:
    result = CliRunner().invoke(
        app, ["bench", "placement", "--quick", "--seeds", "1", "--json"], catch_exceptions=False
    )
    found = schemas.held("pharoah-sim bench placement", result.stdout)
    assert found["by_truth"]["long_jobs"] < -0.2
    assert found["by_truth"]["short_jobs"] > 0.0
    assert found["by_truth"]["over_capacity"] < 0.1
    assert found["by_truth"]["long_jobs"] < found["by_bundle"]["long_jobs"]
