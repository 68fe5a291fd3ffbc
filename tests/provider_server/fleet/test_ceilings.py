"""Ceilings: exact in small cases, and no honest journal ever exceeds one."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from crypto.ids import Digest, LeaseId, RoundId, TenantId
from crypto.masking import MaskKey
from federation.protocol.causes import CAUSES, Domain
from federation.protocol.plan import Marginal, MaskTrustee, Mechanism, Plan, PlanDimension
from provider_server.fleet.leases import Lease
from provider_server.rounds.ceilings import Units, units_of
from tenant_client.doctor.records.journal import Failure, LabelledFailure
from tenant_client.rounds.counts import build_tables
from tests.support.changing import replace

ONE, TWO = TenantId(bytes(15) + b"\1"), TenantId(bytes(15) + b"\2")
WEEK = (168, 336)
ROWS = ("a", "b", "family")


def a_plan(failures_per_unit: int = 1) -> Plan:
    """Three marginals: by row and reason, by row, band and domain, and by band with failures of one domain only."""
    return Plan(
        round_id=RoundId(bytes(16)),
        directory=Digest(bytes(32)),
        epoch=0,
        start_hour=WEEK[0],
        end_hour=WEEK[1],
        windows=(0, *WEEK, 504),
        dimensions=(
            PlanDimension("workload", ROWS, (5, 5, 5)),
            PlanDimension("band", ("0", "1", "2"), ()),
            PlanDimension("domain", tuple(Domain), ()),
            PlanDimension("reason", tuple(CAUSES), ()),
        ),
        band_edges_hours=(0.0, 8.0, 48.0, 500.0),
        marginals=(
            Marginal("reasons", ("workload", "reason"), (), 3.0),
            Marginal("hazard", ("domain", "band", "workload"), (), 3.0),
            Marginal("young", ("band", "domain"), (Domain.INFRASTRUCTURE,), 3.0),
        ),
        failures_per_unit=failures_per_unit,
        mechanism=Mechanism.DISCRETE_GAUSSIAN,
        epsilon=1.0,
        delta=1e-8,
        owners_minimum=5,
        cohort_minimum=5,
        noise_shares=4,
        trustees=(MaskTrustee(1, MaskKey(bytes(32)).public),),
    )


def a_lease(number: int, start_h: float, end_h: float, row: str = "a", tenant: TenantId = ONE) -> Lease:
    return Lease(LeaseId(number.to_bytes(16)), tenant, 4, start_h, end_h, {"subarchetype": row, "family": "family"})


def counted(leases: Sequence[Lease], plan: Plan | None = None, first: int = WEEK[0]) -> Units:
    return units_of(plan or a_plan(), leases, dict.fromkeys((ONE, TWO), float(first)), slack_h=0.0)


# ---- exact cases ---------------------------------------------------------------------------------------------------


def test_a_lease_counts_in_its_row_the_bands_that_it_reaches_and_every_kind_of_failure() -> None:
    held = counted([a_lease(1, 200.0, 220.0), a_lease(2, 300.0, 304.0, row="rare")])
    reasons, hazard, young = held.ceiling([ONE]).cells
    assert reasons.sum(axis=1).tolist() == [len(CAUSES), 0, len(CAUSES)]  # a rare workload counts under its family
    assert hazard[0].T.tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 0]]  # 20 hours end in the second band, 4 in the first
    assert all((hazard[level] == hazard[0]).all() for level in range(len(Domain)))
    assert young[:, list(Domain).index(Domain.INFRASTRUCTURE)].tolist() == [2, 1, 0]
    assert young.sum() == 3  # a marginal of one domain has no room for the others


def test_a_unit_counts_once_in_a_whole_marginal_however_many_cells_are_open_to_it() -> None:
    held = counted([a_lease(1, 200.0, 320.0)], a_plan(failures_per_unit=3))
    ceiling = held.ceiling([ONE, TWO])
    assert ceiling.totals == (3.0, 3.0, 3.0)
    assert ceiling.cells[1].sum() == 3 * 3 * len(Domain)


def test_windows_that_waited_raise_the_ceiling_of_who_counts_them() -> None:
    old = a_lease(1, 10.0, 400.0)
    assert counted([old]).ceiling([ONE]).totals[0] == 1
    assert counted([old], first=0).ceiling([ONE]).totals[0] == 2
    young = counted([old], first=0).ceiling([ONE]).cells[2][:, list(Domain).index(Domain.INFRASTRUCTURE)]
    assert young.tolist() == [1, 1, 2]  # it was young in the first window only
    both = [old, replace(old, tenant=TWO)]
    one_missed_it = units_of(a_plan(), both, {ONE: 168.0, TWO: 0.0})
    assert [one_missed_it.ceiling([member]).totals[0] for member in (ONE, TWO)] == [1, 2]


def test_members_add_up_and_a_stranger_is_an_error() -> None:
    held = counted([a_lease(1, 200.0, 201.0), a_lease(2, 200.0, 201.0, tenant=TWO), a_lease(3, 0.0, 100.0, tenant=TWO)])
    assert held.ceiling([ONE]).totals[0] == held.ceiling([TWO]).totals[0] == 1  # the third was over before the window
    assert held.ceiling([TWO, ONE]).totals[0] == 2
    assert held.ceiling([]).totals[0] == 0
    with pytest.raises(KeyError):
        held.ceiling([TenantId(bytes(16))])


def test_slack_admits_a_failure_that_is_noticed_after_the_end_of_its_lease() -> None:
    ended = [a_lease(1, 100.0, 167.9)]
    assert counted(ended).ceiling([ONE]).totals[0] == 0
    assert units_of(a_plan(), ended, {ONE: float(WEEK[0])}).ceiling([ONE]).totals[0] == 1


def test_no_leases_no_failures() -> None:
    assert all(not cells.any() for cells in counted([]).ceiling([ONE, TWO]).cells)


# ---- no honest contribution exceeds its ceiling --------------------------------------------------------------------

quarters = st.integers(0, 4 * 336).map(lambda quarter: quarter / 4)
journals = st.lists(
    st.tuples(
        quarters,
        st.integers(0, 1000).map(lambda quarter: quarter / 4),
        st.sampled_from([*ROWS, "rare"]),
        st.lists(st.tuples(st.floats(0, 1), st.sampled_from([*CAUSES, "unheard of"])), max_size=4),
    ),
    max_size=12,
)


@given(journal=journals, most=st.integers(1, 3), first=st.sampled_from([0, 168]))
def test_an_honest_journal_stays_below_every_ceiling(
    journal: list[tuple[float, float, str, list[tuple[float, str]]]], most: int, first: int
) -> None:
    """Failures at any moment of a lease, its first and last included; quarters hit edges of bands and windows."""
    plan, leases, failures = a_plan(most), [], []
    for number, (start, hours, row, happened) in enumerate(journal):
        lease = a_lease(number, start, start + hours, row)
        leases.append(lease)
        for moment, reason in happened:
            age = round(moment * hours * 4) / 4
            if first <= start + age < WEEK[1]:
                failure = Failure(str(lease.lease), start + age, age, reason)
                failures.append(LabelledFailure(failure, lease.labels))
    honest = build_tables(plan, failures, bytes(32))
    ceiling = counted(leases, plan, first).ceiling([ONE])
    for counts, cells, total in zip(honest, ceiling.cells, ceiling.totals, strict=True):
        assert (counts <= cells).all()
        assert counts.sum() <= total


def test_one_failure_too_many_is_above_the_ceiling() -> None:
    """The bound is reached, so the property above could fail."""
    lease, plan = a_lease(1, 200.0, 201.0), a_plan()
    failure = LabelledFailure(Failure(str(lease.lease), 200.5, 0.5, "nvlink_error"), lease.labels)
    honest = build_tables(plan, [failure], bytes(32))
    lying = build_tables(plan, [failure, replace(failure, failure=replace(failure.failure, unit="x"))], bytes(32))
    cells, totals = counted([lease]).ceiling([ONE]).cells, counted([lease]).ceiling([ONE]).totals
    assert [int(counts.sum()) for counts in honest] == list(totals)
    assert all((counts > most).any() for counts, most in zip(lying, cells, strict=True))
    assert all(counts.sum() > total for counts, total in zip(lying, totals, strict=True))


@pytest.mark.nightly
def test_a_hundred_thousand_leases_are_counted_as_one_by_one() -> None:
    rng = np.random.default_rng(1)
    starts, hours, rows = rng.uniform(0, 400, 100_000), rng.exponential(30, 100_000), rng.integers(0, 3, 100_000)
    leases = [
        a_lease(number, start, start + long, ROWS[row], (ONE, TWO)[number % 2])
        for number, (start, long, row) in enumerate(zip(starts.tolist(), hours.tolist(), rows.tolist(), strict=True))
    ]
    ceiling = counted(leases).ceiling([ONE])
    inside = (starts <= WEEK[1]) & (starts + hours >= WEEK[0]) & (np.arange(100_000) % 2 == 0)
    assert ceiling.totals[0] == inside.sum()
    for row in range(3):
        assert (ceiling.cells[0][row] == (inside & (rows == row)).sum()).all()
