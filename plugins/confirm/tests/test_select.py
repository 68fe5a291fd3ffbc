"""Which tests are worth their minutes: the likeliest defect per minute first, small risks cost nothing."""

from itertools import combinations
from random import Random

import pytest

from federation.protocol.service_messages import Suspicion
from pharoah_confirm.select import DEFAULTS, ENOUGH, PROBES, Defect, Probe, select


def names(*args: object, **options: object) -> list[str]:
    return [probe.name for probe in select(*args, **options).probes]  # type: ignore[arg-type]


def test_a_small_risk_is_not_worth_a_minute() -> None:
    assert select(0.009, DEFAULTS).probes == ()
    assert select(0.009, DEFAULTS).after == 0.009
    assert select(0.02, DEFAULTS).probes


def test_without_a_suspicion_the_likeliest_defect_per_minute_comes_first() -> None:
    assert names(0.3, DEFAULTS)[0] == "compute"


def test_some_risk_always_stays() -> None:
    chosen = select(1.0, DEFAULTS)
    assert len(chosen.probes) == len(PROBES)
    assert chosen.after == pytest.approx(0.15)
    assert chosen.minutes == sum(probe.minutes for probe in PROBES)
    assert list(chosen.left) == sorted(chosen.left, reverse=True)


def test_a_test_that_adds_nothing_is_left_out() -> None:
    both = (Defect(Suspicion.MEMORY, frozenset({"long", "short"})),)
    chosen = select(1.0, both, probes=(Probe("long", 9.0), Probe("short", 1.0)))
    assert [probe.name for probe in chosen.probes] == ["short"]
    assert chosen.after == 0


def cheapest(risk: float, defects: list[Defect], probes: list[Probe], enough: float) -> float | None:
    """Minutes of the best choice, by trying them all."""
    found = [
        sum(probe.minutes for probe in chosen)
        for size in range(len(probes) + 1)
        for chosen in combinations(probes, size)
        if risk
        * sum(d.weight for d in defects if not d.found_by & {p.name for p in chosen})
        / sum(d.weight for d in defects)
        < enough
    ]
    return min(found, default=None)


def test_greedy_is_close_to_the_best_choice() -> None:
    random, ratios = Random(1), []
    for _ in range(200):
        probes = [Probe(name, random.uniform(0.5, 5.0)) for name in "abcdef"]
        kinds = list(Suspicion)
        defects = [
            Defect(
                random.choice(kinds), frozenset(random.sample("abcdef", random.randint(0, 3))), random.uniform(0.1, 1)
            )
            for _ in range(12)
        ]
        chosen, best = select(0.5, defects, probes=probes, enough=0.2), cheapest(0.5, defects, probes, 0.2)
        if best is None:
            assert chosen.after >= 0.2
            continue
        assert chosen.after < 0.2
        ratios.append(chosen.minutes / best)
    assert len(ratios) > 100
    assert min(ratios) >= 1 - 1e-9
    assert sum(ratios) / len(ratios) < 1.15
    assert max(ratios) < 2.5


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match="risk"):
        select(1.5, DEFAULTS)
    with pytest.raises(ValueError, match="more than 0 minutes"):
        Probe("free", 0.0)


def test_the_defaults_are_shares_and_name_probes() -> None:
    assert sum(defect.weight for defect in DEFAULTS) == pytest.approx(1.0)
    assert {name for defect in DEFAULTS for name in defect.found_by} == {probe.name for probe in PROBES}
    assert {probe.name for probe in PROBES} == {one.value for one in Suspicion if one is not Suspicion.UNCLEAR}
    assert 0 < ENOUGH < 1
