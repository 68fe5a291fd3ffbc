"""Probabilities that are right lie on the diagonal and are worth acting upon; those that are not are found out."""

import numpy as np
import pytest
from numpy.typing import NDArray

from federation.protocol.life_table import Floats
from simulation.studies.field_decisions import COSTS, decisions, reliability


def pairs(seed: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Probabilities and truths that agree."""
    rng = np.random.default_rng(seed)
    said = np.concatenate([rng.beta(0.3, 10.0, 20_000), rng.beta(8.0, 1.0, 600)])
    return said, rng.random(len(said)) < said


def test_right_probabilities_are_reliable_and_squeezed_ones_are_not() -> None:
    said, worse = pairs(1)
    assert sum(one.pairs for one in reliability(said, worse)) == len(said)

    def surprise(said: Floats) -> float:
        bins = reliability(said, worse)
        off = (abs(one.worse - one.said) / (one.said * (1.0 - one.said) / one.pairs + 1e-9) ** 0.5 for one in bins)
        return float(max(off))

    assert surprise(said) < 4.0
    assert surprise(said**2) > 8.0


def test_who_knows_saves_all_and_right_probabilities_never_cost_more_than_the_best_of_moving_all_and_nothing() -> None:
    said, worse = pairs(2)
    assert [one.net_benefit for one in decisions(worse.astype(float), worse)] == pytest.approx([1.0] * len(COSTS))
    for one in decisions(said, worse):
        assert one.net_benefit >= max(0.0, one.move_all) - 0.01
    assert min(one.net_benefit for one in decisions(1.0 - said, worse)) < -1.0
    assert not list(decisions(said, np.zeros(len(said), np.bool_)))
