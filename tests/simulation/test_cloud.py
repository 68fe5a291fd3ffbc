"""The simulated cloud against its own truth: every claim is also shown to fail where it should."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from importlib import resources
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from crypto.errors import PharoahError
from federation.protocol.causes import CAUSES, Domain, causes_of, parse as parse_causes
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.toml_tables import BadTable
from simulation.cloud.cloud import Cloud, Failure, Lease, build_cloud
from simulation.cloud.scenario import Scenario, ScenarioError, load, names, parse
from simulation.cloud.truth import draw_unsteadiness
from tests.support.changing import replace

Floats = NDArray[np.float64]
QUICKSTART = resources.files("simulation.cloud").joinpath("scenarios/quickstart.toml").read_text(encoding="utf-8")
TABLE_3 = resources.files("federation.protocol").joinpath("causes.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cloud() -> Cloud:
    return build_cloud(load("quickstart"), np.random.default_rng(7))


@pytest.fixture(scope="module")
def leases(cloud: Cloud) -> Mapping[str, Lease]:
    return {lease.lease_id: lease for week in range(cloud.scenario.weeks) for lease in cloud.week(week).leases}


@pytest.fixture(scope="module")
def failures(cloud: Cloud) -> tuple[Failure, ...]:
    return tuple(failure for week in range(cloud.scenario.weeks) for failure in cloud.week(week).failures)


def of_domain(failures: tuple[Failure, ...], domain: Domain) -> list[Failure]:
    return [failure for failure in failures if CAUSES[failure.reason].domain is domain]


def horizon_h(scenario: Scenario) -> float:
    return scenario.weeks * HOURS_PER_WEEK


# ---- causes ---------------------------------------------------------------------------------------------------------


def test_causes_are_table_3() -> None:
    assert len(CAUSES) == 29
    assert {domain: len(causes_of(domain)) for domain in Domain} == {
        Domain.INFRASTRUCTURE: 9,
        Domain.FRAMEWORK: 9,
        Domain.SCRIPT: 11,
    }
    assert sum(cause.observed for cause in CAUSES.values()) == 2575
    assert CAUSES["nvlink_error"].share_of_lost_gpu_time == 30.25
    assert all(cause.slug == slug for slug, cause in CAUSES.items())


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("observed = 54\n", "observed = 55\n", "do not add up"),
        ("share_of_lost_gpu_time = 30.25", "share_of_lost_gpu_time = 30.75", "do not add up"),
        ("observed = 54\n", 'observed = "54"\n', "nvlink_error: observed must be a whole number"),
        ('title = "CUDA Error"\n', 'title = "ECC Error"\n', "28 are unique"),
        ("[script.index_error]", "[script.cuda_error]", "28 are unique"),
        ("[script.index_error]", "[script.Index_Error]", "slug must be text matching"),
        ("observed = 23\n", "seen = 23\n", "index_error: .* key"),
        ("[script.index_error]", "[user.index_error]", "the domains are"),
        (" on other nodes, and tell the provider which GPU it was", "\\n", "advice"),
    ],
)
def test_a_damaged_table_of_causes_is_refused(old: str, new: str, complaint: str) -> None:
    assert TABLE_3.count(old) == 1
    with pytest.raises(BadTable, match=complaint):
        parse_causes(TABLE_3.replace(old, new))


# ---- scenarios ------------------------------------------------------------------------------------------------------


def test_every_scenario_loads_and_plays() -> None:
    assert names() == ("hyperscale", "quickstart", "regional", "standard", "tiny")
    for name in names():
        scenario = load(name)
        assert scenario.name == name
        if name == "hyperscale":
            continue  # too large to play here: `bench field` does
        short = replace(scenario, weeks=2)
        assert build_cloud(short, np.random.default_rng(0)).week(1).failures


def test_a_scenario_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(QUICKSTART.replace("weeks = 13", "weeks = 4"), encoding="utf-8")
    assert load(path) == load(str(path)) == replace(load("quickstart"), name="mine", weeks=4)


def test_an_unknown_key_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("tennants = 48\n" + QUICKSTART, encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load(path)
    assert isinstance(caught.value, PharoahError)
    text = caught.value.diagnostics()
    assert str(path) in text
    assert "unknown key 'tennants'" in text
    assert "hint: known keys: title, tenants, archetypes" in text


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("tenants = 48\n", "", "missing key 'tenants'"),
        ("tenants = 48", "tenants = 48.0", "must be a whole number"),
        ("tenants = 48", "tenants = true", "must be a whole number"),
        ("epsilon = 1.0", 'epsilon = "1"', "must be a number"),
        ("epsilon = 1.0", "epsilon = nan", "epsilon must be a number"),
        ("epsilon = 1.0", "epsilon = 0.0", "must lie between"),
        ("mismatch_exposure = [0.5, 2.0]", "mismatch_exposure = [2.0, 0.5]", "must rise from 0 or more"),
        ("acme_mix = true", "acme_mix = true\ncontext_bursts = [0.5, 0.5]", "must be a share below 1 and a factor"),
        ("acme_mix = true", "acme_mix = true\nlate_versions = 4", "must leave a version of each archetype"),
        ("acme_mix = true", "acme_mix = 1", "must be true or false"),
        ("buildup_factors = [1.0, 2.0, 5.0]", "buildup_factors = [1.0, 2.0]", "must be 3 positive numbers"),
        ("buildup_factors = [1.0, 2.0, 5.0]", "buildup_factors = 2.0", "buildup_factors must be a list"),
        ("age_band_edges_h = [0.0, 6.0,", "age_band_edges_h = [0.0, 36.0,", "must start at 0 and rise"),
        ("largest_job_nodes = 8", "largest_job_nodes = 12", "must be a power of two"),
        ("owners_minimum = 5", "owners_minimum = 49", "of 48 tenants"),
        ("framework = 150", "frameworks = 150", "a key of failures_per_week is unknown"),
        ("framework = 150", "framework = 0", "must be positive"),
        ("infrastructure = 300", "infrastructure = 1200", "must have infrastructure below"),
        ("weeks = 13", "weeks = ", "not TOML"),
    ],
)
def test_an_invalid_scenario_is_refused(old: str, new: str, complaint: str) -> None:
    assert QUICKSTART.count(old) == 1
    with pytest.raises(ScenarioError, match=complaint):
        parse(QUICKSTART.replace(old, new), "mine.toml")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ScenarioError) as caught:
        load("quickstrat")
    assert caught.value.hint == "use one of hyperscale, quickstart, regional, standard, tiny, or a file"


def test_mismatches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ScenarioError, match="do not fit"):
        build_cloud(replace(load("tiny"), mismatch_minimum=18), np.random.default_rng(0))


# ---- generation -----------------------------------------------------------------------------------------------------


def test_the_generator_decides_everything() -> None:
    one, same, other = (build_cloud(load("tiny"), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one.week(1) == same.week(1)  # week 1 before week 0: the order does not matter
    assert one.week(0) == same.week(0)
    assert one.workloads == same.workloads
    assert one.mismatched == same.mismatched
    assert one.week(0) != other.week(0)


def test_quickstart_is_drawn_in_two_seconds() -> None:
    begun_s = time.process_time()
    drawn = build_cloud(load("quickstart"), np.random.default_rng(3))
    assert sum(len(drawn.week(week).leases) for week in range(13)) > 10_000
    assert time.process_time() - begun_s < 2.0


def test_there_is_no_week_beyond_the_horizon(cloud: Cloud) -> None:
    for week in (-1, 13):
        with pytest.raises(IndexError, match="13 weeks"):
            cloud.week(week)


def test_every_lease_is_valid(cloud: Cloud, leases: Mapping[str, Lease]) -> None:
    scenario = cloud.scenario
    for week in range(scenario.weeks):
        for lease in cloud.week(week).leases:
            assert lease == leases[lease.lease_id]  # the same in every week that it spans
            assert lease.node_hours(week * HOURS_PER_WEEK, (week + 1) * HOURS_PER_WEEK) > 0
    for lease in leases.values():
        assert 0 <= lease.start_h < min(lease.end_h, horizon_h(scenario))
        assert lease.workload in cloud.clients[lease.tenant].workloads
        assert lease.context in range(scenario.contexts)
        assert lease.level in range(scenario.buildup_levels)
        assert lease.nodes in (1, 2, 4, 8)


def test_every_failure_lies_within_its_lease_and_week(cloud: Cloud) -> None:
    for week in range(cloud.scenario.weeks):
        here = cloud.week(week)
        running = {lease.lease_id: lease for lease in here.leases}
        for failure in here.failures:
            lease = running[failure.lease_id]
            assert week * HOURS_PER_WEEK <= failure.at_h < (week + 1) * HOURS_PER_WEEK
            assert lease.start_h <= failure.at_h <= lease.end_h
            assert failure.age_h == pytest.approx(failure.at_h - lease.start_h)
        assert list(here.failures) == sorted(here.failures, key=lambda failure: failure.at_h)


def test_only_framework_and_script_failures_end_a_lease_and_the_job_comes_again(
    leases: Mapping[str, Lease], failures: tuple[Failure, ...]
) -> None:
    starts: defaultdict[tuple[int, int, int], list[float]] = defaultdict(list)
    for lease in leases.values():
        starts[lease.tenant, lease.workload, lease.nodes].append(lease.start_h)
    struck = of_domain(failures, Domain.INFRASTRUCTURE)
    assert all(failure.at_h < leases[failure.lease_id].end_h for failure in struck)
    ended = of_domain(failures, Domain.FRAMEWORK) + of_domain(failures, Domain.SCRIPT)
    assert len({failure.lease_id for failure in ended}) == len(ended)
    for failure in ended:
        lease = leases[failure.lease_id]
        assert failure.at_h == lease.end_h
        assert any(lease.end_h < start for start in starts[lease.tenant, lease.workload, lease.nodes])


# ---- targets --------------------------------------------------------------------------------------------------------


def test_numbers_meet_the_scenario(cloud: Cloud, failures: tuple[Failure, ...]) -> None:
    weeks = [cloud.week(week) for week in range(cloud.scenario.weeks)]
    job_weeks = [len(week.leases) for week in weeks]
    assert sum(job_weeks) / len(weeks) == pytest.approx(2000, rel=0.05)
    assert min(job_weeks) > 1200
    struck = [{failure.lease_id for failure in of_domain(week.failures, Domain.INFRASTRUCTURE)} for week in weeks]
    assert sum(map(len, struck)) == pytest.approx(300 * 13, rel=0.07)  # four standard deviations
    for domain in (Domain.FRAMEWORK, Domain.SCRIPT):
        assert len(of_domain(failures, domain)) == pytest.approx(150 * 13, rel=0.12)


def test_most_job_weeks_expect_few_infrastructure_failures(cloud: Cloud) -> None:
    expected = np.array([sum(row[-1] for row in rows) for rows in exposures_by_job_week(cloud)])
    assert np.median(expected) < 0.3
    assert np.quantile(expected, 0.9) < 2
    assert (1 - np.exp(-expected)).sum() == pytest.approx(300 * 13, rel=1e-6)  # what calibration solved for


def lost_node_hours(leases: Mapping[str, Lease], failures: tuple[Failure, ...]) -> Mapping[str, float]:
    """Node-hours of failed attempts, by reason."""
    begun = {lease_id: lease.start_h for lease_id, lease in leases.items()}
    lost: defaultdict[str, float] = defaultdict(float)
    for failure in failures:
        lost[failure.reason] += leases[failure.lease_id].nodes * (failure.at_h - begun[failure.lease_id])
        begun[failure.lease_id] = failure.at_h
    return lost


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_domains_lose_as_much_as_in_acme(seed: int) -> None:
    drawn = build_cloud(load("quickstart"), np.random.default_rng(seed))
    weeks = [drawn.week(week) for week in range(13)]
    lost = lost_node_hours(
        {lease.lease_id: lease for week in weeks for lease in week.leases},
        tuple(failure for week in weeks for failure in week.failures),
    )
    for domain, share, tolerance in zip(Domain, (0.821, 0.147, 0.032), (0.03, 0.03, 0.01), strict=True):
        of_it = sum(lost[cause.slug] for cause in causes_of(domain))
        assert of_it / sum(lost.values()) == pytest.approx(share, abs=tolerance)


@pytest.mark.parametrize("domain", Domain)
def test_reasons_come_in_the_proportions_of_acme(failures: tuple[Failure, ...], domain: Domain) -> None:
    seen = Counter(failure.reason for failure in of_domain(failures, domain))
    counts = np.array([seen[cause.slug] for cause in causes_of(domain)])
    observed = np.array([cause.observed for cause in causes_of(domain)], dtype=np.float64)
    assert goodness(counts, observed) > 1e-3
    tilted = observed * np.where(observed == observed.max(), 1.6, 1.0)  # the commonest reason commoner
    assert goodness(counts, tilted) < 1e-3


def goodness(counts: NDArray[np.int64], weights: Floats) -> float:
    return float(stats.chisquare(counts, counts.sum() * weights / weights.sum()).pvalue)


def test_costly_reasons_in_acme_are_costly_here(leases: Mapping[str, Lease], failures: tuple[Failure, ...]) -> None:
    rng = np.random.default_rng(0)
    for domain, most in ((Domain.INFRASTRUCTURE, 0.15), (Domain.FRAMEWORK, 0.25), (Domain.SCRIPT, 0.10)):
        lost = lost_node_hours(leases, failures)
        assert distance_from_acme(lost, domain) < most
        reasons = rng.permutation([failure.reason for failure in of_domain(failures, domain)]).tolist()
        shuffled = iter(reasons)
        mixed = tuple(
            replace(failure, reason=next(shuffled)) if CAUSES[failure.reason].domain is domain else failure
            for failure in failures
        )
        assert distance_from_acme(lost_node_hours(leases, mixed), domain) > most  # reasons at random do not pass


def distance_from_acme(lost: Mapping[str, float], domain: Domain) -> float:
    """Total variation between shares of lost time within a domain, here and in Table 3."""
    here = np.array([lost[cause.slug] for cause in causes_of(domain)])
    acme = np.array([cause.share_of_lost_gpu_time for cause in causes_of(domain)])
    return float(np.abs(here / here.sum() - acme / acme.sum()).sum() / 2)


def test_without_acme_mix_every_reason_is_equally_likely() -> None:
    drawn = build_cloud(replace(load("tiny"), weeks=40), np.random.default_rng(4))
    failures = tuple(failure for week in range(40) for failure in drawn.week(week).failures)
    for domain in Domain:
        seen = Counter(failure.reason for failure in of_domain(failures, domain))
        counts = np.array([seen[cause.slug] for cause in causes_of(domain)])
        assert goodness(counts, np.ones(len(counts))) > 1e-3


def test_late_versions_begin_half_way_and_all_others_at_once() -> None:
    drawn = build_cloud(replace(load("quickstart"), late_versions=1), np.random.default_rng(5))
    jobs = drawn.leases.start_h[drawn.leases.fault == 0], drawn.leases.workload[drawn.leases.fault == 0] % 3
    first = [jobs[0][jobs[1] == version].min() for version in range(3)]
    assert first[2] >= 6 * HOURS_PER_WEEK > first[1]
    assert first[2] < 7 * HOURS_PER_WEEK


def test_in_a_context_s_bad_weeks_leases_fail_as_often_as_the_scenario_says() -> None:
    scenario = replace(load("quickstart"), context_bursts=(0.2, 10.0), mismatch_minimum=0, mismatch_share=0.0)
    factors = draw_unsteadiness(scenario, np.random.default_rng(5))
    assert set(np.unique(factors)) == {1.0, 10.0}
    assert np.mean(factors > 1.0) == pytest.approx(0.2, abs=0.06)
    failures = [
        len(of_domain(tuple(row for week in range(13) for row in drawn.week(week).failures), Domain.INFRASTRUCTURE))
        for drawn in (build_cloud(one, np.random.default_rng(5)) for one in (scenario, load("quickstart")))
    ]
    assert failures[0] == pytest.approx(2.8 * failures[1], rel=0.35)  # a fifth ten times as often


def test_a_context_drifts_around_its_own_hazard() -> None:
    scenario = replace(load("standard"), context_drift=0.7)
    walk = np.log(draw_unsteadiness(scenario, np.random.default_rng(5)))
    assert np.allclose(walk.mean(axis=1), 0.0)
    moved = walk[:, -1] - walk[:, 0]
    assert np.std(moved) == pytest.approx(0.7, rel=0.4)  # 20 contexts
    steady = draw_unsteadiness(load("standard"), np.random.default_rng(5))
    assert np.all(steady == 1.0)


# ---- truth ----------------------------------------------------------------------------------------------------------

Row = tuple[Lease, int, float]  # lease, band, expected infrastructure failures


def exposures_by_job_week(cloud: Cloud) -> Iterator[list[Row]]:
    """Rows of each job-week, from public facts and `true_infrastructure_rate` alone."""
    edges = (*cloud.scenario.age_band_edges_h, np.inf)
    for week in range(cloud.scenario.weeks):
        begin, end = week * HOURS_PER_WEEK, (week + 1) * HOURS_PER_WEEK
        for lease in cloud.week(week).leases:
            rows = []
            for band, (low, high) in enumerate(pairwise(edges)):
                hours = lease.node_hours(max(begin, lease.start_h + low), min(end, lease.start_h + high))
                rate = cloud.true_infrastructure_rate(lease.workload, lease.context, lease.level, band)
                rows.append((lease, band, rate * hours))
            yield rows


def dispersion(observed: Mapping[object, float], expected: Mapping[object, float]) -> float:
    """The p-value of independent Poisson counts with the expected means."""
    groups = [group for group, mean in expected.items() if mean >= 5]
    statistic = sum((observed[group] - expected[group]) ** 2 / expected[group] for group in groups)
    return float(stats.chi2.sf(statistic, len(groups)))


@pytest.mark.nightly
@pytest.mark.parametrize("grouping", ["context and level", "workload", "band", "tenant"])
def test_counts_are_poisson_with_the_true_rate(
    cloud: Cloud, leases: Mapping[str, Lease], failures: tuple[Failure, ...], grouping: str
) -> None:
    def group(lease: Lease, band: int) -> object:
        groups: dict[str, object] = {
            "context and level": (lease.context, lease.level),
            "workload": lease.workload,
            "band": band,
            "tenant": lease.tenant,
        }
        return groups[grouping]

    expected: defaultdict[object, float] = defaultdict(float)
    for lease, band, mean in (row for rows in exposures_by_job_week(cloud) for row in rows):
        expected[group(lease, band)] += mean
    edges = cloud.scenario.age_band_edges_h
    observed = Counter(
        group(leases[failure.lease_id], int(np.searchsorted(edges, failure.age_h, side="right")) - 1)
        for failure in of_domain(failures, Domain.INFRASTRUCTURE)
    )
    assert dispersion(observed, expected) > 1e-3
    for wrong in (0.7, 1.3):
        assert dispersion(observed, {key: wrong * mean for key, mean in expected.items()}) < 1e-9


@pytest.mark.nightly
def test_a_mismatch_multiplies_the_rate(
    cloud: Cloud, leases: Mapping[str, Lease], failures: tuple[Failure, ...]
) -> None:
    assert len(cloud.mismatched) == 6
    factors = cloud.hazard
    for workload, context in cloud.mismatched:
        plain = factors.base_per_node_hour * factors.workload[workload] * factors.context[context]
        rate = cloud.true_infrastructure_rate(workload, context, level=2, band=1)
        assert rate == pytest.approx(plain * 5.0 * 1.1 * 8.0)
        assert any((workload, other) not in cloud.mismatched for other in range(cloud.scenario.contexts))
    planted = sum(
        (leases[failure.lease_id].workload, leases[failure.lease_id].context) in cloud.mismatched
        for failure in of_domain(failures, Domain.INFRASTRUCTURE)
    )
    mean = sum(
        row[-1] for rows in exposures_by_job_week(cloud) for row in rows
        if (row[0].workload, row[0].context) in cloud.mismatched
    )  # fmt: skip
    assert abs(planted - mean) < 4 * np.sqrt(mean)
    assert abs(planted - mean / 8) > 40 * np.sqrt(mean / 8)


def test_a_cloud_without_mismatches_can_be_asked_for() -> None:
    scenario = replace(load("tiny"), mismatch_share=0.0, mismatch_minimum=0)
    assert not build_cloud(scenario, np.random.default_rng(1)).mismatched


def test_script_failures_do_not_depend_on_the_hardware(
    cloud: Cloud, leases: Mapping[str, Lease], failures: tuple[Failure, ...]
) -> None:
    failing = {failure.lease_id for failure in of_domain(failures, Domain.SCRIPT)}
    places = Counter(leases[lease_id].context for lease_id in failing)
    busiest = max(places, key=places.__getitem__)

    def statistic(weight: float) -> float:
        """Failing leases by context, the busiest one's weighted, against their number if context did not matter."""
        shape = cloud.scenario.tenants, cloud.scenario.contexts
        all_leases, failed = np.zeros(shape), np.zeros(shape)
        for lease in leases.values():
            all_leases[lease.tenant, lease.context] += 1
            counted = weight if lease.context == busiest else 1.0
            failed[lease.tenant, lease.context] += counted * (lease.lease_id in failing)
        chance = failed.sum(axis=1, keepdims=True) / all_leases.sum(axis=1, keepdims=True)
        expected = (chance * all_leases).sum(axis=0)
        return float((((failed.sum(axis=0) - expected) ** 2) / expected).sum())

    limit = float(stats.chi2.ppf(0.999, cloud.scenario.contexts))
    assert statistic(weight=1.0) < limit
    assert statistic(weight=1.6) > limit


def test_exposure_moves_between_build_up_levels(cloud: Cloud) -> None:
    moved = 0
    for context in range(cloud.scenario.contexts):
        fresh = [
            np.mean([lease.level == 0 for lease in cloud.week(week).leases if lease.context == context])
            for week in (0, 6, 12)
        ]
        moved += bool(max(fresh) - min(fresh) > 0.15)
    assert moved >= cloud.scenario.contexts // 2


# ---- tenants and workloads ------------------------------------------------------------------------------------------


def test_few_tenants_use_most_of_the_cloud(cloud: Cloud, leases: Mapping[str, Lease]) -> None:
    used: defaultdict[int, float] = defaultdict(float)
    for lease in leases.values():
        used[lease.tenant] += lease.node_hours(0.0, horizon_h(cloud.scenario))
    heaviest = sum(sorted(used.values())[-5:])
    assert len(used) == 48
    assert heaviest > 0.4 * sum(used.values())


def test_most_workloads_are_shared_and_some_are_private(leases: Mapping[str, Lease]) -> None:
    owners: defaultdict[int, set[int]] = defaultdict(set)
    for lease in leases.values():
        owners[lease.workload].add(lease.tenant)
    assert sum(len(tenants) >= 5 for tenants in owners.values()) >= 16
    assert sum(len(tenants) == 1 for tenants in owners.values()) >= 2


def test_descriptors_tell_archetypes_apart_and_versions_hardly(cloud: Cloud) -> None:
    versions = cloud.scenario.versions_per_archetype
    assert len({profile.name for profile in cloud.workloads}) == len(cloud.workloads) == 24
    for (first, one), (second, other) in combinations(enumerate(cloud.workloads), 2):
        alike = len(one.operators & other.operators) / len(one.operators | other.operators)
        if first // versions == second // versions:
            assert alike > 0.8
            assert (one.collectives, one.precision, one.parallelism) == (
                other.collectives,
                other.precision,
                other.parallelism,
            )
            assert one.versions != other.versions
        else:
            assert alike < 0.2


def test_the_hazard_is_a_product_and_falls_with_age(cloud: Cloud) -> None:
    bands = range(len(cloud.scenario.age_band_edges_h))
    for workload, context in product(range(3), range(3)):
        rates = [cloud.true_infrastructure_rate(workload, context, 0, band) for band in bands]
        assert rates == sorted(rates, reverse=True)
        assert rates[0] < 2 * rates[-1]
