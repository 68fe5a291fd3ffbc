"""The gate: what comes out is what went in, plus the noise that it states, and it never changes."""

from collections.abc import Iterator
from contextlib import closing
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from crypto.codec import encode
from crypto.errors import CohortTooSmall, DecodeError
from federation.protocol.causes import CAUSES
from federation.protocol.life_table import LifeTable
from federation.protocol.noise import NoiseSampler, noise_variances, to_ring
from federation.protocol.plan import Mechanism, Plan
from provider_server.fleet.exposure import Slices, expose
from provider_server.fleet.release import Answered, Release, StoredRelease, from_bytes, to_bytes
from provider_server.rounds.opening import release
from provider_server.rounds.store.store import Store
from tests.support.changing import replace
from tests.support.factories import (
    COHORT,
    POLICY,
    TENANTS,
    WEEK,
    Cast,
    InsecureSilence,
    a_failure,
    a_plan,
    a_round,
    a_unit,
    all_leases,
    close,
    endorse_all,
    keys,
    share_all,
)
from tests.support.plans import InsecureSeeded

GENEROUS = replace(POLICY, epsilon_per_window=1000.0)
COHORTS = [cohort for size in range(COHORT, TENANTS + 1) for cohort in combinations(range(TENANTS), size)]


def exposed(plan: Plan) -> tuple[LifeTable, ...]:
    return expose(plan, Slices.of(all_leases(), *WEEK, plan.band_edges_hours))


def answered(size: int, start_hour: int = 0) -> tuple[Answered, ...]:
    return tuple(Answered(keys().tenant_id(tenant), start_hour) for tenant in range(size))


def played(cast: Cast, plan: Plan, cohort: tuple[int, ...], sampler: NoiseSampler) -> Release:
    """A round in which only `cohort` answers, from journal to release. Its trustees have not seen the window before."""
    apart = cast.root / str(plan.round_id)
    apart.mkdir()
    with closing(Store(apart / "provider.db")) as store, closing(Cast(apart)) as others:
        round_ = a_round(plan, store.rounds)
        for number in cohort:
            round_.receive(cast.tenant(number, policy=GENEROUS, sampler=sampler).contribute(round_.signed_plan))
        close(round_)
        trustees = {index: others.trustee(index) for index in (1, *(masking.index for masking in plan.trustees))}
        endorse_all(round_, trustees)
        share_all(round_, trustees)
        (total,) = round_.open()
        return release(plan, total, answered(len(round_.contributors)), exposed(plan))


def journalled(cast: Cast) -> None:
    """Every tenant has leases of its own and failures of many kinds, some of them more than F."""
    rng = np.random.default_rng(11)
    for number in range(TENANTS):
        units = [a_unit(lease, lease % 2, lease // 2 % 2, number) for lease in range(20)]
        happened = [a_failure(unit, *drawn(rng)) for unit in units for _ in range(rng.integers(4))]
        cast.tenant(number).journal.add(units, happened)


def drawn(rng: np.random.Generator) -> tuple[float, str]:
    return float(rng.uniform(0, 168)), str(rng.choice([*CAUSES, "unknown"]))


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cast]:
    with closing(Cast(tmp_path_factory.mktemp("busy"))) as parties:
        journalled(parties)
        yield parties


# ---- exactness -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(COHORTS)), ids=lambda number: "".join(map(str, COHORTS[number])))
def test_without_noise_a_release_is_the_exact_sum_for_every_pattern_of_drop_outs(busy: Cast, number: int) -> None:
    plan = a_plan(number + 100)
    made = played(busy, plan, COHORTS[number], InsecureSilence())
    counted = [busy.tenant(tenant).counts(plan) for tenant in COHORTS[number]]
    for table, exact in zip(made.tables, zip(*counted, strict=True), strict=True):
        np.testing.assert_array_equal(table.events, np.sum(exact, axis=0))
        assert table.events.sum() > 0
    assert made.contributors == len(COHORTS[number])


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_with_noise_a_release_is_off_by_what_it_says(cast: Cast, mechanism: Mechanism) -> None:
    """Nothing failed, and there are 3,000 cells: noise 30% too wide or too narrow is beyond the bounds."""
    errors = np.concatenate([relative_errors(cast, mechanism, number) for number in (1, 2)])
    assert errors.size == 2 * (2 * 250 * 3)
    assert abs(np.mean(errors)) < 5 / np.sqrt(errors.size)
    kurtosis = 3.0 if mechanism is Mechanism.DISCRETE_GAUSSIAN else 6.0
    bound = 5 * np.sqrt((kurtosis - 1) / errors.size)
    assert abs(np.mean(errors**2) - 1) < bound
    assert all(abs(factor**2 * np.mean(errors**2) - 1) > bound for factor in (0.7, 1.3))


def relative_errors(
    cast: Cast, mechanism: Mechanism, number: int
) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    plan = a_plan(number, mechanism=mechanism, band_edges_hours=tuple(map(float, range(251))), epsilon=1.0)
    table = played(cast, plan, (0, 1, 2), InsecureSeeded(4 + number)).table("hazard")
    return (table.events / np.sqrt(table.noise_variance)).ravel()


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_the_stated_variance_counts_every_share_that_came(mechanism: Mechanism) -> None:
    plan = a_plan(7, mechanism=mechanism)
    few, many = (
        variances(release(plan, to_ring(plan, nothing(plan)), answered(size), exposed(plan))) for size in (3, 5)
    )
    whole = np.array([variance_of(mechanism, marginal.noise_scale) for marginal in plan.marginals])
    assert few == pytest.approx(1.5 * whole)  # each of two shares is the whole
    assert many == pytest.approx(2.5 * whole)


def variance_of(mechanism: Mechanism, scale: float) -> float:
    """Of the whole noise: σ², or that of a discrete Laplace variable of scale b, 2q/(1 - q)² with q = exp(-1/b)."""
    ratio = np.exp(-1 / scale)
    return scale**2 if mechanism is Mechanism.DISCRETE_GAUSSIAN else float(2 * ratio / (1 - ratio) ** 2)


def test_negative_and_fractional_counts_come_through() -> None:
    plan = a_plan(7, mechanism=Mechanism.DISCRETE_GAUSSIAN)
    total = to_ring(plan, [table - 3 for table in nothing(plan)])
    made = release(plan, total + np.uint64(64), answered(COHORT), exposed(plan))
    assert all(set(table.events.ravel()) == {-2.75} for table in made.tables)


def test_exposure_passes_through_untouched() -> None:
    plan = a_plan(7)
    made = release(plan, to_ring(plan, nothing(plan)), answered(COHORT), exposed(plan))
    for table, given in zip(made.tables, exposed(plan), strict=True):
        np.testing.assert_array_equal(table.exposure_node_hours, given.exposure_node_hours)
        np.testing.assert_array_equal(table.at_risk, given.at_risk)
        assert table.dimensions == given.dimensions


def nothing(plan: Plan) -> list["np.ndarray[tuple[int, ...], np.dtype[np.int64]]"]:
    return [np.zeros(table.shape, np.int64) for table in plan.tables]


def variances(made: Release) -> list[float]:
    assert all(len(set(table.noise_variance.ravel())) == 1 for table in made.tables)
    return [float(table.noise_variance.ravel()[0]) for table in made.tables]


# ---- refusing ------------------------------------------------------------------------------------------------------


def test_a_sum_of_too_few_never_passes_and_the_minimum_does() -> None:
    plan = a_plan()
    total = to_ring(plan, nothing(plan))
    with pytest.raises(CohortTooSmall, match="a sum of 2 contributions is never released"):
        release(plan, total, answered(COHORT - 1), exposed(plan))
    assert release(plan, total, answered(COHORT), exposed(plan)).contributors == COHORT


def test_tables_are_found_by_the_name_of_their_marginal() -> None:
    plan = a_plan()
    made = release(plan, to_ring(plan, nothing(plan)), answered(COHORT), exposed(plan))
    for marginal, table in zip(plan.marginals, made.tables, strict=True):
        assert made.table(marginal.name) is table
    with pytest.raises(KeyError):
        made.table("cube")


# ---- keeping -------------------------------------------------------------------------------------------------------


def a_release(number: int = 1) -> Release:
    """Every number in it is different, so that none can take another's place."""
    plan = a_plan(number)
    rng = np.random.default_rng(number)
    tables = []
    for empty, variance in zip(plan.tables, noise_variances(plan, 4), strict=True):
        events, exposure, at_risk = rng.normal(size=(3, *empty.shape))
        tables.append(LifeTable(empty.dimensions, events, exposure, at_risk, np.full(empty.shape, variance)))
    return Release(plan, answered(4, 3), tuple(tables), number + 3)


@pytest.mark.parametrize("number", [1, 2])
def test_a_release_comes_back_as_it_was_stored(number: int) -> None:
    made = a_release(number)
    back = from_bytes(to_bytes(made))
    assert (back.plan, back.answered) == (made.plan, made.answered)
    assert back.smallest_group == made.smallest_group == number + 3
    for mine, theirs in zip(made.tables, back.tables, strict=True):
        assert mine.dimensions == theirs.dimensions
        for name in ("events", "exposure_node_hours", "at_risk", "noise_variance"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    assert to_bytes(back) == to_bytes(made)


COLUMNS = ("events", "exposure_node_hours", "at_risk", "noise_variance")


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("change", [lambda column: column[:-8], lambda column: column + bytes(8), lambda _: b"\0" * 7])
def test_a_stored_release_that_does_not_fit_its_plan_is_not_read(name: str, change: object) -> None:
    assert callable(change)
    columns: dict[str, Any] = {key: bytes(8 * a_plan().cells) for key in COLUMNS}
    from_bytes(encode(StoredRelease(encode(a_plan()), answered(4), smallest_group=4, **columns)))
    columns[name] = change(columns[name])
    with pytest.raises(DecodeError):
        from_bytes(encode(StoredRelease(encode(a_plan()), answered(4), smallest_group=4, **columns)))


def test_anything_else_is_not_a_release() -> None:
    for data in (
        b"",
        to_bytes(a_release())[:-1],
        encode(a_plan()),
        encode(StoredRelease(b"", (), b"", b"", b"", b"", 4)),
    ):
        with pytest.raises(DecodeError):
            from_bytes(data)
