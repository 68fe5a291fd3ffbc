"""Slow contexts are named at their false discovery rate, noise and all; and less noise finds more."""

import numpy as np

from provider_server.fleet.analysis.slow_contexts import slow_contexts

CONTEXTS = [f"c{number}" for number in range(20)]


def looked(sigma: float, rng: np.random.Generator, *, slow_one: bool, watched: int = 200) -> list[str]:
    share = np.where((np.arange(20) == 3) & slow_one, 0.6, 0.06)
    slow = rng.binomial(watched, share)
    noise = rng.normal(0, sigma, (2, 20))
    found = slow_contexts(CONTEXTS, slow + noise[0], watched - slow + noise[1], np.full(20, sigma**2))
    return [one.context for one in found if one.is_named]


def test_where_nothing_is_slow_a_tenth_of_the_maps_at_most_name_something() -> None:
    rng = np.random.default_rng(0)
    for sigma in (0.0, 30.0):
        assert sum(bool(looked(sigma, rng, slow_one=False)) for _ in range(200)) <= 34


def test_a_slow_context_is_named_and_comes_first_and_noise_costs_power() -> None:
    rng = np.random.default_rng(1)
    assert looked(0.0, rng, slow_one=True) == ["c3"]
    some, much = (sum("c3" in looked(sigma, rng, slow_one=True) for _ in range(50)) for sigma in (10.0, 80.0))
    assert some == 50 > much + 20


def test_without_any_unit_nothing_is_named() -> None:
    nothing = np.zeros(20)
    assert not any(one.is_named for one in slow_contexts(CONTEXTS, nothing, nothing, nothing + 1.0))
