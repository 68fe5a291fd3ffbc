"""What the provider learns: planted truth comes back, under noise and under the cap, and honest intervals cover it."""

from functools import cache

import numpy as np
import pytest
from scipy.stats import poisson
from sklearn.metrics import average_precision_score, roc_auc_score

from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.cap_correction import cap_factor, capped_mean
from provider_server.fleet.analysis.conditions import OneOf
from provider_server.fleet.analysis.mismatch import Mismatches, find_mismatches
from provider_server.fleet.analysis.rules import Rule
from provider_server.fleet.learning.bundle import compose
from provider_server.fleet.learning.findings import Findings, learn
from simulation.cloud.scenario import load
from simulation.studies.learning import Year, live, releases, small, true_rates
from tests.support.changing import replace
from tests.support.factories import InsecureSilence
from tests.support.plans import InsecureSeeded

WORKLOADS, CONTEXTS, WEEKS, FAILURES = 60, 20, 13, 934


def a_cloud(seed: int, *, planted_share: float = 0.03) -> tuple[LifeTable, Floats]:
    """A pair table with heavy-tailed exposure and 3% of the pairs failing eight times as often; and which ones do."""
    rng = np.random.default_rng(seed)
    exposure = np.outer(rng.pareto(1.5, WORKLOADS) + 0.2, rng.dirichlet(np.full(CONTEXTS, 5.0)))
    exposure *= rng.lognormal(0, 0.5, exposure.shape)
    planted = rng.random(exposure.shape) < planted_share
    means = exposure * np.outer(rng.lognormal(0, 0.3, WORKLOADS), rng.lognormal(0, 0.3, CONTEXTS))
    means *= FAILURES * WEEKS / means.sum()
    table = LifeTable.zeros(
        [
            Dimension("workload", tuple(map(str, range(WORKLOADS)))),
            Dimension("context", tuple(map(str, range(CONTEXTS)))),
        ]
    )
    events = rng.poisson(means * np.where(planted, 8.0, 1.0)).astype(float)
    return replace(table, events=events, exposure_node_hours=1e4 * exposure), planted.astype(float)


def noisy(table: LifeTable, spread: float, seed: int) -> LifeTable:
    rng = np.random.default_rng(seed)
    events = table.events + np.round(rng.normal(0, spread, table.shape))
    return replace(table, events=events, noise_variance=np.full(table.shape, spread**2))


def quality(found: Mismatches, planted: Floats) -> tuple[float, float]:
    truth = planted[found.workload, found.context]
    return (
        float(roc_auc_score(truth, found.probability_worse)),
        float(average_precision_score(truth, found.probability_worse)),
    )


def by_z_score(table: LifeTable, planted: Floats) -> float:
    """Average precision of the obvious ranking: standardised excess over the product of the margins."""
    events, exposure = table.events, table.exposure_node_hours
    expected = np.outer(events.sum(1) / exposure.sum(1), events.sum(0) / exposure.sum(0)) * exposure
    expected = np.maximum(expected * events.sum() / np.maximum(expected.sum(), 1), 0.1)
    score = (events - expected) / np.sqrt(expected + table.noise_variance)
    return float(average_precision_score(planted.ravel(), score.ravel()))


def test_without_noise_the_planted_pairs_are_found() -> None:
    table, planted = a_cloud(1)
    auroc, precision = quality(find_mismatches(table), planted)
    assert auroc > 0.95
    assert precision > 0.85


@pytest.mark.nightly
def test_with_noise_they_are_still_found_and_better_than_by_the_obvious_ranking() -> None:
    ours, obvious = [], []
    for seed in range(4):
        table, planted = a_cloud(seed)
        released = noisy(table, 10.0, seed)
        auroc, precision = quality(find_mismatches(released), planted)
        assert auroc > 0.80
        ours.append(precision)
        obvious.append(by_z_score(released, planted))
    assert np.mean(ours) > 0.55
    assert np.mean(ours) > np.mean(obvious)


@pytest.mark.nightly
def test_where_nothing_is_planted_hardly_anything_is_accused() -> None:
    table, _ = a_cloud(3, planted_share=0.0)
    for released in (table, noisy(table, 10.0, 3)):
        found = find_mismatches(released)
        assert (found.probability_worse > 0.5).mean() < 0.005


@pytest.mark.nightly
def test_an_accusation_is_never_surer_than_it_should_be() -> None:
    """Pairs called worse with some probability are worse at least that often; the model errs towards acquittal."""
    said, true = [], []
    for seed in range(6):
        table, planted = a_cloud(seed)
        found = find_mismatches(noisy(table, 8.0, seed))
        said.append(found.probability_worse)
        true.append(planted[found.workload, found.context])
    probability, worse = np.concatenate(said), np.concatenate(true)
    for low, high in ((0.1, 0.5), (0.5, 0.9), (0.9, 1.01)):
        inside = (probability >= low) & (probability < high)
        chance = probability[inside]
        assert inside.sum() > 10
        assert worse[inside].sum() > chance.sum() - 3 * np.sqrt((chance * (1 - chance)).sum()) - 1


def test_a_pair_without_exposure_gets_no_verdict() -> None:
    table, _ = a_cloud(4)
    exposure = table.exposure_node_hours.copy()
    events = table.events.copy()
    exposure[3, 5] = events[3, 5] = 0.0
    found = find_mismatches(replace(table, events=events, exposure_node_hours=exposure))
    assert (3, 5) not in set(zip(found.workload.tolist(), found.context.tolist(), strict=True))
    assert len(found.expected) == WORKLOADS * CONTEXTS - 1


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_the_capped_mean_is_that_of_capped_poisson_counts(cap: int) -> None:
    means = np.array([0.01, 0.3, 1.0, 4.0, 40.0])
    counts = np.arange(400)
    exact = [(np.minimum(counts, cap) * poisson.pmf(counts, mean)).sum() for mean in means]
    assert np.allclose(capped_mean(means, cap), exact)
    assert np.allclose(cap_factor(means, cap) * means, exact)
    assert cap_factor(np.zeros(1), cap) == 1.0


def test_corrected_exposure_gives_the_rate_that_the_cap_hides() -> None:
    """Units of very different size, at most one failure counted: the rate is count over corrected exposure."""
    rng = np.random.default_rng(5)
    hours, rate = rng.pareto(1.2, 20_000) + 0.1, 0.4
    counted = np.minimum(rng.poisson(rate * hours), 1).sum()
    estimate = counted / hours.sum()
    assert estimate < 0.7 * rate
    for _ in range(30):
        estimate = counted / (hours * cap_factor(estimate * hours, 1)).sum()
    assert estimate == pytest.approx(rate, rel=0.03)


@cache
def a_year() -> Year:
    return live(small(load("standard")), 3)


@pytest.mark.nightly
@pytest.mark.parametrize(("epsilon", "tolerance"), [(None, 0.12), (8.0, 0.25)])
def test_rates_from_under_the_cap_are_the_true_ones_and_their_intervals_say_how_surely(
    epsilon: float | None, tolerance: float
) -> None:
    """One failure of a unit counts; the rates are those of all failures of the very leases that ran."""
    year = a_year()
    made = releases(year, epsilon, InsecureSeeded(20))
    truth, found = true_rates(year), learn(made, year.leases)
    assert {(rate.context_level, rate.band) for rate in found.rates} <= truth.keys()
    miss = np.array([np.log(rate.rate / truth[rate.context_level, rate.band]) for rate in found.rates])
    wide = np.array([np.log(rate.high / rate.low) for rate in found.rates]) / 2
    crude = made[-1].table("hazard").at("domain", "infrastructure")
    counted = np.log(crude.events.sum() / crude.exposure_node_hours.sum())
    average = np.average([rate.rate for rate in found.rates])
    assert abs(np.median(miss)) < tolerance
    assert np.mean(np.abs(miss) <= wide) > 0.9
    assert np.mean(np.abs(miss) <= wide / 3) < 0.9  # a third as wide would not pass
    assert counted < np.log(average) - 0.2  # what is counted over what was exposed is far too low


@pytest.mark.nightly
def test_releases_teach_the_same_whatever_the_order_of_leases() -> None:
    year = a_year()
    made = releases(year, None, InsecureSilence())
    forwards, backwards = (learn(made, leases) for leases in (year.leases, year.leases[::-1]))
    np.testing.assert_allclose([r.rate for r in forwards.rates], [r.rate for r in backwards.rates], rtol=1e-6)
    np.testing.assert_allclose([p.low for p in forwards.pairs], [p.low for p in backwards.pairs], rtol=0.05)


@pytest.mark.nightly
@pytest.mark.parametrize("epsilon", [0.02, 0.1, 0.5])
def test_noise_beyond_what_could_ever_count_gives_finite_findings(epsilon: float) -> None:
    """Noise lifts counts above the number of units: no rate explains them, and none runs away."""
    year = a_year()
    found = learn(releases(year, epsilon, InsecureSeeded(20)), year.leases)
    rates = np.array([(rate.low, rate.rate, rate.high) for rate in found.rates])
    assert np.all(np.isfinite(rates))
    assert np.all(np.diff(rates, axis=1) > 0)
    assert rates[:, 1].max() < 1e3 * max(true_rates(year).values())
    assert np.isfinite([(pair.low, pair.high, pair.probability_worse) for pair in found.pairs]).all()


# ---- versions, rules -------------------------------------------------------------------------------------------------


@cache
def learnt() -> Findings:
    """From the exact counts of the small cloud."""
    return learn(releases(a_year(), None, InsecureSilence()), a_year().leases)


def with_a_bad_version(version: str) -> Year:
    """The same year, but on every context that version counts seven failures where it had one, and one more a week."""
    year, exact = a_year(), []
    for plan, tables in zip(year.plans, a_year().exact, strict=True):
        pairs = next(at for at, marginal in enumerate(plan.marginals) if marginal.name == "pairs")
        counts = tables[pairs].copy()
        workloads = plan.tables[pairs].levels("workload")
        if version in workloads:
            counts[workloads.index(version)] = 7 * counts[workloads.index(version)] + 1
        exact.append((*tables[:pairs], counts, *tables[pairs + 1 :]))
    return replace(year, exact=tuple(exact))


@pytest.mark.nightly
def test_a_version_that_fails_more_often_everywhere_is_split_and_others_are_not() -> None:
    archetype, found = next((token, own) for token, own in learnt().versions.items() if len(own.versions) == 4)
    bad = found.versions[1]
    year = with_a_bad_version(bad)
    versions = learn(releases(year, None, InsecureSilence()), year.leases).versions
    assert [group.versions for group in versions[archetype].groups][-1] == (bad,)
    assert versions[archetype].groups[-1].low > 1.5
    assert sum(len(own.groups) for own in versions.values()) == len(versions) + 1
    assert all(len(own.groups) == 1 for own in learnt().versions.values())


@pytest.mark.nightly
def test_the_archetype_of_a_version_is_what_most_leases_say() -> None:
    """One tenant that names another archetype for its lease moves nothing."""
    year = a_year()
    own = next(lease for lease in year.leases if "subarchetype" in lease.labels)
    lie = replace(own, labels={**own.labels, "archetype": "archetype of a liar"})
    leases = tuple(lie if lease is own else lease for lease in year.leases)
    versions = learn(releases(year, None, InsecureSilence()), leases).versions
    assert {token: own.versions for token, own in versions.items()} == {
        token: own.versions for token, own in learnt().versions.items()
    }
    assert "archetype of a liar" not in versions


def test_a_bundle_carries_rules_which_stay_until_there_are_newer_ones() -> None:
    made = releases(a_year(), None, InsecureSilence())
    unbounded = Rule((OneOf("fabric", ("hdr",)),), 30, 900.0, 9.0, 4.0, 2.0, np.inf, 0.01)
    rule = replace(unbounded, high=8.0)
    findings = Findings((), ())
    first = compose(1, (), made, replace(findings, rules=(rule, unbounded)))
    assert [(one.conditions, one.ratio, one.ratio_high) for one in first.rules] == [(("fabric = hdr",), 4.0, 8.0)]
    assert compose(2, (), made, findings, rules=first.rules).rules == first.rules
    assert compose(2, (), made, replace(findings, rules=()), rules=first.rules).rules == ()
