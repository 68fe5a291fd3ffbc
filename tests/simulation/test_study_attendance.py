"""The benchmark of attendance has its keys, measures what the accountant states, and plays weeks that were missed."""

import numpy as np
import pytest

from federation.protocol.noise import SystemSampler
from simulation.cloud.scenario import load
from simulation.studies import attendance, learning
from simulation.studies.learning import live, small
from tests.support.factories import InsecureSilence

WANTED = {1.0: 1.15, 0.9: 1.35, 0.75: 1.7, 0.5: 2.2, 0.25: 2.7}


def test_what_is_measured_is_what_is_stated() -> None:
    for row in attendance.rows(SystemSampler(), quick=False):
        assert row.variance_over_ideal == pytest.approx(row.variance_over_ideal_stated, rel=0.07)  # seven deviations
        assert row.variance_over_ideal <= WANTED[row.attendance]
        assert row.variance_over_ideal_before == pytest.approx(20 * row.attendance)


def test_a_window_that_was_missed_is_counted_in_the_next_answer_and_never_twice() -> None:
    year = live(small(load("standard")), 0)
    failures = attendance.failures_of(year)
    answers = np.ones((len(year.plans), 200), np.bool_)
    everybody = attendance.releases(year, failures, answers, InsecureSilence())
    answers[1, ::3] = False
    some = attendance.releases(year, failures, answers, InsecureSilence())
    exact = learning.releases(year, 1.0, InsecureSilence())
    for one, other in zip(everybody, exact, strict=True):
        for mine, theirs in zip(one.tables, other.tables, strict=True):
            np.testing.assert_allclose(mine.events, theirs.events, atol=1e-6)
            np.testing.assert_allclose(mine.exposure_node_hours, theirs.exposure_node_hours)
    assert [made.contributors for made in some] == [200, 133, 200]
    assert some[1].tables[0].events.sum() < everybody[1].tables[0].events.sum()
    for number in range(len(some[0].tables)):
        for counted in ("events", "exposure_node_hours"):  # a later plan has more rows, and a finer one for some
            late, timely = (sum(getattr(one.tables[number], counted).sum() for one in of) for of in (some, everybody))
            assert timely * (1 - 1e-9) <= late <= 1.02 * timely


def test_as_many_answer_as_are_said_to() -> None:
    year = live(small(load("standard")), 0)
    assert attendance.present(year, 1.0, 0).all()
    assert 0.55 < attendance.present(year, 0.6, 0).mean() < 0.65
    assert attendance.present(year, 0.25, 0).sum(axis=1).min() >= year.cloud.scenario.cohort_minimum
