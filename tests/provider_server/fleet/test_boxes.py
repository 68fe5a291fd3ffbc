"""The search for boxes: against every conjunction by hand, and planted predicates of the shipped table under noise."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import poisson

from provider_server.fleet.analysis.boxes import PHI, best_box
from provider_server.fleet.analysis.conditions import Records
from provider_server.fleet.analysis.rules import find_rules
from tests.support.changing import replace
from tests.support.planted_rules import NOISE_SD, WEEKS, cloud

NCCL = ["2.17.1", "2.18.3", "2.20.5", "2.21.5"]


def small(seed: int, noise_sd: float = 0.0) -> Records:
    """200 records in 8 strata of different rates; NCCL from 2.18 to before 2.21 fails five times as often on RoCE."""
    rng = np.random.default_rng(seed)
    stratum, nccl, fabric = rng.integers(0, 8, 200), rng.choice(NCCL, 200), rng.choice(["ndr", "roce"], 200)
    bad = np.isin(nccl, NCCL[1:3]) & (fabric == "roce")
    exposure = rng.gamma(2.0, 2.0, 200)
    mean = exposure * rng.lognormal(0.0, 0.6, 8)[stratum] * np.where(bad, 5.0, 1.0)
    return Records(
        strata=stratum,
        events=rng.poisson(mean) + rng.normal(0.0, noise_sd, 200),
        exposure_node_hours=exposure,
        noise_variance=np.full(200, noise_sd**2),
        versions={"nccl": nccl.tolist()},
        settings={"fabric": fabric.tolist()},
    )


def worth_by_hand(records: Records, inside: np.ndarray) -> float:
    """The largest log likelihood ratio over φ, each stratum at its own rate: that of Poisson counts."""

    def log_likelihood(phi: float) -> float:
        mean = records.exposure_node_hours * np.where(inside, phi, 1.0)
        total, expected = (np.bincount(records.strata, of) for of in (records.events, mean))
        return float(np.sum(poisson.logpmf(records.events, mean * (total / expected)[records.strata])))

    return max(map(log_likelihood, PHI)) - log_likelihood(1.0)


def test_the_best_box_is_the_best_of_all_conjunctions_and_worth_its_likelihood_ratio() -> None:
    records = small(0)
    found = best_box(records, records.exposure_node_hours, 2)
    assert found is not None
    assert " and ".join(map(str, found.conditions)) == "fabric = roce and nccl in [2.18, 2.21)"
    nccl, fabric = np.array(records.versions["nccl"]), np.array(records.settings["fabric"])
    by_version = [np.isin(nccl, NCCL[first:last]) for first, last in combinations(range(5), 2) if last - first < 4]
    by_setting = [fabric == "ndr", fabric == "roce"]
    cost = np.log(2) + np.log(9), np.log(2) + np.log(2)  # one of two names, and one of its conditions
    boxes = [(worth_by_hand(records, one), cost[0]) for one in by_version]
    boxes += [(worth_by_hand(records, one), cost[1]) for one in by_setting]
    boxes += [(worth_by_hand(records, one & two), sum(cost)) for one in by_version for two in by_setting]
    assert found.margin == pytest.approx(max(worth - named for worth, named in boxes))


def test_what_a_box_explains_is_set_aside() -> None:
    records = small(1)
    first = best_box(records, records.exposure_node_hours, 2)
    assert first is not None
    assert first.margin > 20.0
    base = records.exposure_node_hours * np.where(records.inside(first.conditions), first.ratio, 1.0)
    second = best_box(records, base, 2)
    assert second is None or second.margin < 3.0


def test_what_differs_between_strata_alone_is_worth_nothing() -> None:
    records = small(2)
    of_stratum = [f"s{number % 3}" for number in records.strata]
    only = replace(records, versions={}, settings={"hall": of_stratum})
    assert best_box(only, records.exposure_node_hours, 3) is None


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (("2.17.1", "2.18.3"), "nccl >= 2.18"),
        (("2.18.1", "2.18.3"), "nccl >= 2.18.3"),
        (("1.9", "2.18.3"), "nccl >= 2"),
        ((None, "2.18.3"), "nccl >= 2"),
    ],
)
def test_a_bound_is_as_short_as_the_versions_around_it_allow(known: tuple[str | None, str], said: str) -> None:
    nccl = [*known] * 10
    records = Records(
        strata=np.arange(20) // 2,
        events=np.array([1.0, 9.0] * 10),
        exposure_node_hours=np.ones(20),
        noise_variance=np.zeros(20),
        versions={"nccl": nccl},
    )
    found = best_box(records, records.exposure_node_hours, 1)
    assert found is not None
    assert [str(one) for one in found.conditions] == [said]


@pytest.mark.nightly
def test_planted_predicates_of_the_table_come_back_exactly_at_epsilon_1_within_8_weeks() -> None:
    """Other seeds than the benchmark's; eight times as often."""
    exact = 0
    for seed in range(500, 530):
        records, inside = cloud(seed, 8.0, NOISE_SD, WEEKS)
        rules = find_rules(records, np.random.default_rng(seed))
        exact += any(np.array_equal(records.inside(rule.conditions), inside) for rule in rules)
    assert exact >= 22  # the benchmark has 86 of 100: fewer than 22 of 30 come with a chance of 2%


@pytest.mark.nightly
def test_where_no_rule_is_planted_hardly_any_is_found() -> None:
    false = sum(
        bool(find_rules(cloud(seed, 1.0, NOISE_SD, WEEKS)[0], np.random.default_rng(seed))) for seed in range(600, 660)
    )
    assert false <= 7  # 5% of 60, and chance
