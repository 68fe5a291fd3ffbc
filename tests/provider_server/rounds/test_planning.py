"""The plan: no row that fewer than K owners stand behind, and as much noise as the budget asks for."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from crypto.errors import Refusal
from crypto.ids import LeaseId, TenantId
from crypto.masking import MaskKey
from federation.protocol.attendance import layers_for
from federation.protocol.causes import Domain
from federation.protocol.plan import MAX_WORDS, MaskTrustee, Mechanism, NoiseLayers, Plan
from federation.protocol.privacy_cost import plan_loss
from federation.protocol.round_messages import LADDER_LABELS, finest_row
from provider_server.fleet.leases import Lease
from provider_server.rounds.planning import (
    MARGINALS,
    MarginalSpec,
    MaskKeysServed,
    NothingToCount,
    PlanSettings,
    check_mask_keys,
    most_excess,
    window_at,
    windows_at,
)
from tests.support.changing import replace
from tests.support.factories import SETTINGS, TENANTS, a_lease, a_plan, all_leases, labels

LABELS = (*LADDER_LABELS, "context")


def tokens(rung: str) -> st.SearchStrategy[str]:
    return st.integers(0, 2).map(lambda number: f"{rung} {number}")


leases = st.lists(
    st.builds(
        lambda number, tenant, named: Lease(
            LeaseId(number.to_bytes(16)), TenantId(tenant.to_bytes(16)), 1, 0.0, 168.0, named
        ),
        st.integers(0, 10**6),
        st.integers(0, 7),
        st.fixed_dictionaries({}, optional={name: tokens(name) for name in LABELS}),
    ),
    min_size=1,
    max_size=60,
)


def rows(plan: Plan, name: str) -> dict[str, int]:
    """Rows of a dimension and the number of owners that the plan states for each."""
    (dimension,) = (dimension for dimension in plan.dimensions if dimension.name == name)
    return dict(zip(dimension.levels, dimension.owners, strict=True))


def counted(name: str, held: Sequence[Lease], owners_minimum: int) -> Plan | None:
    """A plan over one dimension; None where nobody stands behind any row."""
    marginals = (MarginalSpec(name, (name,), (), 1.0),)
    try:
        return a_plan(leases=held, marginals=marginals, owners_minimum=owners_minimum)
    except NothingToCount:
        return None


# ---- rows ----------------------------------------------------------------------------------------------------------


@given(held=leases, owners_minimum=st.integers(1, 5))
def test_behind_every_row_of_a_workload_are_k_owners_of_what_is_counted_in_it(
    held: list[Lease], owners_minimum: int
) -> None:
    """Counted as tenants will count: each lease in the finest row that it has, and in that one only."""
    plan = counted("workload", held, owners_minimum)
    stated = rows(plan, "workload") if plan else {}
    owners: dict[str, set[TenantId]] = defaultdict(set)
    for lease in held:
        owners[finest_row(lease.labels, stated)].add(lease.tenant)
    owners.pop("", None)
    assert {row: len(tenants) for row, tenants in owners.items()} == stated
    assert all(number >= owners_minimum for number in stated.values())


@given(held=leases, owners_minimum=st.integers(1, 5))
def test_a_workload_without_a_row_could_not_have_had_one(held: list[Lease], owners_minimum: int) -> None:
    plan = counted("workload", held, owners_minimum)
    stated = rows(plan, "workload") if plan else {}
    left = [lease for lease in held if not finest_row(lease.labels, stated)]
    for rung in LADDER_LABELS:
        for token in {lease.labels[rung] for lease in left if rung in lease.labels}:
            assert len({lease.tenant for lease in left if lease.labels.get(rung) == token}) < owners_minimum


@given(held=leases, owners_minimum=st.integers(1, 5))
def test_a_context_has_a_row_exactly_when_it_has_k_owners(held: list[Lease], owners_minimum: int) -> None:
    plan = counted("context", held, owners_minimum)
    owners: dict[str, set[TenantId]] = defaultdict(set)
    for lease in held:
        if "context" in lease.labels:
            owners[lease.labels["context"]].add(lease.tenant)
    expected = {token: len(held_by) for token, held_by in owners.items() if len(held_by) >= owners_minimum}
    assert (rows(plan, "context") if plan else {}) == expected


def test_many_leases_of_one_tenant_are_one_owner() -> None:
    alone = [a_lease(0, number) for number in range(50)]
    assert counted("workload", alone, 2) is None
    with pytest.raises(NothingToCount, match="no workload token has 2 owners among 50 leases") as refusal:
        a_plan(leases=alone, owners_minimum=2)
    assert isinstance(refusal.value, Refusal)
    assert "wait until more tenants" in refusal.value.diagnostics()


def test_a_coarse_row_does_not_hide_a_tenant_behind_owners_that_have_rows_of_their_own() -> None:
    """Tenants 0–2 run workload 0, tenant 3 its sibling: four hold the archetype, only one would be counted in it."""
    held = [*(a_lease(tenant, 0, 0) for tenant in range(3)), a_lease(3, 0, 1)]
    plan = counted("workload", held, 3)
    assert plan is not None
    assert rows(plan, "workload") == {labels(0)["subarchetype"]: 3}


def test_rare_workloads_fall_back_to_the_finest_rung_with_owners_enough() -> None:
    held = [a_lease(tenant, tenant, tenant % 2) for tenant in range(4)]  # two owners each of workloads 0 and 1
    held += [a_lease(tenant, 9, workload) for tenant, workload in [(0, 4), (1, 5), (2, 6), (3, 6)]]
    plan = counted("workload", held, 3)
    assert plan is not None
    assert rows(plan, "workload") == {labels(0)["archetype"]: 4, labels(4)["family"]: 4}


def test_rows_do_not_tell_in_which_order_tenants_came() -> None:
    assert a_plan(leases=all_leases()) == a_plan(leases=all_leases()[::-1])


# ---- levels, noise, epoch ------------------------------------------------------------------------------------------


def test_public_dimensions_have_all_their_levels_and_no_owners() -> None:
    dimensions = {dimension.name: dimension for dimension in a_plan().dimensions}
    assert dimensions["band"].levels == ("0", "1", "2", "3")
    assert dimensions["domain"].levels == tuple(Domain)
    assert all(dimensions[name].owners == () for name in ("band", "domain"))
    assert all(set(dimensions[name].owners) == {TENANTS} for name in ("workload", "context", "context_level"))


def test_further_public_dimensions_have_the_levels_they_are_given() -> None:
    marginals = (MarginalSpec("regions", ("region", "context"), (), 1.0),)
    plan = a_plan(marginals=marginals, public_levels={"region": ("east", "west")})
    assert plan.dimensions[0].levels == ("east", "west")
    assert plan.tables[0].shape == (2, 2)


@pytest.mark.parametrize("mechanism", list(Mechanism))
@pytest.mark.parametrize("changes", [{}, {"epsilon": 0.1}, {"failures_per_unit": 3}, {"delta": 1e-12}])
def test_a_plan_costs_what_the_settings_allow_and_hardly_less(mechanism: Mechanism, changes: dict[str, Any]) -> None:
    plan = a_plan(mechanism=mechanism, **changes)
    cost = plan_loss(plan).at(plan.delta)
    assert plan.epsilon * (1 - 1e-4) < cost <= plan.epsilon


def test_the_budget_is_shared_out_by_weight() -> None:
    """rho goes with the inverse square of a Gaussian's scale, epsilon with the inverse of a Laplace's."""
    weights = np.array([spec.weight for spec in MARGINALS])
    for mechanism, power in [(Mechanism.DISCRETE_GAUSSIAN, 2), (Mechanism.DISCRETE_LAPLACE, 1)]:
        spent = np.array([marginal.noise_scale for marginal in a_plan(mechanism=mechanism).marginals]) ** -power
        np.testing.assert_allclose(spent / spent.sum(), weights / weights.sum())


def test_marginals_come_as_specified() -> None:
    for marginal, spec in zip(a_plan().marginals, MARGINALS, strict=True):
        assert (marginal.name, marginal.dimensions, marginal.domains) == (spec.name, spec.dimensions, spec.domains)


@pytest.mark.parametrize(("week", "epoch"), [(0, 0), (12, 0), (13, 1), (25, 1), (26, 2)])
def test_the_epoch_follows_from_the_window(week: int, epoch: int) -> None:
    assert a_plan(window=(168 * week, 168 * (week + 1))).epoch == epoch


def test_settings_that_would_leave_a_full_cohort_without_noise_make_no_plan() -> None:
    with pytest.raises(ValueError, match="noise_shares"):
        a_plan(cohort_minimum=3, noise_shares=4)


# ---- layers of noise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "changes", "full"),
    [
        (0, {}, None),
        (3, {}, None),
        (4, {}, None),
        (5, {}, 3),
        (200, {}, 133),
        (200, {"honest_minimum": 40}, 40),
        (200, {"honest_minimum": 2}, None),
        (200, {"groups": 4}, 33),
        (8, {"groups": 4}, None),
        (200, {"mechanism": Mechanism.DISCRETE_LAPLACE}, 133),
    ],
)
def test_noise_is_divided_for_as_many_as_the_directory_has(
    members: int, changes: dict[str, Any], full: int | None
) -> None:
    plan = a_plan(members=members, **changes)
    assert plan.noise_layers == (full and NoiseLayers(full, layers_for(plan.noise_shares, full)))
    answering = full * plan.cohort_minimum // plan.noise_shares if full else plan.cohort_minimum
    assert 1.0 <= most_excess(plan, answering) <= 1.125
    assert plan_loss(plan).at(plan.delta) <= plan.epsilon


@pytest.mark.nightly
def test_a_plan_of_many_cells_has_fewer_layers_and_more_noise() -> None:
    """As many as a contribution has room for."""
    excess = []
    for cells in (10, 10**5, 10**6, 2 * 10**6, 4 * 10**6):
        plan = a_wide_plan(cells)
        assert plan.words <= MAX_WORDS
        excess.append(most_excess(plan, 200))
    assert excess[0] == excess[1] <= 1.125
    assert excess[1] < excess[2] < excess[3] < excess[4] == pytest.approx(133 / 2)


@pytest.mark.parametrize(("epsilon", "members"), [(8.0, 3_000), (8.0, 10_000), (4.0, 50_000), (2.0, 50_000)])
def test_no_part_is_so_small_that_a_tenant_would_refuse_its_price(epsilon: float, members: int) -> None:
    marginals, levels = (MarginalSpec("wide", ("cell",), (), 1.0),), tuple(map(str, range(5_000)))
    budget: dict[str, Any] = {"epsilon": epsilon, "marginals": marginals, "public_levels": {"cell": levels}}
    plan = a_plan(members=members, cohort_minimum=10, noise_shares=9, **budget)
    assert plan.noise_layers is not None
    assert plan_loss(plan).at(plan.delta) <= plan.epsilon


def a_wide_plan(cells: int, **settings: Any) -> Plan:
    marginals, levels = (MarginalSpec("wide", ("cell",), (), 1.0),), tuple(str(cell) for cell in range(cells))
    return a_plan(members=200, marginals=marginals, public_levels={"cell": levels}, **settings)


def test_where_there_is_room_for_few_layers_noise_is_right_for_those_who_came_last_time() -> None:
    plan = a_wide_plan(10**6, seen=150)
    assert plan.noise_layers is not None
    assert plan.shares.excess(plan.honest(150)) < 1.15
    assert plan.shares.excess(plan.honest(136)) < 1.15
    assert plan.shares.excess(plan.honest(200)) < 1.5
    assert a_wide_plan(10, seen=150) == a_wide_plan(10)


# ---- windows ---------------------------------------------------------------------------------------------------------


def test_a_plan_names_all_windows_of_its_epoch_and_which_one_it_counts() -> None:
    plan = a_plan(window=(168 * 17, 168 * 26), windows=(4, 13))
    assert (plan.first_hour, plan.windows) == (168 * 13, (168 * 13, 168 * 17, 168 * 26))
    assert [plan.position_at(hour) for hour in (plan.first_hour, plan.start_hour)] == [0, 1]


def test_within_an_epoch_windows_are_those_of_its_first_plan() -> None:
    """Settings that change mid-epoch, so that no unit is counted by two divisions, take effect with the next one."""
    changed = replace(PlanSettings(**SETTINGS), windows=(6, 13))
    first = a_plan()
    assert windows_at(changed, [first], 168.0 * 9) == first.windows
    assert window_at(changed, [first], 168.0 * 9) == (168 * 9, 168 * 10)
    assert windows_at(changed, [first], 168.0 * 13) == changed.edges(1)
    assert window_at(changed, [first], 168.0 * 13) == (168 * 13, 168 * 19)


def test_plans_under_mask_keys_of_another_epoch_are_refused() -> None:
    first, second = a_plan(1), a_plan(2, window=(168, 336))
    check_mask_keys(second, [first])
    later = a_plan(3, window=(168 * 13, 168 * 14))
    with pytest.raises(MaskKeysServed, match="epoch 1"):
        check_mask_keys(later, [first])
    one = later.trustees[0]
    keys = (MaskKey(bytes([seat.index]) * 32).public for seat in later.trustees)
    renewed = replace(later, trustees=tuple(map(MaskTrustee, (seat.index for seat in later.trustees), keys)))
    check_mask_keys(renewed, [first])
    with pytest.raises(MaskKeysServed):
        check_mask_keys(replace(renewed, trustees=(one, *renewed.trustees[1:])), [first])


def test_scales_are_those_of_the_plan() -> None:
    settings = replace(PlanSettings(**SETTINGS), epsilon=0.7)
    assert settings.scales() == tuple(marginal.noise_scale for marginal in a_plan(epsilon=0.7).marginals)
