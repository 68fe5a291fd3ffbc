"""The budget: charged before anything is drawn, once per round, given back if nothing was opened, and kept."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from crypto.errors import BudgetExceeded, PlanRefused
from crypto.ids import Digest, RoundId, TenantId
from federation.base.sqlite import Connection
from federation.protocol.endorsed import EndorsedSet
from federation.protocol.noise import Integers, SystemSampler
from federation.protocol.privacy_cost import NO_LOSS, PrivacyLoss, plan_loss
from tenant_client.doctor.records.database import SCHEMA, open_database
from tenant_client.doctor.records.ledger import Charge, Ledger
from tests.support.changing import replace
from tests.support.factories import WEEK, Cast, a_plan, signed

DELTA = 1e-8
LOSS = PrivacyLoss(0.0, 0.01)
PLAN = a_plan()  # the windows of its epoch are thirteen weeks


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
    ledger.charge(charge, PLAN, limit_epsilon=limit_epsilon, delta=DELTA)


def test_noise_is_drawn_only_when_another_connection_already_sees_the_charge(cast: Cast) -> None:
    seen: list[list[Charge]] = []

    class Onlooker(SystemSampler):
        def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
            with closing(open_database(cast.root / "tenant-0.db")) as other:
                seen.append(Ledger(other).charges())
            return super().laplace_share(scale, shares, size)

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


def test_charges_over_one_window_add_up_and_over_two_windows_do_not(ledger: Ledger) -> None:
    for charge in (a_charge(1), a_charge(2), a_charge(3, 168, 336)):
        pay(ledger, charge)
    assert ledger.spent(0, 168) == LOSS + LOSS
    assert ledger.spent(168, 336) == LOSS
    assert ledger.spent(336, 504) == NO_LOSS


def test_an_answer_that_counts_several_windows_pays_once_in_each(ledger: Ledger) -> None:
    limit = LOSS.at(DELTA)
    pay(ledger, a_charge(1, 0, 504), limit)
    for week in range(3):
        assert ledger.spent(168 * week, 168 * week + 168) == LOSS
        with pytest.raises(BudgetExceeded):
            pay(ledger, a_charge(2, 168 * week, 168 * week + 168), limit)
    pay(ledger, a_charge(3, 504, 672), limit)
    assert ledger.windows() == list(pairwise(range(0, 673, 168)))


@given(
    windows=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5), st.booleans()), max_size=8),
    asked=st.tuples(st.integers(0, 12), st.integers(1, 5)),
)
def test_what_was_spent_is_the_dearest_of_the_windows(
    windows: list[tuple[int, int, bool]], asked: tuple[int, int]
) -> None:
    charges = [
        a_charge(number, 168 * first, 168 * (first + many), PrivacyLoss(float(number), 2.0**number))
        for number, (first, many, _) in enumerate(windows)
    ]
    opened = [charge for charge, (_, _, is_opened) in zip(charges, windows, strict=True) if is_opened]
    with closing(Connection(":memory:")) as connection:
        connection.executescript(SCHEMA)
        ledger = Ledger(connection)
        for charge in charges:
            pay(ledger, charge, limit_epsilon=1e9)
            if charge not in opened:
                ledger.give_back(charge.round_id, a_set(charge.round_id))
        spent = ledger.spent(168 * asked[0], 168 * sum(asked))
    by_window = [
        [charge.loss for charge in opened if charge.start_h <= 168 * week < charge.end_h]
        for week in range(asked[0], sum(asked))
    ]
    assert spent.epsilon == max(sum(loss.epsilon for loss in window) for window in by_window)
    assert spent.rho == max(sum(loss.rho for loss in window) for window in by_window)


def test_an_epoch_keeps_the_windows_of_the_first_plan_that_was_charged_in_it(ledger: Ledger, path: Path) -> None:
    """Or a lease would be in a window of each of them, and pay in each as if it were not in the other."""
    pay(ledger, a_charge(1))
    other = replace(PLAN, windows=(0, 168, 500))
    with pytest.raises(PlanRefused, match="its windows of epoch 0 are not those of an earlier plan"):
        ledger.charge(a_charge(2, 168, 500), other, limit_epsilon=100.0, delta=DELTA)
    assert ledger.charges() == [a_charge(1)]
    ledger.charge(a_charge(2, 168, 500), replace(other, epoch=1), limit_epsilon=100.0, delta=DELTA)
    with closing(open_database(path)) as later, pytest.raises(PlanRefused, match="not those of an earlier plan"):
        Ledger(later).charge(a_charge(3), replace(PLAN, epoch=1), limit_epsilon=100.0, delta=DELTA)


# ---- endorsed sets -------------------------------------------------------------------------------------------------


def a_set(round_id: RoundId, *tenants: TenantId, window: tuple[int, int] = WEEK) -> EndorsedSet:
    return EndorsedSet(round_id, Digest(bytes(32)), 0, *window, tenants)


def test_what_is_given_back_is_paid_again_at_the_same_price(ledger: Ledger) -> None:
    limit, first = LOSS.at(DELTA), a_charge(1)
    pay(ledger, first, limit)
    for _ in range(2):
        ledger.give_back(first.round_id, a_set(first.round_id))
    assert ledger.spent(*WEEK) == NO_LOSS
    pay(ledger, a_charge(2, 0, 336), limit)
    assert [charge.is_given_back for charge in ledger.charges()] == [True, False]
    assert ledger.spent(*WEEK) == ledger.spent(168, 336) == LOSS
    with pytest.raises(BudgetExceeded):
        pay(ledger, a_charge(3), limit)


def test_a_round_that_was_never_charged_gives_nothing_back(ledger: Ledger) -> None:
    pay(ledger, a_charge(1))
    ledger.give_back(a_charge(2).round_id, a_set(a_charge(2).round_id))
    assert ledger.spent(*WEEK) == LOSS
    pay(ledger, a_charge(2))
    assert ledger.spent(*WEEK) == LOSS + LOSS


def test_a_round_that_the_ledger_has_forgotten_is_charged_all_that_a_window_may_cost(ledger: Ledger) -> None:
    pay(ledger, a_charge(1))
    for number in (1, 2):
        forgotten = a_set(a_charge(number).round_id, window=(0, 168 * number))
        for _ in range(2):
            ledger.remember(forgotten, 168 * (number - 1), 1.0)
    assert [(charge.start_h, charge.end_h, charge.loss.epsilon) for charge in ledger.charges()] == [
        (0, 168, 0.0),
        (168, 336, 1.0),
    ]
    with pytest.raises(BudgetExceeded):
        pay(ledger, a_charge(3, 168, 336), 1.0)


def test_the_limit_itself_is_allowed_and_the_next_float_below_it_is_not(ledger: Ledger) -> None:
    cost = LOSS.at(DELTA)
    with pytest.raises(BudgetExceeded, match=r"to 1970-01-08 would have spent epsilon .* the limit is .* delta 1e-08"):
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
