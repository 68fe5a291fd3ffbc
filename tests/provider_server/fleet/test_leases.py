"""Exposure: who was at risk, where, at which age and for how long, checked hour by hour."""

from collections import Counter, defaultdict
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from federation.protocol.life_table import LifeTable
from federation.protocol.plan import Plan
from federation.protocol.round_messages import finest_row
from provider_server.fleet.exposure import Slices, expose, expose_table
from provider_server.fleet.leases import Lease, context_tokens
from provider_server.rounds.planning import MarginalSpec
from tests.support.changing import replace
from tests.support.factories import WEEK, a_lease, a_plan, all_leases, keys, labels, lease_id

EDGES = (0.0, 1.0, 8.0, 48.0, 100_000.0)
OF_FAILURE = {"domain", "reason"}


def in_window(**settings: Any) -> Plan:
    """A plan for a short window in which leases of any kind begin and end."""
    return replace(a_plan(band_edges_hours=EDGES, **settings), start_hour=100, end_hour=150, windows=(100, 150))


PLAN = in_window()

leases = st.lists(
    st.builds(
        lambda number, nodes, begin, hours, workload, context: Lease(
            lease_id(0, number),
            keys().tenant_id(0),
            nodes,
            float(begin),
            float(begin + hours),
            labels(workload, context),
        ),
        st.integers(0, 10**6),
        st.integers(1, 64),
        st.integers(0, 160),
        st.integers(0, 200),
        st.integers(0, 3),  # workloads 2 and 3 and context 2 have no row
        st.integers(0, 2),
    ),
    max_size=20,
)


def slices(plan: Plan, held: list[Lease]) -> Slices:
    return Slices.of(held, plan.start_hour, plan.end_hour, plan.band_edges_hours)


def hour_by_hour(
    plan: Plan, table: LifeTable, held: list[Lease]
) -> tuple[Counter[tuple[str, ...]], Counter[tuple[str, ...]]]:
    """Node-hours and leases at risk in each cell, added up over single hours; leases begin and end on the hour."""
    names = [dimension.name for dimension in table.dimensions]
    node_hours: Counter[tuple[str, ...]] = Counter()
    seen: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for number, lease in enumerate(held):
        for hour in range(int(lease.start_h), int(lease.end_h)):
            if not plan.start_hour <= hour < plan.end_hour:
                continue
            age = hour - lease.start_h
            bands = [str(band) for band in range(len(EDGES) - 1) if EDGES[band] <= age < EDGES[band + 1]]
            found = {"band": bands, "workload": [finest_row(lease.labels, table_levels(table, "workload"))]}
            choices = [found.get(name, [lease.labels.get(name, "")]) for name in names]
            choices = [
                table_levels(table, name) if name in OF_FAILURE else given
                for name, given in zip(names, choices, strict=True)
            ]
            for cell in product(*choices):
                node_hours[cell] += lease.nodes
                seen[cell].add(number)
    return node_hours, Counter({cell: len(numbers) for cell, numbers in seen.items()})


def table_levels(table: LifeTable, name: str) -> list[str]:
    return [level for dimension in table.dimensions if dimension.name == name for level in dimension.levels]


def cells(table: LifeTable) -> list[tuple[str, ...]]:
    return list(product(*(dimension.levels for dimension in table.dimensions)))


# ---- exposure ------------------------------------------------------------------------------------------------------


@given(held=leases)
def test_exposure_and_numbers_at_risk_are_those_of_counting_hour_by_hour(held: list[Lease]) -> None:
    for table in expose(PLAN, slices(PLAN, held)):
        node_hours, at_risk = hour_by_hour(PLAN, table, held)
        assert table.exposure_node_hours.ravel().tolist() == [node_hours[cell] for cell in cells(table)]
        assert table.at_risk.ravel().tolist() == [at_risk[cell] for cell in cells(table)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "dimensions",
    [
        ("band", "context"),
        ("reason", "band", "workload", "domain", "context"),
        ("domain", "workload"),
        ("context",),
        ("band",),
        ("domain",),
        ("domain", "band"),
        ("band", "reason"),
    ],
    ids=" × ".join,
)
@given(held=leases)
def test_dimensions_may_come_in_any_number_and_order(dimensions: tuple[str, ...], held: list[Lease]) -> None:
    plan = in_window(marginals=(MarginalSpec("all", dimensions, (), 1.0),))
    (table,) = expose(plan, slices(plan, held))
    node_hours, at_risk = hour_by_hour(plan, table, held)
    assert table.exposure_node_hours.ravel().tolist() == [node_hours[cell] for cell in cells(table)]
    assert table.at_risk.ravel().tolist() == [at_risk[cell] for cell in cells(table)]


@given(held=leases)
def test_no_node_hour_is_lost_or_counted_twice(held: list[Lease]) -> None:
    """Of leases that have rows everywhere; where the failure is described, each level has the whole exposure."""
    placed = [
        lease
        for lease in held
        if lease.labels["context"] != labels(0, 2)["context"]
        and lease.labels["subarchetype"] in {labels(0)["subarchetype"], labels(1)["subarchetype"]}
    ]
    total = sum(lease.nodes * overlap(lease, PLAN) for lease in placed)
    for table in expose(PLAN, slices(PLAN, placed)):
        copies = np.prod([len(dimension) for dimension in table.dimensions if dimension.name in OF_FAILURE])
        assert table.exposure_node_hours.sum() == pytest.approx(total * copies)


def overlap(lease: Lease, plan: Plan) -> float:
    return max(0.0, min(lease.end_h, plan.end_hour) - max(lease.start_h, plan.start_hour))


@given(held=leases)
def test_windows_add_up_to_the_whole(held: list[Lease]) -> None:
    whole = Slices.of(held, 0, 400, EDGES).node_hours.sum()
    parts = sum(Slices.of(held, begin, begin + 50, EDGES).node_hours.sum() for begin in range(0, 400, 50))
    assert parts == pytest.approx(whole)


def test_fractions_of_an_hour_count_as_such() -> None:
    lease = replace(a_lease(0, 0, hours=(99.25, 101.5)), nodes=4)
    assert slices(PLAN, [lease]).node_hours.tolist() == [[4 * 0.25, 4 * 1.25, 0.0, 0.0]]


@pytest.mark.parametrize("hours", [(0.0, 100.0), (150.0, 151.0), (120.0, 120.0)])
def test_a_lease_outside_the_window_is_not_at_risk(hours: tuple[float, float]) -> None:
    for table in expose(PLAN, slices(PLAN, [a_lease(0, 0, hours=hours)])):
        assert not table.exposure_node_hours.any()
        assert not table.at_risk.any()


def test_events_and_noise_stay_empty() -> None:
    for table in expose(PLAN, slices(PLAN, all_leases())):
        assert table.exposure_node_hours.any()
        assert not table.events.any()
        assert not table.noise_variance.any()


def test_corrected_hours_are_placed_like_plain_ones_and_leave_numbers_at_risk() -> None:
    held = [a_lease(0, number, number, number, (100.0, 110.0)) for number in range(2)]
    cut = slices(PLAN, held)
    assert cut.node_hours.tolist() == [[1.0, 7.0, 2.0, 0.0]] * 2
    corrected = expose_table(PLAN.tables[0], cut, cut.node_hours * np.array([[0.5], [0.25]]))
    own = [(labels(number)["subarchetype"], labels(0, number)["context"]) for number in range(2)]
    found = dict(zip(cells(corrected), corrected.exposure_node_hours.ravel().tolist(), strict=True))
    assert {cell: hours for cell, hours in found.items() if hours} == {own[0]: 5.0, own[1]: 2.5}
    assert corrected.at_risk.tolist() == expose(PLAN, cut)[0].at_risk.tolist()


def test_an_unregistered_lease_is_at_risk_where_no_workload_is_asked_for() -> None:
    lease = a_lease(0, 0)
    anonymous = replace(lease, labels={name: lease.labels[name] for name in ("context", "context_level")})
    pairs, hazard, *others = expose(PLAN, slices(PLAN, [anonymous]))
    assert hazard.exposure_node_hours.any()
    assert not any(table.exposure_node_hours.any() for table in (pairs, *others))


def test_a_rare_workload_is_exposed_in_the_row_that_its_failures_are_counted_in() -> None:
    held = [*(a_lease(tenant, 0, 0) for tenant in range(3)), *(a_lease(tenant, 1, 1 + tenant) for tenant in range(3))]
    plan = a_plan(leases=held, marginals=(MarginalSpec("workloads", ("workload",), (), 1.0),))
    (table,) = expose(plan, Slices.of(held, *WEEK, plan.band_edges_hours))
    assert dict(zip(table.levels("workload"), table.exposure_node_hours.tolist(), strict=True)) == {
        labels(0)["subarchetype"]: 3 * 168.0,
        labels(1)["family"]: 3 * 168.0,
    }


# ---- since when ----------------------------------------------------------------------------------------------------


def test_each_tenant_is_exposed_since_its_own_hour_and_others_not_at_all() -> None:
    held = [a_lease(tenant, 0, hours=(90.0, 140.0)) for tenant in range(4)]
    since = {keys().tenant_id(0): 0.0, keys().tenant_id(1): 120.0, keys().tenant_id(2): 140.0}
    cut = Slices.since(since, held, 130, EDGES)
    assert [lease.tenant for lease in cut.leases] == [keys().tenant_id(0), keys().tenant_id(1)]
    assert cut.node_hours.tolist() == [[1.0, 7.0, 32.0, 0.0], [0.0, 0.0, 10.0, 0.0]]


@given(held=leases, begin=st.integers(0, 300))
def test_since_one_hour_for_all_is_the_window_from_that_hour(held: list[Lease], begin: int) -> None:
    one = Slices.of(held, begin, 300, EDGES)
    other = Slices.since({keys().tenant_id(0): float(begin)}, held, 300, EDGES)
    assert one.leases == other.leases
    assert one.node_hours.tolist() == other.node_hours.tolist()


# ---- context tokens ------------------------------------------------------------------------------------------------


def test_a_context_has_one_token_per_epoch_and_one_per_level() -> None:
    one = context_tokens(b"secret", 0, "h100", 1)
    assert one == context_tokens(b"secret", 0, "h100", 1)
    assert set(one) == {"context", "context_level"}
    higher = context_tokens(b"secret", 0, "h100", 2)
    assert (higher["context"] == one["context"], higher["context_level"] == one["context_level"]) == (True, False)


def test_tokens_change_with_secret_epoch_context_and_level() -> None:
    seen = [
        token
        for secret, epoch, context, level in product([b"a", b"b"], [0, 1, 10], ["0", "1", "10"], [0, 1, 10])
        for token in context_tokens(secret, epoch, context, level).values()
    ]
    assert len(seen) == 2 * 54
    assert len(set(seen)) == 2 * 3 * 3 + 54


def test_without_the_secret_a_token_says_nothing_about_its_context() -> None:
    """The same contexts under another secret: a dictionary of every context there is does not help."""
    own = {token for level in range(9) for token in context_tokens(b"secret", 0, "h100", level).values()}
    tried = {
        token
        for guess in (b"", b"Secret", b"secrets")
        for level in range(9)
        for token in context_tokens(guess, 0, "h100", level).values()
    }
    assert not own & tried
    assert not any("h100" in token or b"h100".hex() in token for token in own)


# ---- by window -----------------------------------------------------------------------------------------------------


def test_a_lease_has_a_row_for_each_of_its_windows() -> None:
    """Of windows of different lengths, each tenant's from its own hour on."""
    long, short = a_lease(0, 0, hours=(100.0, 600.0)), a_lease(1, 0, hours=(340.0, 400.0))
    since = {long.tenant: 0.0, short.tenant: 168.0}
    rows = Slices.by_window(since, [long, short], (0, 168, 504), EDGES)
    assert list(rows.leases) == [long, long, short]
    assert rows.spans.tolist() == [[0, 168], [168, 504], [168, 504]]
    assert rows.node_hours.sum(axis=1).tolist() == [68.0, 336.0, 60.0]
    assert Slices.by_window({}, [long], (0, 168, 504), EDGES).node_hours.shape == (0, len(EDGES) - 1)


@given(held=leases, first=st.integers(0, 300), windows=st.lists(st.integers(1, 399), max_size=4, unique=True))
def test_windows_hold_every_hour_of_a_lease_once(held: list[Lease], first: int, windows: list[int]) -> None:
    since = {keys().tenant_id(0): float(first)}
    rows = Slices.by_window(since, held, (0, *sorted(windows), 400), EDGES)
    whole = Slices.since(since, held, 400, EDGES)
    assert rows.node_hours.sum(axis=0).tolist() == pytest.approx(whole.node_hours.sum(axis=0).tolist())
