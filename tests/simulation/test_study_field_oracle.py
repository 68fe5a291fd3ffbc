"""The oracle of the study `field` knows the law of what is released, and ranks by it."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from simulation.studies import field_oracle as oracle, learning
from simulation.studies.attendance import InsecureRepeatable
from simulation.studies.field_cells import EVERY

SCALE, SHARES = 1.25, 2


def test_a_released_sum_has_the_law_of_units_that_count_once_and_of_laplace_noise() -> None:
    failures = np.array([0.01, 0.05, 0.3, 2.0])
    success, whole = np.exp(-1.0 / SCALE), np.arange(-200, 201)
    laplace = (1.0 - success) / (1.0 + success) * success ** np.abs(whole)
    expected = np.convolve(laplace, laplace)
    for count in -np.expm1(-failures):
        expected = np.convolve(expected, [1.0 - count, count])
    noise = ((1.0 - success) / np.abs(1.0 - success * oracle.TURNED)) ** (2 * SHARES)
    law = oracle._law(failures, noise)
    np.testing.assert_allclose(law[np.arange(-30, 31)], expected[400 - 30 : 400 + 31], rtol=1e-6)


@pytest.mark.nightly
def test_an_oracle_tells_planted_pairs_from_others() -> None:
    year = learning.live(EVERY["visible_0"]().played(quick=True), 1)
    made = learning.releases(year, 4.0, InsecureRepeatable(bytes(16)))
    rows = {row for row in made[0].table("pairs").levels("workload") if row.startswith("workload ")}
    contexts = made[0].table("pairs").levels("context")
    pairs = [(int(row.split()[1]), int(context.split()[1])) for row in sorted(rows) for context in contexts]
    planted = np.array([one in year.cloud.mismatched for one in pairs])
    assert average_precision_score(planted, oracle.log_likelihood_ratios(year, made, pairs)) > 3 * planted.mean()
