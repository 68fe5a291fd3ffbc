"""What the fabric's worlds and the ways to find faults in them promise."""

import numpy as np
import pytest

from simulation.cloud.fabric import Demand, FaultKind, Sight, place, watch
from simulation.studies.votes import LEAVES, PAIRS, QUICK, sigma

DEMAND = Demand(20.0, sizes=(2, 4, 8), size_shares=(0.5, 0.3, 0.2))


def test_no_node_has_two_jobs_at_once_and_a_job_is_on_few_units() -> None:
    jobs = list(place(QUICK, DEMAND, 4, np.random.default_rng(0)))
    ends = np.zeros(QUICK.nodes)
    for job in jobs:
        assert (ends[job.nodes] <= job.start_h).all()
        ends[job.nodes] = job.end_h
    alone = [job for job in jobs if len(job.nodes) <= 2]
    assert np.mean([len(set((job.nodes // QUICK.nodes_per_unit).tolist())) for job in alone]) < 1.5


def test_a_job_week_votes_once_at_most_and_faults_cause_votes_where_they_are() -> None:
    rng = np.random.default_rng(1)
    jobs = list(place(QUICK, DEMAND, 13, rng))
    seen = watch(QUICK, jobs, Sight(idle_votes=0.0, careless_votes=0.0, pair_right=1.0), [FaultKind.PORT], 13, rng)
    job_weeks = [(vote.job, vote.week) for vote in seen.votes]
    assert len(job_weeks) == len(set(job_weeks)) > 0
    assert all(seen.faults[0].node in vote.pair for vote in seen.votes)
    assert not watch(QUICK, jobs, Sight(idle_votes=0.0, careless_votes=0.0), [], 13, rng).votes


def test_half_votes_have_as_much_noise_as_whole_ones_and_windows_add_theirs() -> None:
    """Eight whole noises of b = 5 in a year: two of each window, as half of the tenants would be enough."""
    assert sigma(0.2, LEAVES, 52) == pytest.approx(sigma(0.2, PAIRS, 52), rel=0.01)
    assert sigma(0.2, PAIRS, 52) == pytest.approx(2 * sigma(0.2, PAIRS, 13))
    assert sigma(0.2, PAIRS, 52) == pytest.approx(np.sqrt(8 * 2 * 5**2), rel=0.01)
