"""What the study of first weeks rests on, and that public experience accuses nobody in a cloud of known truth."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import nbinom

from federation.protocol.known_rates import Experience, known_rates
from provider_server.fleet.analysis.capped_hazard import fit_capped
from provider_server.fleet.analysis.public_rates import experience_of, log_law
from provider_server.fleet.learning.findings import learn
from simulation.studies.field_cells import CELLS
from simulation.studies.first_weeks import FLAT, Public, others_say
from simulation.studies.learning import Judged, Year, judge, live, releases, true_rates
from tests.support.plans import InsecureSeeded

FAR = (np.log(1e-4), 5.0)


def test_a_log_score_is_that_of_each_week_after_those_before() -> None:
    known, weekly, hours = Experience(2.0, 1e4), np.array([[3.0], [0.0], [5.0]]), 2e3
    expected, now = 0.0, known
    for count in (3.0, 0.0, 5.0):
        law = nbinom(now.failures, now.node_hours / (now.node_hours + hours))
        left_out = count * np.log(hours) - sum(np.log(np.arange(1, count + 1)))  # the terms that all ways share
        expected += law.logpmf(count) - left_out
        now = now.after(count, hours)
    assert Public(known).log_score(weekly, hours) == pytest.approx(expected)


def test_whoever_expects_the_right_rate_foretells_better_than_who_expects_nothing_and_than_who_is_sure_of_another() -> (
    None
):
    weekly = np.random.default_rng(1).poisson(3.0, (13, 50)).astype(np.float64)
    right, wrong = Experience(3.0, 1e4), Experience(3000.0, 1e8)
    scores = [way.log_score(weekly, 1e4) for way in (Public(right), FLAT, Public(wrong))]
    assert scores == sorted(scores, reverse=True)
    assert Public(wrong).coverage(3e-4, weekly, 1e4) < 0.2 < 0.9 < Public(right).coverage(3e-4, weekly, 1e4)


def test_a_fleet_is_foretold_without_any_row_of_its_own() -> None:
    for row in known_rates():
        known, fleets = others_say(row)
        others = [one for one in known_rates() if one.cause == row.cause and one.fleet != row.fleet]
        assert known == experience_of(others)
        assert (
            fleets == len({one.fleet for one in others}) < len([one for one in known_rates() if one.cause == row.cause])
        )


@pytest.fixture(params=[4, 13])
def years(request: pytest.FixtureRequest) -> list[Year]:
    """Clouds after the only round of so many weeks."""
    played = replace(CELLS["regional_visible_0"](), weeks=request.param).played(quick=False)
    scenario = msgspec.structs.replace(played, weeks=request.param, windows=(request.param,))
    return [live(scenario, seed) for seed in range(3)]


@pytest.mark.nightly
def test_pairs_are_ranked_no_worse_and_nobody_is_accused_by_public_experience(
    years: list[Year], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RSC-1 is left out, whose rate the cloud has."""
    fit: Callable[..., Any] = fit_capped
    rows = [row for row in known_rates() if row.cause == "infrastructure" and row.fleet != "RSC-1"]

    def judged(foretold: tuple[float, float]) -> list[Judged]:
        monkeypatch.setattr(f"{learn.__module__}.fit_capped", lambda *a, **k: fit(*a, **{**k, "foretold": foretold}))
        return [
            judge(year, true_rates(year), learn(releases(year, 1.0, InsecureSeeded(seed)), year.leases))
            for seed, year in enumerate(years)
        ]

    public, before = judged(log_law(experience_of(rows))), judged(FAR)
    precision, precision_before = (np.mean([one.average_precision for one in each]) for each in (public, before))
    assert precision > precision_before - 0.01
    assert sum(one.false for one in public) == 0
    assert np.mean([held for one in public for held in one.hazards_covered]) >= 0.95
