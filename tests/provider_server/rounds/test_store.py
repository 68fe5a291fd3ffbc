"""The store keeps what it was given, on SQLite and on PostgreSQL alike, also where a copy is put back."""

import json
import logging
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from threading import Barrier

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from crypto.errors import Refusal
from crypto.ids import LeaseId, RoundId, TenantId
from federation.protocol.noise import from_ring
from federation.protocol.round_messages import RegisteredWorkload, Registration, TokenLink
from federation.protocol.service_messages import Action, HintState, Outcome as Answered, Suspicion
from provider_server.fleet.hints.episodes import Draft
from provider_server.program.cli import app
from provider_server.rounds.round import Round
from provider_server.rounds.store import schema
from provider_server.rounds.store.claims import NOTE, RoundsHeld
from provider_server.rounds.store.revocations import LIFETIME_S, SLACK_S
from provider_server.rounds.store.round_store import Answer, LostStep, Outcome, RoundState, Step
from provider_server.rounds.store.schema import _LOCK, ForeignDatabase, NewerDatabase, NoStore, OlderRounds
from provider_server.rounds.store.store import BadDatabase, Store, StoreNotEmpty
from provider_server.rounds.store.tables import metadata
from tests.support.changing import replace
from tests.support.copies import copy, put_back, rows
from tests.support.factories import (
    COHORT,
    WEEK,
    Cast,
    InsecureSilence,
    a_failure,
    a_lease,
    a_plan,
    a_round,
    a_unit,
    close,
    counting,
    endorse_all,
    keys,
    ladder,
    lease_id,
    share_all,
)
from tests.support.postgres import Server
from tests.support.schemas import held
from tests.support.waiting import until

CANARY = "canary-51d0"
ON_POSTGRESQL = pytest.mark.xdist_group("postgresql")
BOTH = ["sqlite", pytest.param("postgresql", marks=ON_POSTGRESQL)]
ROOT = Path(__file__).resolve().parents[3]
ROUND = RoundId(b"a" * 16)
ROUND_UNDER_WAY = RoundId(b"u" * 16)

NewPlace = Callable[[str], Path | str]


def places(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> NewPlace:
    """Makes empty places for stores of one dialect, each by a name of its own."""

    @cache
    def place(name: str) -> Path | str:
        if dialect == "sqlite":
            return tmp_path / f"{name}.db"
        server: Server = request.getfixturevalue("postgresql")
        return server.new_place()

    return place


@pytest.fixture(params=BOTH)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> NewPlace:
    return places(request.param, tmp_path, request)


@pytest.fixture
def store(place: NewPlace) -> Iterator[Store]:
    with closing(Store(place("provider"))) as opened:
        yield opened


def releases_in(store: Store) -> list[bytes]:
    """The releases of a store as they are kept: those of these tests are none of the product's."""
    with store._engine.connect() as connection:
        return list(connection.scalars(sa.select(metadata.tables["releases"].c.release).order_by("number")))


def add_release(store: Store, round_id: RoundId, data: bytes) -> None:
    """A round of which nothing is told but its end."""
    store.rounds.add(round_id, RoundState.UNMASKING, b"plan")
    store.rounds.finish(round_id, RoundState.UNMASKING, RoundState.RELEASED, Outcome(data))


def registration(tenant: int, *workloads: RegisteredWorkload, epoch: int = 0, said: bytes = b"said") -> Registration:
    return Registration(keys().tenant_id(tenant), epoch, workloads, said)


def hinted(store: Store) -> None:
    """A hint, the state that it came from, and what a test showed."""
    suspicion, numbers = Suspicion.HOST, (4.0, 2.0, 8.0, 0.25, 24.0)
    draft = Draft(5.5, lease_id(0, 1), HintState.RAISED, suspicion, *numbers, Action.MOVE, 1)
    (hint,) = store.hints.append([(keys().tenant_id(0), draft)], None, b"state \0")
    said = Answered(bytes(64), hint.number, lease_id(0, 1), suspicion, confirmed=True, shortfall_percent=12.5)
    store.hints.take_outcome(keys().tenant_id(0), said)


def filled(store: Store) -> Store:
    """Something in every table: registered leases and others, odd numbers, any bytes, rounds in several states."""
    first = replace(a_lease(0, 1), nodes=17, start_h=0.1, end_h=1 / 3)
    store.add_leases([first, a_lease(1, 2)], {first.lease: ("node \u00fc",)})
    hinted(store)
    links = (TokenLink(ladder(3).family, ladder(4).family),)
    store.register(replace(registration(0, RegisteredWorkload(ladder(3), (lease_id(0, 1),))), links=links))
    for number in range(3):
        add_release(store, RoundId(bytes([9 - number]) * 16), bytes(range(256)) * number)
    store.add_bundle(0, b"")
    store.add_bundle(7, b"bundle \0 seven")
    for number in (0, 1):
        store.add_entry(number, b"entry \0 %d" % number)
    store.add_node_key(keys().tenant_id(1), "public key of a node")
    store.add_node_key(keys().tenant_id(1), "the key after it")
    store.revocations.add([keys().tenant_id(1)], 1_800_000_000.0)
    suspected = RoundId(b"s" * 16)
    store.rounds.add(suspected, RoundState.UNMASKING, b"plan")
    outcome = Outcome(b"total", {"\u00fc": [1.5, None]})
    store.rounds.finish(suspected, RoundState.UNMASKING, RoundState.RELEASED, outcome)
    store.rounds.add(ROUND_UNDER_WAY, RoundState.COLLECTING, b"plan \0 under way")
    store.rounds.add_contribution(ROUND_UNDER_WAY, keys().tenant_id(1), bytes(range(256)))
    store.rounds.move(ROUND_UNDER_WAY, RoundState.COLLECTING, RoundState.ENDORSING, b"request")
    store.rounds.add_answer(ROUND_UNDER_WAY, Answer.ENDORSEMENT, 4, b"\0endorsement")
    return store


def sql(store: Store, statement: str) -> None:
    with store._engine.begin() as connection:
        connection.execute(sa.text(statement))


# ---- what is stored stays ------------------------------------------------------------------------------------------


def test_a_round_is_stored_once_and_what_is_stored_stays(store: Store) -> None:
    add_release(store, ROUND, b"one")
    with pytest.raises(sa.exc.IntegrityError):
        add_release(store, ROUND, b"other")
    add_release(store, RoundId(b"0" * 16), b"other")
    assert releases_in(store) == [b"one", b"other"]


def test_releases_and_bundles_survive_reopening(store: Store, place: NewPlace) -> None:
    add_release(store, ROUND, b"release")
    assert store.newest_bundle() is None
    for number in (0, 2, 1):
        store.add_bundle(number, b"bundle %d" % number)
    with closing(Store(place("provider"))) as later:
        assert releases_in(later) == [b"release"]
        assert later.newest_bundle() == (2, b"bundle 2")
        with pytest.raises(sa.exc.IntegrityError):
            later.add_bundle(2, b"another")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE releases SET release = round_id",
        "UPDATE releases SET number = number + 100",
        "DELETE FROM releases",
        "DELETE FROM releases WHERE number = 1",
        "UPDATE bundles SET bundle = NULL WHERE number = 7",
        "DELETE FROM bundles",
        "UPDATE directory SET entry = NULL WHERE number = 1",
        "UPDATE directory SET number = 7 WHERE number = 1",
        "DELETE FROM directory WHERE number = 1",
        "UPDATE rounds SET request = signed_plan WHERE state = 'endorsing'",
        "UPDATE rounds SET request = NULL WHERE state = 'endorsing'",
        "DELETE FROM rounds WHERE state = 'endorsing'",
    ],
)
def test_the_database_refuses_to_change_or_remove_what_is_final(store: Store, statement: str) -> None:
    before = rows(filled(store))
    with pytest.raises(sa.exc.IntegrityError, match="are final"):
        sql(store, statement)
    assert rows(store) == before


@pytest.mark.parametrize(
    ("table", "key", "values"),
    [
        ("bundles", "number", "number, bundle"),
        ("releases", "number", "number, round_id, release"),
        ("releases", "round_id", "round_id, release"),
        ("directory", "number", "number, entry"),
    ],
)
def test_what_is_final_is_not_replaced_either(store: Store, table: str, key: str, values: str) -> None:
    before = rows(filled(store))
    same = f"INTO {table} ({values}) SELECT {values} FROM {table} WHERE true"  # noqa: S608  # our own names
    on_postgresql = f"INSERT {same} ON CONFLICT ({key}) DO UPDATE SET {key} = excluded.{key}"
    with pytest.raises(sa.exc.IntegrityError, match="are final"):
        sql(store, on_postgresql if store._engine.name == "postgresql" else f"INSERT OR REPLACE {same}")
    assert rows(store) == before


@ON_POSTGRESQL
def test_what_is_final_is_not_emptied_at_a_stroke(postgresql: Server) -> None:
    with closing(Store(postgresql.new_place())) as store:
        for table in ("releases", "bundles", "directory", "rounds"):
            with pytest.raises(sa.exc.IntegrityError, match="are final"):
                sql(store, f"TRUNCATE {table}")


# ---- leases --------------------------------------------------------------------------------------------------------


def test_a_revocation_is_kept_for_as_long_as_the_sessions_that_it_ends(store: Store) -> None:
    first, second, noon_s = keys().tenant_id(0), keys().tenant_id(1), 1_800_000_000
    lasts_s = LIFETIME_S + SLACK_S
    store.revocations.add([first, first], noon_s + 0.5)
    store.revocations.add([second], noon_s + lasts_s - 1.0)
    assert store.revocations.all() == {first: noon_s + lasts_s, second: noon_s + 2 * lasts_s - 1}
    store.revocations.add([], noon_s + lasts_s)
    assert store.revocations.all() == {second: noon_s + 2 * lasts_s - 1}


def test_leases_are_found_by_the_hours_that_they_overlap(store: Store) -> None:
    store.add_leases([])
    store.add_leases(
        [a_lease(0, 1, hours=(0.0, 10.0)), a_lease(0, 2, hours=(5.0, 20.0)), a_lease(0, 3, hours=(10.0, 30.0))]
    )
    found = {
        (begin, end): [lease.lease for lease in store.leases(begin, end)] for begin, end in [(0, 5), (10, 20), (30, 40)]
    }
    assert found == {(0, 5): [lease_id(0, 1)], (10, 20): [lease_id(0, 2), lease_id(0, 3)], (30, 40): []}


def test_a_lease_comes_back_as_it_was_stored_and_is_stored_once(store: Store) -> None:
    lease = replace(a_lease(1, 1, hours=(0.1, 10.5)), nodes=17)
    store.add_leases([lease])
    assert store.leases(0, 1) == [lease]
    with pytest.raises(sa.exc.IntegrityError):
        store.add_leases([a_lease(1, 2), lease])
    assert store.leases(0, 168) == [lease]


def test_tokens_are_attached_to_the_senders_own_leases_only(store: Store) -> None:
    granted = [replace(a_lease(tenant, 1), labels={"context": "c"}) for tenant in (0, 1)]
    store.add_leases(granted)
    named = (lease_id(0, 1), lease_id(1, 1), LeaseId(b"nobody's lease!!"))
    store.register(registration(0, RegisteredWorkload(ladder(3), named)))
    by_tenant = {lease.tenant: lease.labels for lease in store.leases(*WEEK)}
    assert by_tenant == {
        keys().tenant_id(0): {"context": "c", **ladder(3).labels},
        keys().tenant_id(1): {"context": "c"},
    }
    store.register(Registration(TenantId(bytes(16)), 0, (), b""))
    assert {lease.tenant: lease.labels for lease in store.leases(*WEEK)} == by_tenant


def test_what_tenants_say_that_they_own_is_kept_by_epoch_as_it_was_last_said(store: Store) -> None:
    for tenant, epoch, said in [(0, 0, b"first"), (0, 1, b"of another epoch"), (1, 0, b"other"), (0, 0, b"last")]:
        store.register(registration(tenant, epoch=epoch, said=said))
    assert sorted(store.ownerships(0)) == [b"last", b"other"]
    assert store.ownerships(1) == [b"of another epoch"]
    assert store.ownerships(2) == []


def test_a_tenants_leases_are_found_by_their_beginning_and_nobody_elses(store: Store) -> None:
    hours = [(0.0, 10.0), (5.0, 20.0), (10.0, 30.0)]
    store.add_leases([a_lease(tenant, number, hours=hours[number]) for tenant in (0, 1) for number in range(3)])
    found = [lease.lease for lease in store.leases_of(keys().tenant_id(1), 5, 10)]
    assert found == [lease_id(1, 1)]
    assert [lease.lease for lease in store.leases_of(keys().tenant_id(0), 0, 10)] == [lease_id(0, 0), lease_id(0, 1)]


# ---- rounds --------------------------------------------------------------------------------------------------------


def test_one_holds_the_claim_and_another_is_told_who_until_it_ends(place: NewPlace) -> None:
    where = place("provider")
    holding = "import sys, time; from pathlib import Path; from provider_server.rounds.store.store import Store\n"
    holding += "where = sys.argv[1] if '://' in sys.argv[1] else Path(sys.argv[1])\n"
    holding += "with Store(where, create=False).claim.held(): print('held', flush=True); time.sleep(600)"
    with closing(Store(where)) as one, closing(Store(where)) as other:
        with (
            one.claim.held(),
            pytest.raises(RoundsHeld, match=rf"process {os.getpid()} on \S+, since 2"),
            other.claim.held(),
        ):
            raise AssertionError("both hold it")
        with subprocess.Popen(
            [sys.executable, "-c", holding, str(where)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            with pytest.raises(RoundsHeld, match=f"process {process.pid} "), one.claim.held():
                raise AssertionError("both hold it")
            process.kill()

        def is_free() -> bool:
            try:
                with one.claim.held():
                    return True
            except RoundsHeld:
                return False

        until(is_free)


def test_of_two_rounds_that_are_opened_at_once_one_is_refused(place: NewPlace) -> None:
    where = place("provider")
    with closing(Store(where)) as one, closing(Store(where)) as other, ThreadPoolExecutor(2) as threads:
        added = [
            threads.submit(store.rounds.add, name, RoundState.COLLECTING, b"plan", alone=True)
            for store, name in ((one, ROUND), (other, ROUND_UNDER_WAY))
        ]
        assert [type(of.exception()) for of in added].count(LostStep) == 1
        assert len(one.rounds.rounds()) == 1


def test_a_round_is_withdrawn_only_while_nobody_has_contributed(store: Store) -> None:
    store.rounds.add(ROUND, RoundState.COLLECTING, b"plan")
    store.rounds.add_contribution(ROUND, keys().tenant_id(0), b"mine")
    assert not store.rounds.withdraw(ROUND)
    store.rounds.add(ROUND_UNDER_WAY, RoundState.ENDORSING, b"plan")
    assert not store.rounds.withdraw(ROUND_UNDER_WAY)
    assert len(store.rounds.rounds()) == 2


def test_a_round_is_kept_once_and_rounds_come_in_order(store: Store) -> None:
    store.rounds.add(ROUND_UNDER_WAY, RoundState.COLLECTING, b"plan")
    store.rounds.add(ROUND, RoundState.COLLECTING, b"other plan")
    with pytest.raises(sa.exc.IntegrityError):
        store.rounds.add(ROUND_UNDER_WAY, RoundState.COLLECTING, b"a third")
    assert [kept.round_id for kept in store.rounds.rounds()] == [ROUND_UNDER_WAY, ROUND]
    with pytest.raises(KeyError):
        store.rounds.get(RoundId(b"0" * 16))


def test_a_step_is_taken_from_the_state_that_was_seen_and_by_one(store: Store, place: NewPlace) -> None:
    store.rounds.add(ROUND, RoundState.COLLECTING, b"plan")
    with closing(Store(place("provider"))) as other:
        store.rounds.move(ROUND, RoundState.COLLECTING, RoundState.ENDORSING, b"request")
        with pytest.raises(LostStep, match="no longer collecting"):
            other.rounds.move(ROUND, RoundState.COLLECTING, RoundState.ENDORSING, b"another")
        with pytest.raises(LostStep):
            other.rounds.finish(ROUND, RoundState.UNMASKING, RoundState.RELEASED, Outcome(b"release"))
        assert other.rounds.get(ROUND).request == b"request"
        assert releases_in(other) == []


def test_the_request_of_a_round_is_fixed_once(store: Store) -> None:
    store.rounds.add(ROUND, RoundState.COLLECTING, b"plan")
    store.rounds.move(ROUND, RoundState.COLLECTING, RoundState.ENDORSING, b"request")
    store.rounds.drop_contribution(ROUND, TenantId(bytes(16)), b"a request that every trustee refused")
    store.rounds.drop_contribution(ROUND, TenantId(bytes(16)), b"request")
    store.rounds.add_answer(ROUND, Answer.ENDORSEMENT, 3, b"said")
    with pytest.raises(sa.exc.IntegrityError, match="are final"):
        store.rounds.drop_contribution(ROUND, TenantId(bytes(16)), b"another")
    with pytest.raises(sa.exc.IntegrityError, match="are final"):
        store.rounds.move(ROUND, RoundState.ENDORSING, RoundState.UNMASKING, b"another")
    assert (store.rounds.get(ROUND).state, store.rounds.get(ROUND).request) == (RoundState.ENDORSING, b"request")
    store.rounds.move(ROUND, RoundState.ENDORSING, RoundState.UNMASKING, b"request")


def test_the_last_answer_that_was_wanted_takes_the_step_with_it(store: Store) -> None:
    store.rounds.add(ROUND, RoundState.ENDORSING, b"plan")
    step = Step(RoundState.ENDORSING, RoundState.UNMASKING, frozenset({3, 4}))
    for trustee, state in [(3, RoundState.ENDORSING), (5, RoundState.ENDORSING), (4, RoundState.UNMASKING)]:
        store.rounds.add_answer(ROUND, Answer.ENDORSEMENT, trustee, b"said", step)
        assert store.rounds.get(ROUND).state == state
    with pytest.raises(LostStep):
        store.rounds.add_answer(ROUND, Answer.ENDORSEMENT, 6, b"too late", step)
    assert set(store.rounds.answers(ROUND, Answer.ENDORSEMENT)) == {3, 4, 5}
    assert store.rounds.answers(ROUND, Answer.SHARE) == {}


def test_processes_that_bring_the_last_two_answers_at_once_take_the_step_once(store: Store, place: NewPlace) -> None:
    """Without a lock each might miss the answer of the other, and the round would wait for ever."""
    step = Step(RoundState.ENDORSING, RoundState.UNMASKING, frozenset({3, 4}))
    with closing(Store(place("provider"))) as other, ThreadPoolExecutor(2) as pool:
        for number in range(20):
            name = RoundId(bytes([number]) * 16)
            store.rounds.add(name, RoundState.ENDORSING, b"plan")
            barrier = Barrier(2, timeout=30)

            def bring(where: Store, trustee: int, name: RoundId = name, barrier: Barrier = barrier) -> None:
                barrier.wait()
                where.rounds.add_answer(name, Answer.ENDORSEMENT, trustee, b"said", step)

            list(pool.map(bring, [store, other], [3, 4]))
            assert store.rounds.get(name).state == RoundState.UNMASKING


def test_of_two_contributions_of_a_tenant_the_first_is_kept(store: Store) -> None:
    store.rounds.add(ROUND, RoundState.COLLECTING, b"plan")
    tenant = keys().tenant_id(0)
    assert store.rounds.add_contribution(ROUND, tenant, b"first") == b"first"
    assert store.rounds.add_contribution(ROUND, tenant, b"second") == b"first"
    assert store.rounds.contribution(ROUND, tenant) == b"first"
    assert store.rounds.contributors(ROUND) == {tenant}


def test_the_end_of_a_round_leaves_its_release_and_its_scores_and_drops_the_contributions(store: Store) -> None:
    for name in (ROUND_UNDER_WAY, ROUND):
        store.rounds.add(name, RoundState.UNMASKING, b"plan")
        store.rounds.add_contribution(name, keys().tenant_id(0), b"said")
        outcome = Outcome(b"release of " + bytes(name), {"of": str(name)})
        store.rounds.finish(name, RoundState.UNMASKING, RoundState.RELEASED, outcome)
        assert store.rounds.contributors(name) == set()
    assert store.rounds.suspicion() == {"of": str(ROUND)}
    assert len(releases_in(store)) == 2


# ---- opening -------------------------------------------------------------------------------------------------------


def test_threads_may_open_new_stores_at_once(place: NewPlace) -> None:
    where = [place(name) for name in ("first", "second", "first", "second")]
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(Store, where))
    add_release(stores[0], ROUND, b"release")
    assert [releases_in(store) for store in stores] == [[b"release"], [], [b"release"], []]
    for store in stores:
        store.close()


@pytest.mark.nightly
def test_processes_may_open_a_new_store_at_once(place: NewPlace) -> None:
    where = place("provider")
    source = "import sys; from provider_server.rounds.store.store import Store; Store(sys.argv[1]).close()"
    url = f"sqlite:///{where}" if isinstance(where, Path) else where
    command = [sys.executable, "-c", source, url]
    openers = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [opener.wait(60) for opener in openers] == [0, 0, 0]


@ON_POSTGRESQL
def test_an_opener_waits_for_another_that_takes_the_steps(postgresql: Server) -> None:
    where = postgresql.new_place()
    engine = sa.create_engine(where)
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as connection:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            opening = pool.submit(Store, where)
            with pytest.raises(TimeoutError):
                opening.result(0.5)
        opening.result(60).close()
    engine.dispose()


@pytest.mark.parametrize(("version", "refusal"), [("9999", NewerDatabase), ("0014", OlderRounds)])
def test_a_database_of_another_version_is_refused_and_not_touched(
    store: Store, place: NewPlace, version: str, refusal: type[Refusal]
) -> None:
    sql(store, f"UPDATE alembic_version SET version_num = '{version}'")  # noqa: S608  # ours
    before = rows(store)
    with pytest.raises(refusal, match=rf"'{version}'.*'{schema.VERSION}'"):
        Store(place("provider"))
    assert rows(store) == before
    with store._engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == version


def test_a_store_of_the_release_before_is_copied_and_taken_to_this_version_once(
    store: Store, place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = rows(store)
    steps = {
        schema.VERSION: ("ALTER TABLE leases ADD COLUMN note TEXT", "UPDATE leases SET note = 'old'"),
        "0016": ("CREATE TABLE later (number INTEGER)",),
    }
    monkeypatch.setattr(schema, "STEPS", steps)
    monkeypatch.setattr(schema, "VERSION", "0017")
    where = place("provider")
    for _ in range(2):
        with closing(Store(where)) as again, again._engine.connect() as connection:
            assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == "0017"
            assert connection.scalar(sa.text("SELECT count(*) FROM later")) == 0
    if isinstance(where, Path):
        copy = where.with_name(f"{where.name}.version-0015")
        assert copy.stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr(schema, "VERSION", "0015")
        with closing(Store(copy)) as before:  # the way back
            assert rows(before) == kept
        with pytest.raises(NewerDatabase):
            Store(where)


def test_a_step_that_fails_leaves_the_store_as_it_was(
    store: Store, place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "STEPS", {schema.VERSION: ("CREATE TABLE later (number INTEGER)", "NO SQL")})
    monkeypatch.setattr(schema, "VERSION", "0016")
    with pytest.raises(BadDatabase):
        Store(place("provider"))
    monkeypatch.undo()
    with closing(Store(place("provider"))) as again:
        assert rows(again) == rows(store)


@pytest.mark.parametrize("table", ["releases", "evaluations"])
def test_a_database_of_something_else_is_refused_and_not_touched(place: NewPlace, table: str) -> None:
    where = place("other")
    url = sa.URL.create("sqlite", database=str(where)) if isinstance(where, Path) else sa.make_url(where)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE {table} (number INTEGER)"))
    with pytest.raises(ForeignDatabase):
        Store(where)
    assert sa.inspect(engine).get_table_names() == [table]
    engine.dispose()


def test_a_store_that_must_be_there_is_not_made(place: NewPlace) -> None:
    where = place("nowhere")
    with pytest.raises((BadDatabase, NoStore)):
        Store(where, create=False)
    assert not isinstance(where, Path) or not where.exists()
    Store(where).close()
    Store(where, create=False).close()


def test_a_table_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "_SQLITE", (*schema._SQLITE, "CREATE TRIGGER bundles_stay AFTER DELETE ON bundles"))
    with pytest.raises(BadDatabase, match="cannot be opened"):
        Store(tmp_path / "new.db")
    with closing(sqlite3.connect(tmp_path / "new.db")) as database:
        assert database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_sqlite_writes_ahead_synchronously_for_its_owner_only(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "provider.db")) as store, store._engine.connect() as connection:
        names = ("journal_mode", "synchronous", "foreign_keys")
        values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]
    assert values == ["wal", 2, 1]
    assert stat.S_IMODE((tmp_path / "provider.db").stat().st_mode) == 0o600


def test_a_path_may_hold_any_characters(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%41@e.db"
    Store(path).close()
    assert path.exists()


def test_a_file_that_is_no_database_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "provider.db").write_text("Not SQLite. " * 100)
    with pytest.raises(BadDatabase, match="not a database"):
        Store(tmp_path / "provider.db")
    with pytest.raises(BadDatabase, match="no such file"):
        Store(tmp_path / "nowhere" / "provider.db")


# ---- URLs and their secrets ----------------------------------------------------------------------------------------

WRONG = [
    f"canary://provider:{CANARY}@host/name",
    f"postgresql://provider:{CANARY}@host:port/name",
    f"postgresql://provider:half@{CANARY}@host/name",
    f"postgresql://provider:half@a/{CANARY}@host/name",
    f"provider:{CANARY}@host",
    f"mysql://provider:{CANARY}@host/name",
    f"postgresql+asyncpg://provider:{CANARY}@host/name",
    "sqlite://",
    "sqlite:///:memory:",
    f"sqlite:///file:{CANARY}?uri=true",
    "provider.db",
    "",
]


@pytest.mark.parametrize("url", WRONG)
def test_a_wrong_url_is_refused_and_never_quoted(url: str) -> None:
    with pytest.raises(BadDatabase) as caught:
        Store(url)
    assert CANARY not in everything_said(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://provider:{CANARY}@/name?host=%2Fnowhere",
        f"postgresql://provider@/name?host=%2Fnowhere&password={CANARY}",
        f"postgresql://provider:{CANARY}@/name?host=%2Fnowhere%2F{CANARY}",
        f"postgresql://provider@/name?host=%2Fnowhere&{CANARY}=1",
    ],
)
def test_a_server_that_does_not_answer_is_named_without_secrets(url: str) -> None:
    with pytest.raises(BadDatabase, match=r"postgresql.*cannot be opened") as caught:
        Store(url)
    assert "=1" in url or CANARY not in everything_said(caught.value)


@ON_POSTGRESQL
def test_a_password_is_in_no_error_and_no_log(postgresql: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(BadDatabase, match="password authentication failed") as caught:
        Store(postgresql.url(password=CANARY))
    assert CANARY not in everything_said(caught.value) + caplog.text
    with closing(Store(postgresql.new_place())) as store:
        assert postgresql.password not in repr(store._engine) + caplog.text


def test_values_of_a_row_are_in_no_error(store: Store) -> None:
    add_release(store, ROUND, b"one")
    with pytest.raises(sa.exc.IntegrityError) as caught:
        add_release(store, ROUND, CANARY.encode())
    assert CANARY not in str(caught.value)


def test_without_the_driver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(BadDatabase, match="driver") as caught:
        Store("postgresql://host/name")
    assert "pharoah-provider[postgresql]" in caught.value.hint


@ON_POSTGRESQL
def test_a_store_survives_lost_connections(postgresql: Server) -> None:
    with closing(Store(postgresql.new_place() + "&application_name=lost")) as store:
        add_release(store, ROUND, b"release")
        postgresql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lost'")
        assert releases_in(store) == [b"release"]


def everything_said(error: BaseException | None) -> str:
    """What a log of this exception would show, causes included."""
    said = ""
    while error is not None:
        said += repr(error) + str(error) + getattr(error, "hint", "")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return said


# ---- yesterday's store put back -------------------------------------------------------------------------------------


def as_url(place: Path | str) -> str:
    return f"sqlite:///{place}" if isinstance(place, Path) else place


def test_a_copy_that_is_put_back_has_every_row_and_goes_on(place: NewPlace, tmp_path: Path) -> None:
    where = place("provider")
    with closing(Store(where)) as source:
        before = rows(filled(source))
        copy(as_url(where), tmp_path / "copy")
        add_release(source, ROUND, b"forgotten")
    put_back(tmp_path / "copy", as_url(where))
    with closing(Store(where)) as store:
        assert rows(store) == before
        add_release(store, ROUND, b"the next one")
        assert releases_in(store)[-1] == b"the next one"


def test_a_store_moves_to_an_empty_database_with_every_row_and_goes_on(place: NewPlace, tmp_path: Path) -> None:
    home, url = tmp_path / "home", as_url(place("provider"))
    home.mkdir()
    with closing(Store(home / "provider.db")) as source:
        before = rows(filled(source))
        with source.claim.held():
            assert "holds a round" in called("rounds", "move-store", "--home", home, code=2, PHAROAH_DATABASE=url)
    told = called("rounds", "move-store", "--home", home, "--json", PHAROAH_DATABASE=url)
    held("pharoah-provider rounds move-store", told)
    assert not (home / "provider.db").exists()
    with closing(Store(url)) as store, closing(Store(home / "provider.db.moved")) as kept:
        after = [row for row in rows(store) if row[1].get("name") != NOTE]  # who held the claim, which the move takes
        assert after == before
        assert len(rows(store)) == json.loads(told)[0]["rows"]
        add_release(store, ROUND, b"the next one")
        assert releases_in(store)[-1] == b"the next one"
        with pytest.raises(StoreNotEmpty, match="the database contains rows already"):
            kept.copy_to(store)


@pytest.mark.nightly
@pytest.mark.parametrize("state", [RoundState.COLLECTING, RoundState.ENDORSING, RoundState.UNMASKING])
def test_a_round_that_was_under_way_goes_on_from_a_copy(
    place: NewPlace, state: RoundState, tmp_path: Path, cast: Cast
) -> None:
    where = place("provider")
    plan, trustees = a_plan(), {index: cast.trustee(index) for index in range(1, 6)}
    tenants = [cast.tenant(number, sampler=InsecureSilence()) for number in range(COHORT)]
    unit = a_unit(1)
    tenants[0].journal.add([unit], [a_failure(unit)])
    with closing(Store(where)) as source:
        begun = a_round(plan, source.rounds)
        begun.receive(tenants[0].contribute(begun.signed_plan))
        if state is not RoundState.COLLECTING:
            for tenant in tenants[1:]:
                begun.receive(tenant.contribute(begun.signed_plan))
            close(begun)
            begun.endorse(3, trustees[3].endorse(begun.request))
        if state is RoundState.UNMASKING:
            endorse_all(begun, trustees)
            begun.share(4, trustees[4].unmask(begun.call()))
        assert begun.state is state
        copy(as_url(where), tmp_path / "copy")
    put_back(tmp_path / "copy", as_url(where))
    with closing(Store(where)) as store:
        goes_on = Round(store.rounds, keys().provider, keys().directory, begun.signed_plan)
        if state is RoundState.COLLECTING:
            for tenant in tenants:
                goes_on.receive(tenant.contribute(begun.signed_plan))
            close(goes_on)
        if goes_on.state is RoundState.ENDORSING:
            endorse_all(goes_on, trustees)
        share_all(goes_on, trustees)
        (opened,) = goes_on.open()
        assert sum(int(table.sum()) for table in from_ring(plan, opened)) == counting(plan)


# ---- the verbs -----------------------------------------------------------------------------------------------------


def called(*words: object, code: int = 0, **environment: str) -> str:
    """Output of a command that must end with `code`; an error must be told on the standard error only."""
    result = CliRunner().invoke(app, [str(word) for word in words], env=environment)
    assert result.exit_code == code, result.output
    assert not (code and result.stdout)
    return result.stdout if code == 0 else result.stderr


def test_verbs_take_a_home_or_a_url(place: NewPlace, tmp_path: Path) -> None:
    where = place("provider")
    with closing(Store(where)) as store:
        store.add_bundle(0, b"bundle")
    with closing(Store(tmp_path / "provider.db")):
        pass
    assert called("rounds", "releases", "--database", as_url(where), "--json") == "[]\n"
    assert called("rounds", "releases", "--home", tmp_path, "--json") == "[]\n"
    assert called("rounds", "releases", "--json", PHAROAH_PROVIDER_HOME=str(tmp_path)) == "[]\n"
    assert called("rounds", "releases", "--home", "x", "--json", PHAROAH_DATABASE=as_url(where)) == "[]\n"


def test_verbs_say_what_is_wrong_without_secrets(tmp_path: Path) -> None:
    assert "--home or --database" in called("rounds", "releases", code=2)
    assert "no provider in this home" in called("rounds", "releases", "--home", tmp_path, code=2)
    assert not list(tmp_path.iterdir())
    for url in (*WRONG[:-1], f"postgresql://provider:{CANARY}@/name?host=%2Fnowhere"):
        assert CANARY not in called("rounds", "releases", code=2, PHAROAH_DATABASE=url)


def test_refusals_of_a_database_are_refusals() -> None:
    assert all(
        issubclass(kind, Refusal) for kind in (NewerDatabase, ForeignDatabase, NoStore, OlderRounds, StoreNotEmpty)
    )
