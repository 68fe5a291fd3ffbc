"""What `bench slow` plants is found without noise, and not by chance."""

import numpy as np

from simulation.bench.slow import CONTEXTS, _judged, _tenant


def test_slow_contexts_stand_out_in_exact_counts_and_nothing_does_where_none_is_slow() -> None:
    rng = np.random.default_rng(0)
    slower = np.arange(CONTEXTS) < 2
    counts = sum(_tenant(number, slower, (52,), rng)[0] for number in range(10))
    assert _judged(counts, 0.0, slower) == (1.0, 1.0, 0.0)
    assert counts[:2, 0].sum() / counts[:2].sum() > 0.5 > 0.2 > counts[2:, 0].sum() / counts[2:].sum()
