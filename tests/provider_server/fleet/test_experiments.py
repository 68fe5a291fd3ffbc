"""Experiments on idle nodes: stand-ins convict and clear as far as they are faithful; nodes run what tells most."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.mismatch import Mismatches, find_mismatches
from provider_server.fleet.analysis.trials import Trials
from simulation.studies.choosing import Beliefs, choose

SHAPE = (30, 8)
NAMES = (
    Dimension("workload", tuple(f"w{place}" for place in range(SHAPE[0]))),
    Dimension("context", tuple(f"c{place}" for place in range(SHAPE[1]))),
)
PLANTED = [(3, 1), (11, 5), (20, 7)]


def table(events: Floats, exposure: Floats, variance: float = 0.0) -> LifeTable:
    return LifeTable(NAMES, events, exposure, exposure, np.full(SHAPE, variance))


def ratios(of_planted: float) -> Floats:
    ratio = np.ones(SHAPE)
    ratio[tuple(zip(*PLANTED, strict=True))] = of_planted
    return ratio


def unseen() -> LifeTable:
    """What tenants tell when noise hides everything."""
    return table(np.zeros(SHAPE), np.ones(SHAPE), 1e9)


def tried(ratio: Floats, expected: float, seed: int = 0) -> LifeTable:
    exposure = np.full(SHAPE, expected)
    return table(np.random.default_rng(seed).poisson(exposure * ratio).astype(np.float64), exposure)


def by_pair(found: Mismatches) -> Floats:
    said = np.zeros(SHAPE)
    said[found.workload, found.context] = found.probability_worse
    return said


def test_stand_ins_find_what_nobody_sees() -> None:
    said = by_pair(find_mismatches(unseen(), trials=tried(ratios(8.0), 3.0)))
    planted = np.array([said[pair] for pair in PLANTED])
    assert (planted > 0.96).all()
    assert (said > 0.96).sum() == len(PLANTED)


def test_useless_stand_ins_convict_nobody_and_clear_nobody() -> None:
    """They are run five times as long as would have been needed, and none fails for a mismatch."""
    told = table(np.random.default_rng(1).poisson(6.0 * ratios(8.0)).astype(np.float64), np.full(SHAPE, 6.0), 4.0)
    alone, both = (by_pair(find_mismatches(told, trials=trials)) for trials in (None, tried(ratios(1.0), 15.0)))
    for pair in PLANTED:
        assert alone[pair] > 0.96
        assert both[pair] > 0.9
    others = ratios(2.0) == 1.0
    assert (both[others] < 0.5).all()


def test_how_faithful_stand_ins_are_is_learnt_from_what_others_say() -> None:
    worse = np.log(np.where(np.arange(320) == 250, 1.0, 1e-9))  # others are sure of one ratio
    fine = np.log(np.where(np.arange(320) == 127, 1.0, 1e-9))
    prior = np.stack([worse] * 5 + [fine] * 50)
    exposure = np.full(55, 4.0)

    def learnt(of_worse: float) -> float:
        trials = Trials(np.where(np.arange(55) < 5, of_worse, 4.0), exposure)
        return trials.given(np.ones(55), np.ones(55), lambda rows: prior[rows]).faithful

    assert learnt(90.0) > 0.8
    assert learnt(4.0) < 0.8
    assert learnt(4.0) < learnt(90.0) - 0.05


# ---- which to run next -----------------------------------------------------------------------------------------------


def beliefs(*probabilities: float, rate: float = 0.01) -> Beliefs:
    """Pairs that are eight times as bad with these probabilities, and else as expected."""
    mass = np.zeros((len(probabilities), 40))
    ratio = beliefs_ratio()
    fine, bad = int(np.argmin(np.abs(ratio - 1.0))), int(np.argmin(np.abs(ratio - 8.0)))
    mass[:, bad] = probabilities
    mass[:, fine] = 1.0 - mass[:, bad]
    return Beliefs(mass, np.full(len(probabilities), rate))


def beliefs_ratio() -> Floats:
    return Beliefs(np.eye(40), np.ones(40)).mean_ratio


def test_information_is_that_of_simulated_runs() -> None:
    rng, known, hours = np.random.default_rng(0), beliefs(0.3), 60.0
    bad = rng.random(200_000) < 0.3
    ratio = beliefs_ratio()
    faithful = rng.random(len(bad)) < 0.8
    worse = float(ratio[np.argmin(np.abs(ratio - 8.0))])
    fine = float(ratio[np.argmin(np.abs(ratio - 1.0))])
    counts = np.minimum(rng.poisson(0.01 * hours * np.where(faithful, np.where(bad, worse, fine), 1.0)), 6)
    joint = np.array([np.bincount(counts[bad == state], minlength=7) for state in (True, False)]) / len(bad)
    outer = joint.sum(axis=0) * joint.sum(axis=1, keepdims=True)
    simulated = float(np.sum(joint * np.log(np.maximum(joint, 1e-12) / outer)))
    assert known.information(np.array([hours]))[0] == pytest.approx(simulated, rel=0.05)


def test_a_suspect_is_tried_before_what_is_new_and_what_is_known() -> None:
    known = beliefs(0.03, 0.4, 0.999)
    assert choose(known, [np.arange(3)], np.ones(1), 24.0).tolist() == [1]


def test_a_node_runs_only_what_is_allowed_there_and_the_worn_choose_first() -> None:
    known = beliefs(0.4, 0.03, 0.03)
    allowed = [np.array([0, 1]), np.array([2]), np.array([], np.intp), np.array([0, 1])]
    chosen = choose(known, allowed, np.array([1.0, 1.0, 1.0, 5.0]), 2000.0)
    assert chosen.tolist() == [1, 2, -1, 0]


def test_choosing_one_by_one_is_nearly_as_good_as_trying_all_ways() -> None:
    rng = np.random.default_rng(5)
    for _ in range(10):
        known, hours = beliefs(*rng.uniform(0.02, 0.6, 4)), 48.0

        def worth(way: Sequence[int], known: Beliefs = known, hours: float = hours) -> float:
            return float(known.information(np.bincount(way, minlength=4).astype(np.float64) * hours).sum())

        ways = [worth(way) for way in product(range(4), repeat=3)]
        ours = worth(choose(known, [np.arange(4)] * 3, np.ones(3), hours).tolist())
        assert ours >= 0.95 * max(ways)


def test_a_failure_raises_a_suspicion_and_quiet_hours_lower_it() -> None:
    known = beliefs(0.1, 0.1)
    after = known.after(np.array([1.0, 0.0]), np.array([2.0, 240.0]))
    assert after.probability_worse[0] > 0.3
    assert after.probability_worse[1] < 0.05
