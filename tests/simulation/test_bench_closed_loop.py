"""The benchmark of the closed loop has its keys; jobs that go are no longer counted where they were, nor fail there."""

import numpy as np
import pytest
from typer.testing import CliRunner

from simulation.cli import app
from simulation.cloud.cloud import build_cloud, moved
from simulation.cloud.scenario import load
from tests.support import schemas


def test_jobs_that_move_from_mismatches_fail_as_others_do_and_those_that_stay_as_before() -> None:
    home = build_cloud(load("quickstart"), np.random.default_rng(3))
    leases, planted = home.leases, home.hazard.mismatch > 1
    bad = planted[leases.workload, leases.context]
    good = np.argmin(planted[leases.workload], axis=1)
    cloud = moved(home, np.where(bad, good, leases.context), np.random.default_rng(4))
    before, after = (
        np.bincount(one.failures.lease[one.leases.fault[one.failures.lease] == 0], minlength=len(bad))
        for one in (home, cloud)
    )
    assert np.array_equal(before[~bad], after[~bad])
    assert after[bad].sum() < 0.3 * before[bad].sum()  # they were eight times as many
    assert np.all(np.diff(cloud.failures.at_h) >= 0)
    assert np.array_equal(cloud.leases.end_h, leases.end_h)


@pytest.mark.nightly
def test_a_small_run_has_a_row_for_each_way_to_heed() -> None:
    words = ["bench", "closed-loop", "--quick", "--only", "nobody", "--only", "all_forget", "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    nobody, everybody = schemas.held("pharoah-sim bench closed-loop", done.stdout)["rows"]
    assert (nobody["way"], nobody["moved"]) == ("nobody", 0.0)
    assert everybody["moved"] > 0.0
    assert nobody["planted"] == everybody["planted"] == 36
