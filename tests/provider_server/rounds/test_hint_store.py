"""Hints are numbered on and on, not lost or repeated whoever is killed or put back, on SQLite and on PostgreSQL."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crypto.codec import encode
from crypto.errors import NotYours
from crypto.ids import LeaseId, TenantId
from federation.protocol.service_messages import Action, Hint, HintState, Outcome, Suspicion
from provider_server.fleet.hints.episodes import Draft
from provider_server.rounds.store.hint_store import KEPT_H, HintStore
from provider_server.rounds.store.round_store import LostStep
from provider_server.rounds.store.store import Store
from tenant_client.doctor.advice.hints import HintLog
from tenant_client.doctor.records.database import open_database
from tests.support.changing import replace
from tests.support.copies import copy, put_back, rows
from tests.support.deaths_of_hints import TENANTS, look_at_all
from tests.support.factories import NO_SIGNATURE, a_lease, keys, lease_id
from tests.support.postgres import Server

ROOT = Path(__file__).resolve().parents[3]
ON_POSTGRESQL = pytest.mark.xdist_group("postgresql")
BOTH = ["sqlite", pytest.param("postgresql", marks=ON_POSTGRESQL)]
SECRET = b"canary-session-" * 4 + b"1234"


@pytest.fixture(params=BOTH)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes the URL of an empty store."""
    count = iter(range(10_000))
    if request.param == "sqlite":
        return lambda: f"sqlite:///{tmp_path}/{next(count)}.db"
    server: Server = request.getfixturevalue("postgresql")
    return server.new_place


@pytest.fixture
def store(new_url: Callable[[], str]) -> Iterator[Store]:
    with closing(Store(new_url(), now_s=lambda: 0.0)) as opened:
        yield opened


@pytest.fixture
def hints(store: Store) -> HintStore:
    return store.hints


def tenant(number: int) -> TenantId:
    return keys().tenant_id(number)


def draft(of: int = 0, at_h: float = 5.0, state: HintState = HintState.RAISED) -> Draft:
    return Draft(
        at_h=at_h,
        lease=lease_id(of, 1),
        state=state,
        suspicion=Suspicion.MEMORY,
        ratio=4.0,
        ratio_low=2.0,
        ratio_high=8.0,
        probability=0.25,
        within_hours=24.0,
        action=Action.CONFIRM,
        times=1,
    )


def outcome(number: int = 1, lease: LeaseId | None = None, *, confirmed: bool = True) -> Outcome:
    return Outcome(SECRET, number, lease or lease_id(0, 1), Suspicion.MEMORY, confirmed, 12.5)


# ---- numbers and states --------------------------------------------------------------------------------------------


def test_each_tenant_counts_its_own_hints_from_one_without_a_gap(hints: HintStore) -> None:
    assert (hints.state(), hints.after(tenant(0), 0)) == (None, [])
    first = hints.append([(tenant(0), draft()), (tenant(1), draft(1)), (tenant(0), draft(at_h=5.0))], None, b"one")
    assert [hint.number for hint in first] == [1, 1, 2]
    hints.append([(tenant(1), draft(1, 6.0, HintState.CLEARED))], b"one", b"two")
    assert [(hint.number, hint.state) for hint in hints.after(tenant(1), 0) if isinstance(hint, Hint)] == [
        (1, HintState.RAISED),
        (2, HintState.CLEARED),
    ]
    assert [hint.number for hint in hints.after(tenant(0), 1)] == [2]
    assert hints.after(tenant(0), 2) == hints.after(tenant(2), 0) == []
    assert hints.state() == b"two"


def test_a_hint_comes_back_as_it_was_drafted(hints: HintStore) -> None:
    hints.append([(tenant(0), draft())], None, b"")
    assert hints.after(tenant(0), 0) == [Hint(number=1, **vars(draft()))]


def test_who_goes_on_from_a_state_that_is_gone_changes_nothing(hints: HintStore) -> None:
    hints.append([], None, b"one")
    for stale in (None, b"", b"two"):
        with pytest.raises(LostStep):
            hints.append([(tenant(0), draft())], stale, b"three")
    assert (hints.state(), hints.after(tenant(0), 0)) == (b"one", [])


def test_of_two_providers_on_one_store_one_takes_each_step(new_url: Callable[[], str]) -> None:
    url = new_url()
    with closing(Store(url)) as one, closing(Store(url)) as other, ThreadPoolExecutor(2) as pool:

        def take(where: Store) -> bool:
            try:
                where.hints.append([(tenant(0), draft())], None, b"one")
            except LostStep:
                return False
            return True

        assert sorted(pool.map(take, (one, other))) == [False, True]
        assert len(other.hints.after(tenant(0), 0)) == 1


def test_subscribers_hear_of_what_is_committed_and_of_no_one_else(hints: HintStore) -> None:
    heard: list[tuple[TenantId, int]] = []
    hints.subscribe(lambda of: heard.append((of, len(hints.after(of, 0)))))
    hints.append([(tenant(1), draft(1)), (tenant(1), draft(1))], None, b"one")
    hints.append([], b"one", b"two")
    with pytest.raises(LostStep):
        hints.append([(tenant(0), draft())], b"one", b"three")
    assert heard == [(tenant(1), 2)]


# ---- how long ------------------------------------------------------------------------------------------------------


def test_hints_are_kept_for_thirteen_weeks_and_numbers_go_on(hints: HintStore) -> None:
    hints.append([(tenant(0), draft(at_h=5.0)), (tenant(0), draft(at_h=6.0)), (tenant(1), draft(1, 5.0))], None, b"1")
    hints.append([(tenant(2), draft(2, 6.0 + KEPT_H))], b"1", b"2")
    assert [hint.number for hint in hints.after(tenant(0), 0)] == [2]  # at the edge, and its newest
    assert [hint.number for hint in hints.after(tenant(1), 0)] == [1]  # its newest, though too old
    hints.append([(tenant(1), draft(1, 7.0 + KEPT_H)), (tenant(0), draft(0, 7.0 + KEPT_H))], b"2", b"3")
    assert [hint.number for hint in hints.after(tenant(0), 0)] == [3]
    assert [hint.number for hint in hints.after(tenant(1), 0)] == [2]


# ---- outcomes ------------------------------------------------------------------------------------------------------


NOON_S = 1_800_000_000.0


def given(hints: HintStore, *to: int) -> list[int]:
    """Gives these tenants one hint each, one after another, and tells the numbers."""
    numbers = []
    for one in to:
        before = hints.state()
        (made,) = hints.append([(tenant(one), draft(one))], before, (before or b"") + b".")
        numbers.append(made.number)
    return numbers


def test_a_tenant_misses_no_hint_of_a_provider_whose_store_of_yesterday_was_put_back(
    new_url: Callable[[], str], tmp_path: Path
) -> None:
    url = new_url()
    with closing(open_database(tmp_path / "tenant.db")) as kept:
        log = HintLog(kept)
        with closing(Store(url, now_s=lambda: NOON_S)) as store:
            known = given(store.hints, 0, 0, 0)
            copy(url, tmp_path / "copy")
            forgotten = given(store.hints, 0, 0, 1)
            assert all(log.take(hint, 0.0, NO_SIGNATURE) for hint in store.hints.after(tenant(0), 0))
        put_back(tmp_path / "copy", url)
        with closing(Store(url, now_s=lambda: NOON_S + 60)) as store:
            assert [hint.number for hint in store.hints.after(tenant(0), 0)] == known
            (number, of_another) = given(store.hints, 0, 1)
            assert of_another > forgotten[-1]  # also to whom the copy knows no hint
            (new,) = store.hints.after(tenant(0), log.cursor())
            assert new.number == number
            assert log.take(new, 0.0, NO_SIGNATURE)
            assert given(store.hints, 0, 0) == [number + 1, number + 2]


def test_no_number_is_given_twice_however_often_a_copy_is_put_back(new_url: Callable[[], str], tmp_path: Path) -> None:
    url, seen = new_url(), []
    with closing(Store(url, now_s=lambda: NOON_S)) as store:
        seen += given(store.hints, 0)
        copy(url, tmp_path / "copy")
        seen += given(store.hints, 0, 0)
    for at_s in (NOON_S + 60, NOON_S + 120):
        put_back(tmp_path / "copy", url)
        with closing(Store(url, now_s=partial(float, at_s))) as store:
            seen += given(store.hints, 0, 0)
    with closing(Store(url, now_s=lambda: NOON_S - 3600)) as store:  # a clock that was set back
        seen += given(store.hints, 0)
    assert seen == [NOON_S + later_s for later_s in (0, 1, 2, 60, 61, 120, 121, 122)]


def test_an_outcome_is_kept_once_for_each_hint_and_without_its_session(store: Store) -> None:
    hints = store.hints
    hints.append([(tenant(0), draft())], None, b"")
    hints.take_outcome(tenant(0), outcome())
    hints.take_outcome(tenant(0), outcome(confirmed=False))
    assert hints.outcomes() == [(tenant(0), replace(outcome(confirmed=False), session=b""))]
    assert not any(SECRET in value for _, row in rows(store) for value in row.values() if isinstance(value, bytes))


@pytest.mark.parametrize("wrong", [outcome(2), outcome(1, lease_id(0, 2)), outcome(1, lease_id(1, 1))])
def test_an_outcome_of_no_hint_of_ones_own_is_refused(hints: HintStore, wrong: Outcome) -> None:
    hints.append([(tenant(0), draft()), (tenant(1), draft(1))], None, b"")
    with pytest.raises(NotYours):
        hints.take_outcome(tenant(0), wrong)
    with pytest.raises(NotYours):
        hints.take_outcome(tenant(1), outcome())
    assert hints.outcomes() == []


# ---- where leases are ----------------------------------------------------------------------------------------------


def test_leases_of_this_moment_come_with_the_nodes_that_they_were_given(store: Store) -> None:
    leases = [a_lease(0, 1, hours=(0.0, 10.0)), a_lease(0, 2, hours=(5.0, 20.0)), a_lease(1, 3, hours=(5.0, 20.0))]
    store.add_leases(leases, {lease.lease: ("n1", "n2") for lease in leases[:2]})
    found = {hour: [(lease.lease, nodes) for lease, nodes in store.placed(hour)] for hour in (0, 7.5, 10, 20)}
    first, second = ((lease.lease, ("n1", "n2")) for lease in leases[:2])
    assert found == {0: [first], 7.5: [first, second], 10: [second], 20: []}


# ---- whoever is killed, and when -----------------------------------------------------------------------------------


@pytest.fixture
def ask() -> Iterator[Callable[[str, int], dict[str, Any]]]:
    """Puts one line to the program that kills."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.deaths_of_hints"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def put(url: str, until: int) -> dict[str, Any]:
            stdin.write(f"{url} {until}\n")
            stdin.flush()
            answer: dict[str, Any] = json.loads(stdout.readline())
            return answer

        yield put
        stdin.close()


@pytest.mark.nightly
def test_no_hint_is_lost_or_made_twice_wherever_the_provider_is_killed(
    ask: Callable[[str, int], dict[str, Any]], new_url: Callable[[], str]
) -> None:
    whole = ask(new_url(), 0)
    assert not whole["died"]
    states = [[state for _, _, state, _ in hints] for hints in whole["hints"].values()]
    assert states == [["raised", "escalated", "cleared", "raised"], ["raised", "cleared"]]
    assert all([number for number, *_ in hints] == [*range(1, len(hints) + 1)] for hints in whole["hints"].values())
    points = whole["points"]
    assert {"before INSERT hints", "after DELETE episodes", "before COMMIT", "after COMMIT"} <= set(points)
    step = 1 if "sqlite" in new_url() else 7
    survived = set()
    for until in range(1, len(points) + 1, step):
        seen = ask(new_url(), until)
        assert (seen["died"], seen["hints"]) == (True, whole["hints"]), points[until - 1]
        survived.add(tuple(seen["survived"].values()))
    assert len(survived) >= 4  # some died before the first hint, and some between later ones


def test_a_hint_that_is_kept_apart_from_its_state_is_made_twice(new_url: Callable[[], str]) -> None:
    """What the test above would see if hints were committed first: the episode would begin once more."""
    with closing(Store(new_url())) as apart, closing(Store(new_url())) as whole:
        look_at_all(whole)
        look_at_all(apart)
        apart.hints.append([], apart.hints.state(), b'{"version":1,"at_h":null,"leases":{}}')
        look_at_all(apart)
        assert len(apart.hints.after(TENANTS[0], 0)) == 2 * len(whole.hints.after(TENANTS[0], 0)) > 0


def test_what_is_kept_is_the_message_itself(store: Store) -> None:
    store.hints.append([(tenant(0), draft())], None, b"")
    (hint,) = store.hints.after(tenant(0), 0)
    assert [row["hint"] for name, row in rows(store) if name == "hints"] == [encode(hint)]
