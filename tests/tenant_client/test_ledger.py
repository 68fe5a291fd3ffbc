"""The budget: charged before anything is drawn, once per round, per week, and for good."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from crypto.errors import BudgetExceeded, PlanRefused
from crypto.ids import Digest, RoundId
from federation.protocol.noise import Integers, SystemSampler
from federation.protocol.plan import HOURS_PER_WEEK, LONGEST_HORIZON, Plan, Series
from federation.protocol.privacy_cost import NO_LOSS, PrivacyLoss, plan_loss
from federation.runtime.sqlite import Connection
from tenant_client.records.database import SCHEMA, open_database
from tenant_client.records.ledger import Charge, Ledger, weeks_of
from tests.support.changing import replace
from tests.support.factories import WEEK, Cast, a_plan, signed

DELTA = 1e-8
LOSS = PrivacyLoss(0.0, 0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tenant.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with closing(open_database(path)) as connection:
        yield Ledger(connection)


def a_charge(number: int, start_h: int = 0, end_h: int = 168, loss: PrivacyLoss = LOSS, plan: int = 0) -> Charge:
    return Charge(RoundId(number.to_bytes(16)), Digest(plan.to_bytes(32)), start_h, end_h, loss)


def pay(ledger: Ledger, charge: Charge, limit_epsilon: float = 100.0) -> None:
    ledger.charge(charge, limit_epsilon=limit_epsilon, delta=DELTA)


def test_noise_is_drawn_only_when_another_connection_already_sees_the_charge(cast: Cast) -> None:
    seen: list[list[Charge]] = []

    class Onlooker(SystemSampler):
        def gaussian(self, scale: float, size: int) -> Integers:
            with closing(open_database(cast.root / "tenant-0.db")) as other:
                seen.append(Ledger(other).charges())
            return super().gaussian(scale, size)

    plan = a_plan()
    cast.tenant(sampler=Onlooker()).contribute(signed(plan))
    assert len(seen) == len(plan.marginals)
    assert all([charge.loss for charge in charges] == [plan_loss(plan)] for charges in seen)


def test_a_round_is_charged_once_however_often_it_is_asked_for(ledger: Ledger) -> None:
    for _ in range(3):
        pay(ledger, a_charge(1), limit_epsilon=LOSS.at(DELTA))
    assert ledger.charges() == [a_charge(1)]
    assert ledger.spent(*WEEK) == LOSS


def test_a_round_is_charged_for_one_plan_only(ledger: Ledger) -> None:
    pay(ledger, a_charge(1, plan=1))
    with pytest.raises(PlanRefused, match="answered for another plan") as refusal:
        pay(ledger, a_charge(1, plan=2))
    assert "new round id" in refusal.value.diagnostics()
    assert ledger.charges() == [a_charge(1, plan=1)]


def test_charges_over_one_week_add_up_and_over_two_weeks_do_not(ledger: Ledger) -> None:
    for charge in (a_charge(1), a_charge(2), a_charge(3, 168, 336)):
        pay(ledger, charge)
    assert ledger.spent(0, 168) == LOSS + LOSS
    assert ledger.spent(168, 336) == LOSS
    assert ledger.spent(336, 504) == NO_LOSS


def test_a_job_week_pays_for_a_long_window_and_its_own_week_but_not_for_other_weeks(ledger: Ledger) -> None:
    for charge in (a_charge(1, 0, 168), a_charge(2, 168, 336), a_charge(3, 0, 336)):
        pay(ledger, charge)
    assert ledger.spent(0, 336) == LOSS + LOSS


def test_a_week_cannot_be_cut_into_plans_that_each_have_a_budget_of_their_own(ledger: Ledger) -> None:
    limit = (LOSS + LOSS).at(DELTA)
    pay(ledger, a_charge(1, 0, 24), limit)
    pay(ledger, a_charge(2, 24, 48), limit)
    with pytest.raises(BudgetExceeded):
        pay(ledger, a_charge(3, 48, 72), limit)
    pay(ledger, a_charge(4, 168, 192), limit)


@given(
    windows=st.lists(st.tuples(st.integers(0, 800), st.integers(1, 500)), max_size=8),
    asked=st.tuples(st.integers(0, 800), st.integers(1, 500)),
)
def test_what_was_spent_is_the_dearest_of_the_weeks(windows: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    charges = [
        a_charge(number, start, start + hours, PrivacyLoss(float(number), 2.0**number))
        for number, (start, hours) in enumerate(windows)
    ]
    with closing(Connection(":memory:")) as connection:
        connection.executescript(SCHEMA)
        ledger = Ledger(connection)
        for charge in charges:
            pay(ledger, charge, limit_epsilon=1e9)
        spent = ledger.spent(asked[0], sum(asked))
    by_week = [
        [charge.loss for charge in charges if any(hour // HOURS_PER_WEEK == week for hour in hours_of(charge))]
        for week in {hour // HOURS_PER_WEEK for hour in range(asked[0], sum(asked))}
    ]
    assert spent.epsilon == max(sum(loss.epsilon for loss in week) for week in by_week)
    assert spent.rho == max(sum(loss.rho for loss in week) for week in by_week)


def hours_of(charge: Charge) -> range:
    return range(charge.start_h, charge.end_h)


def test_a_window_ends_before_its_last_hour() -> None:
    assert weeks_of(0, 168) == range(1)
    assert weeks_of(0, 169) == range(2)
    assert weeks_of(167, 168) == range(1)
    assert weeks_of(168, 336) == range(1, 2)


def test_the_limit_itself_is_allowed_and_the_next_float_below_it_is_not(ledger: Ledger) -> None:
    cost = LOSS.at(DELTA)
    with pytest.raises(BudgetExceeded, match=r"hours 0–168 would have spent epsilon .* the limit is .* delta 1e-08"):
        pay(ledger, a_charge(1), limit_epsilon=math.nextafter(cost, 0))
    pay(ledger, a_charge(1), limit_epsilon=cost)


def test_an_exceeded_budget_writes_nothing(ledger: Ledger, path: Path) -> None:
    pay(ledger, a_charge(1))
    with pytest.raises(BudgetExceeded) as refusal:
        pay(ledger, a_charge(2), limit_epsilon=LOSS.at(DELTA) * 1.01)
    assert "nothing was spent" in refusal.value.diagnostics()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT round_id FROM charges").fetchall() == [(bytes(a_charge(1).round_id),)]
    pay(ledger, a_charge(2, 168, 336), limit_epsilon=LOSS.at(DELTA) * 1.01)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE charges SET rho = 0",
        "UPDATE OR REPLACE charges SET round_id = x'00'",
        "DELETE FROM charges",
        "INSERT OR REPLACE INTO charges SELECT round_id, plan, start_h, end_h, 0, 0 FROM charges",
        "INSERT INTO charges SELECT * FROM charges WHERE true ON CONFLICT (round_id) DO UPDATE SET rho = 0",
    ],
)
def test_the_database_refuses_to_forget_a_charge(ledger: Ledger, path: Path, statement: str) -> None:
    pay(ledger, a_charge(1))
    with closing(sqlite3.connect(path)) as other, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        other.execute(statement)
    assert ledger.charges() == [a_charge(1)]


def test_charges_survive_reopening(ledger: Ledger, path: Path) -> None:
    pay(ledger, a_charge(1))
    with closing(open_database(path)) as later:
        assert Ledger(later).charges() == [a_charge(1)]
        with pytest.raises(BudgetExceeded):
            pay(Ledger(later), a_charge(2), limit_epsilon=LOSS.at(DELTA))


# ---- series --------------------------------------------------------------------------------------------------------

SERIES = RoundId(bytes(15) + b"s")
ALL = LONGEST_HORIZON  # weeks that may be carried over


def in_series(number: int, start_h: int, end_h: int, series: RoundId | None = SERIES) -> Charge:
    return replace(a_charge(number, start_h, end_h), series=series)


def a_round_of_the_series(number: int, week: int, series: RoundId = SERIES) -> Plan:
    window = (168 * week, 168 * week + 168)
    plan = a_plan(number, window=window)
    return replace(plan, series=Series(series, 0, tuple(range(1, 14)), week))


def test_a_charge_keeps_the_name_of_its_series(path: Path) -> None:
    with closing(open_database(path)) as connection:
        pay(Ledger(connection), in_series(1, 0, 168))
        pay(Ledger(connection), a_charge(2, 168, 336))
    with closing(open_database(path)) as connection:
        assert [charge.series for charge in Ledger(connection).charges()] == [SERIES, None]


def test_an_answer_begins_where_the_answers_of_its_own_series_end(ledger: Ledger) -> None:
    late = a_round_of_the_series(9, 4)
    assert ledger.begins(late, ALL) == 0
    pay(ledger, in_series(1, 0, 168))
    assert ledger.begins(late, ALL) == 168
    pay(ledger, in_series(2, 168, 504))
    assert ledger.begins(late, ALL) == 504
    for other in (None, RoundId(bytes(16))):
        pay(ledger, in_series(3 if other else 4, 504, 672, other))
    assert ledger.begins(late, ALL) == 504  # what other series have paid for is not answered in this one
    assert ledger.begins(a_round_of_the_series(9, 4, RoundId(bytes(16))), ALL) == 672
    assert ledger.begins(a_plan(9, window=(672, 840)), ALL) == 672


def test_an_answer_that_was_charged_begins_where_it_did_then(ledger: Ledger) -> None:
    late = a_round_of_the_series(9, 2)
    pay(ledger, in_series(1, 0, 168))
    pay(ledger, replace(in_series(2, 168, 504), round_id=late.round_id))
    assert ledger.begins(late, ALL) == 168
    assert ledger.begins(a_round_of_the_series(8, 3), ALL) == 504


@pytest.mark.parametrize(("weeks", "begins"), [(0, 4), (1, 3), (3, 1), (4, 0), (5, 0), (ALL, 0)])
def test_no_more_weeks_are_carried_over_than_the_policy_allows(ledger: Ledger, weeks: int, begins: int) -> None:
    assert ledger.begins(a_round_of_the_series(9, 4), weeks) == 168 * begins
    assert ledger.begins(a_plan(9, window=(672, 840)), weeks) == 672  # alone, a round counts its own week


def test_weeks_that_were_answered_for_are_not_carried_over_whatever_the_policy_allows(ledger: Ledger) -> None:
    pay(ledger, in_series(1, 0, 504))
    for weeks, begins in ((0, 672), (1, 504), (2, 504), (ALL, 504)):
        assert ledger.begins(a_round_of_the_series(9, 4), weeks) == begins
    late = a_round_of_the_series(8, 4)
    pay(ledger, replace(in_series(2, 504, 840), round_id=late.round_id))
    assert ledger.begins(late, 0) == 504  # once charged, it stays so under a stricter policy too


def test_weeks_that_are_carried_over_pay_each_for_itself(ledger: Ledger) -> None:
    """A charge over three weeks takes its loss from each of them once, and from no other."""
    pay(ledger, in_series(1, 0, 504), limit_epsilon=LOSS.at(DELTA))
    for week in range(3):
        assert ledger.spent(168 * week, 168 * week + 168) == LOSS
        with pytest.raises(BudgetExceeded):
            pay(ledger, a_charge(2, 168 * week, 168 * week + 168), limit_epsilon=LOSS.at(DELTA))
    assert ledger.spent(504, 672) == NO_LOSS
    pay(ledger, in_series(3, 504, 672), limit_epsilon=LOSS.at(DELTA))
