"""Placement by hazard: long jobs on healthy nodes, short ones on risky ones, and no free node unused."""

import numpy as np

from provider_server.fleet.analysis.placement import choose


def test_long_jobs_take_the_healthiest_and_short_ones_the_riskiest() -> None:
    rates = np.array([3.0, 1.0, 2.0, 9.0])
    assert choose(rates, 2, is_long=True).tolist() == [1, 2]
    assert choose(rates, 2, is_long=False).tolist() == [3, 0]
    assert len(choose(rates, 9, is_long=False)) == 4
