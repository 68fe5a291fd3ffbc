"""Ratios of levels over contexts: nearer the truth where contexts agree, left alone where they do not."""

import numpy as np
import pytest

from provider_server.fleet.hints.level_ratios import NORMAL_95, Ratios, pooled


def seen(true: np.ndarray, rng: np.random.Generator) -> Ratios:
    log_sd = rng.uniform(0.2, 0.6, len(true))
    return Ratios(rng.normal(true, log_sd), log_sd)


@pytest.mark.parametrize("between", [0.0, 0.3, 1.5])
def test_errors_shrink_and_intervals_hold_however_far_contexts_differ(between: float) -> None:
    rng = np.random.default_rng(7)
    before, after, held = [], [], []
    for _ in range(200):
        true = rng.normal(np.log(2.0), between, 20)
        raw = seen(true, rng)
        drawn = pooled(raw)
        before.append(np.mean((raw.log - true) ** 2))
        after.append(np.mean((drawn.log - true) ** 2))
        held.append(np.mean(np.abs(drawn.log - true) <= NORMAL_95 * drawn.log_sd))
    assert np.mean(after) < {0.0: 0.3, 0.3: 0.7, 1.5: 1.0}[between] * np.mean(before)
    assert 0.9 < np.mean(held) <= 1.0


def test_one_context_and_exact_ones_keep_what_they_have() -> None:
    alone = Ratios(np.array([0.7]), np.array([0.4]))
    assert pooled(alone) is alone
    exact = Ratios(np.array([0.0, 1.0, 2.0]), np.full(3, 1e-3))
    assert pooled(exact).log == pytest.approx(exact.log, abs=1e-4)
