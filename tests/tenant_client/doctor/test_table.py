"""From failures to counts: bounded per unit whatever happened, and the same on every retry."""

from collections.abc import Sequence
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from federation.protocol.causes import CAUSES, Domain, causes_of
from federation.protocol.noise import Integers
from federation.protocol.plan import Mechanism, Plan
from provider_server.rounds.planning import MarginalSpec
from tenant_client.doctor.records.journal import Failure, LabelledFailure, Unit
from tenant_client.rounds.counts import build_tables, domain_of
from tests.support.changing import replace
from tests.support.factories import a_lease, a_plan, a_unit, labelled, labels

KEY = bytes(range(32))
EDGES = (0.0, 1.0, 8.0, 48.0)
HARDWARE, SOFTWARE = "nvlink_error", "type_error"
PAIRS, HAZARD, CONTROL = range(3)

UNITS = [a_unit(number, number % 3, number % 2) for number in range(6)]  # workload 2 has no row
failures = st.builds(
    lambda unit, at_h, age_h, reason: LabelledFailure(Failure(unit.unit, at_h, age_h, reason), unit.labels),
    st.sampled_from(UNITS),
    st.integers(0, 5).map(float),
    st.sampled_from([-1.0, 0.0, 0.5, 1.0, 3.0, 8.0, 48.0, 49.0]),
    st.sampled_from([HARDWARE, SOFTWARE, "cuda_error", "unknown", "no such reason"]),
)


@cache
def plan_of(most: int = 1, number: int = 1) -> Plan:
    return a_plan(number, failures_per_unit=most, band_edges_hours=EDGES, mechanism=Mechanism.DISCRETE_LAPLACE)


def counts(plan: Plan, happened: Sequence[LabelledFailure], key: bytes = KEY) -> tuple[Integers, ...]:
    return build_tables(plan, happened, key)


def equal(one: Sequence[Integers], other: Sequence[Integers]) -> bool:
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


# ---- sensitivity ---------------------------------------------------------------------------------------------------


@given(happened=st.lists(failures, max_size=60), most=st.sampled_from([1, 2, 5]), unit=st.sampled_from(UNITS))
def test_one_unit_more_or_less_changes_each_marginal_by_at_most_f(
    happened: list[LabelledFailure], most: int, unit: Unit
) -> None:
    without = [failure for failure in happened if failure.failure.unit != unit.unit]
    for mine, theirs in zip(counts(plan_of(most), happened), counts(plan_of(most), without), strict=True):
        assert np.abs(mine - theirs).sum() <= most


@given(
    happened=st.lists(failures, max_size=40),
    most=st.sampled_from([1, 2]),
    unit=st.sampled_from(UNITS),
    weeks=st.lists(st.integers(0, 3), min_size=40, max_size=40),
)
def test_a_lease_in_one_window_more_or_less_changes_each_marginal_by_at_most_f(
    happened: list[LabelledFailure], most: int, unit: Unit, weeks: list[int]
) -> None:
    """Where windows are counted again, each window of a lease is bounded by itself."""
    spread = [in_week(failure, week) for failure, week in zip(happened, weeks, strict=False)]
    without = [one for one in spread if (one.failure.unit, position(one)) != (unit.unit, 2)]
    for mine, theirs in zip(counts(plan_of(most), spread), counts(plan_of(most), without), strict=True):
        assert np.abs(mine - theirs).sum() <= most


def position(one: LabelledFailure) -> int:
    return plan_of().position_at(one.failure.at_h)


@pytest.mark.parametrize("weeks", [1, 2, 5])
def test_a_lease_that_fails_in_every_window_counts_in_each_and_twice_in_none(weeks: int) -> None:
    failing = [in_week(labelled(UNITS[0], at_h), week) for week in range(weeks) for at_h in (1.0, 2.0, 167.99)]
    assert sums(counts(plan_of(1), failing)) == [weeks, weeks, 0]
    assert sums(counts(plan_of(2), failing)) == [2 * weeks, 2 * weeks, 0]


def in_week(one: LabelledFailure, week: int) -> LabelledFailure:
    return replace(one, failure=replace(one.failure, at_h=one.failure.at_h + 168.0 * week, age_h=1.0))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_bound_is_reached_in_every_marginal_and_not_by_a_unit_that_fails_less(most: int) -> None:
    unit = a_unit(1)
    for happened in range(5):
        bound = min(happened, most)
        for reason, expected in [(HARDWARE, [bound, bound, 0]), (SOFTWARE, [0, bound, bound])]:
            failing = [labelled(unit, float(hour), reason) for hour in range(happened)]
            assert sums(counts(plan_of(most), failing)) == expected


def test_units_are_bounded_one_by_one() -> None:
    tables = counts(plan_of(), [labelled(a_unit(number), hour) for number in range(7) for hour in (1.0, 2.0)])
    assert sums(tables) == [7, 7, 0]


# ---- selection -----------------------------------------------------------------------------------------------------


@given(happened=st.lists(failures, max_size=30), seed=st.randoms(use_true_random=False))
def test_the_selection_depends_on_what_happened_and_not_on_its_order(
    happened: list[LabelledFailure], seed: Random
) -> None:
    shuffled = list(happened)
    seed.shuffle(shuffled)
    assert equal(counts(plan_of(), happened), counts(plan_of(), shuffled))


def test_failures_at_one_moment_are_told_apart_by_their_age() -> None:
    unit = a_unit(1)
    both = [replace(labelled(unit), failure=Failure(unit.unit, 10.0, age, HARDWARE)) for age in (0.5, 30.0)]
    assert equal(counts(plan_of(), both), counts(plan_of(), both[::-1]))


def test_which_failure_counts_is_chance_to_whoever_lacks_the_key() -> None:
    """Early or late, about half of all keys choose it: 400 fair coins stray from 200 by 60 once in 10^9 times."""
    unit = a_unit(1)
    both = [labelled(unit, 0.5), labelled(unit, 30.0)]
    early = sum(band_of(plan_of(), both, key.to_bytes(32)) == "0" for key in range(400))
    assert 140 < early < 260


def test_the_same_key_chooses_anew_in_each_round() -> None:
    unit = a_unit(1)
    both = [labelled(unit, 0.5), labelled(unit, 30.0)]
    chosen = [band_of(plan_of(number=number), both, KEY) for number in range(1, 65)]
    assert 10 < chosen.count("0") < 54


def test_a_failure_that_has_no_cell_does_not_take_the_place_of_one_that_has() -> None:
    unit = a_unit(1)
    another_domain, too_old = labelled(unit, 2.0, SOFTWARE), labelled(unit, 49.0, HARDWARE)
    for number in range(1, 20):
        assert counts(plan_of(number=number), [another_domain, labelled(unit, 3.0)])[PAIRS].sum() == 1
        assert counts(plan_of(number=number), [too_old, labelled(unit, 3.0)])[HAZARD].sum() == 1


# ---- cells ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age_h", "band"),
    [(-0.1, None), (0.0, "0"), (0.5, "0"), (1.0, "0"), (1.1, "1"), (8.0, "1"), (8.1, "2"), (48.0, "2"), (48.1, None)],
)
def test_a_band_is_open_on_the_left_and_closed_on_the_right(age_h: float, band: str | None) -> None:
    assert band_of(plan_of(), [labelled(a_unit(1), age_h)]) == band


def test_ages_before_the_first_band_have_no_exposure_and_no_count() -> None:
    plan = a_plan(band_edges_hours=(1.0, 8.0, 48.0))
    assert [band_of(plan, [labelled(a_unit(1), age_h)]) for age_h in (0.9, 1.0, 1.1)] == [None, "0", "0"]


@pytest.mark.parametrize(("reason", "domain"), [(cause.slug, cause.domain) for cause in CAUSES.values()])
def test_every_reason_counts_in_its_domain_and_as_itself_where_asked(reason: str, domain: Domain) -> None:
    plan = plan_of()
    pairs, hazard, control = counts(plan, [labelled(a_unit(1), reason=reason)])
    assert pairs.sum() == (1 if domain is Domain.INFRASTRUCTURE else 0)
    assert control.sum() == (1 if domain is Domain.SCRIPT else 0)
    assert hazard.sum(axis=(0, 1)).tolist() == [1 if level == domain else 0 for level in levels(plan, "domain")]
    by_reason = a_plan(marginals=(MarginalSpec("reasons", ("reason",), (), 1.0),))
    (reasons,) = counts(by_reason, [labelled(a_unit(1), reason=reason)])
    assert reasons.tolist() == [1 if level == reason else 0 for level in levels(by_reason, "reason")]


@pytest.mark.parametrize("reason", ["unknown", "", "NVLINK_ERROR", "gremlins"])
def test_a_reason_outside_the_taxonomy_has_no_domain_and_no_cell(reason: str) -> None:
    assert domain_of(reason) == "unknown"
    assert sums(counts(plan_of(), [labelled(a_unit(1), reason=reason)])) == [0, 0, 0]


def test_a_marginal_of_all_domains_counts_failures_of_unknown_reason_too() -> None:
    marginals = (MarginalSpec("contexts", ("context",), (), 1.0),)
    happened = [labelled(a_unit(number), reason=reason) for number, reason in enumerate(["gremlins", HARDWARE])]
    assert [table.sum() for table in counts(a_plan(marginals=marginals), happened)] == [2]


@pytest.mark.parametrize("domain", list(Domain))
def test_a_marginal_counts_its_domains_only(domain: Domain) -> None:
    marginals = (MarginalSpec("contexts", ("context",), (domain,), 1.0),)
    happened = [labelled(a_unit(number), reason=reason) for number, reason in enumerate(CAUSES)]
    assert [table.sum() for table in counts(a_plan(marginals=marginals), happened)] == [len(causes_of(domain))]


@pytest.mark.parametrize(
    ("label", "reason", "counted"),
    [
        ("context", HARDWARE, [0, 1, 0]),
        ("context", SOFTWARE, [0, 1, 0]),
        ("context_level", HARDWARE, [1, 0, 0]),
        ("context_level", SOFTWARE, [0, 0, 1]),
    ],
)
def test_a_level_that_has_no_row_is_not_counted(label: str, reason: str, counted: list[int]) -> None:
    for changed in (dict[str, str](), {label: "0" * 32}):
        unit = a_unit(1)
        others = {name: value for name, value in unit.labels.items() if name != label}
        assert sums(counts(plan_of(), [labelled(replace(unit, labels=others | changed), reason=reason)])) == counted


def test_a_unit_that_no_lease_was_granted_for_counts_nowhere() -> None:
    """Also not where no dimension is made of tokens: a job on one's own hardware is no business of the provider."""
    marginals = (
        MarginalSpec("causes", ("domain", "reason"), (), 0.5),
        MarginalSpec("ages", ("band",), (), 0.25),
        MarginalSpec("hardware", ("reason",), (Domain.INFRASTRUCTURE,), 0.25),
    )
    plan, granted = a_plan(marginals=marginals, band_edges_hours=EDGES), a_unit(1)
    own = replace(a_unit(2), labels={})
    assert sums(counts(plan, [labelled(granted, 2.0)])) == [1, 1, 1]
    assert sums(counts(plan, [labelled(own, 2.0)])) == [0, 0, 0]
    assert sums(counts(plan, [labelled(own, 2.0), labelled(granted, 2.0)])) == [1, 1, 1]
    assert sums(counts(plan_of(), [labelled(own, 2.0)])) == [0, 0, 0]


def test_a_workload_counts_in_the_finest_row_that_there_is() -> None:
    """Three tenants run workload 0, two others its sibling 1, one workload 2, which shares no more than the family."""
    leases = [a_lease(tenant, 0, 0) for tenant in range(3)]
    leases += [a_lease(tenant, 1, 1) for tenant in range(3, 5)]
    leases += [a_lease(2, 2, 2)]
    plan = a_plan(leases=leases)
    assert levels(plan, "workload") == (labels(0)["subarchetype"], labels(1)["family"])
    finest, coarsest = labels(0)["subarchetype"], labels(0)["family"]
    assert [workload_of(plan, workload) for workload in range(5)] == [finest, coarsest, coarsest, coarsest, None]


# ---- reading a table -----------------------------------------------------------------------------------------------


def sums(tables: Sequence[Integers]) -> list[int]:
    return [int(table.sum()) for table in tables]


def levels(plan: Plan, name: str) -> tuple[str, ...]:
    return next(dimension.levels for dimension in plan.dimensions if dimension.name == name)


def band_of(plan: Plan, happened: Sequence[LabelledFailure], key: bytes = KEY) -> str | None:
    """The band of the one failure that was counted."""
    found = np.flatnonzero(counts(plan, happened, key)[HAZARD].sum(axis=(0, 2)))
    return levels(plan, "band")[found[0]] if found.size else None


def workload_of(plan: Plan, workload: int) -> str | None:
    """The row that a failure of a workload is counted in."""
    found = np.flatnonzero(counts(plan, [labelled(a_unit(1, workload))])[PAIRS].sum(axis=1))
    return levels(plan, "workload")[found[0]] if found.size else None
