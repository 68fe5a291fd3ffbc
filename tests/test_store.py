"""The store keeps what it was given, on SQLite and on PostgreSQL alike, and a backup of either restores into both."""

import hashlib
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
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from crypto.codec import encode
from crypto.errors import Refusal
from crypto.ids import LeaseId, RoundId, TenantId
from crypto.messages import RegisteredWorkload, Registration
from provider_server import backup as backups
from provider_server.backup import BadBackup, backup, restore, verify
from provider_server.cli import app
from provider_server.migrations.upgrade import _LOCK, ForeignDatabase, NewerDatabase, NoStore, newest_version
from provider_server.store import BadDatabase, Store, StoreNotEmpty, _metadata
from tests.factories import WEEK, a_lease, keys, ladder, lease_id
from tests.postgres import Server

CANARY = "canary-51d0"
ON_POSTGRESQL = pytest.mark.xdist_group("postgresql")
BOTH = ["sqlite", pytest.param("postgresql", marks=ON_POSTGRESQL)]
ROOT = Path(__file__).resolve().parents[1]
ROUND = RoundId(b"a" * 16)

# What the program made before there were migrations.
OLD_TABLES = """
CREATE TABLE leases (lease BLOB NOT NULL, tenant BLOB NOT NULL, nodes INTEGER NOT NULL, start_h FLOAT NOT NULL,
    end_h FLOAT NOT NULL, contexts TEXT NOT NULL, ladder TEXT, PRIMARY KEY (lease));
CREATE INDEX ix_leases_end_h ON leases (end_h);
CREATE INDEX ix_leases_start_h ON leases (start_h);
CREATE TABLE releases (number INTEGER NOT NULL, round_id BLOB NOT NULL, release BLOB NOT NULL,
    PRIMARY KEY (number), UNIQUE (round_id));
CREATE TABLE bundles (number INTEGER NOT NULL, bundle BLOB NOT NULL, PRIMARY KEY (number));
"""

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


def filled(store: Store) -> Store:
    """Something in every table: registered leases and others, odd numbers, any bytes."""
    store.add_leases([replace(a_lease(0, 1), nodes=17, start_h=0.1, end_h=1 / 3), a_lease(1, 2)])
    store.register(Registration(keys().tenant_id(0), 0, (RegisteredWorkload(ladder(3), (lease_id(0, 1),)),)))
    for number in range(3):
        store.add_release(RoundId(bytes([9 - number]) * 16), bytes(range(256)) * number)
    store.add_bundle(0, b"")
    store.add_bundle(7, b"bundle \0 seven")
    return store


def contents(store: Store) -> list[object]:
    with closing(store.rows()) as rows:
        return list(rows)


def sql(store: Store, statement: str) -> None:
    with store._engine.begin() as connection:
        connection.execute(sa.text(statement))


# ---- what is stored stays ------------------------------------------------------------------------------------------


def test_a_round_is_stored_once_and_what_is_stored_stays(store: Store) -> None:
    store.add_release(ROUND, b"one")
    with pytest.raises(sa.exc.IntegrityError):
        store.add_release(ROUND, b"other")
    store.add_release(RoundId(b"0" * 16), b"other")
    assert store.releases() == [b"one", b"other"]


def test_releases_and_bundles_survive_reopening(store: Store, place: NewPlace) -> None:
    store.add_release(ROUND, b"release")
    assert store.newest_bundle() is None
    for number in (0, 2, 1):
        store.add_bundle(number, b"bundle %d" % number)
    with closing(Store(place("provider"))) as later:
        assert later.releases() == [b"release"]
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
    ],
)
def test_the_database_refuses_to_change_or_remove_what_is_final(store: Store, statement: str) -> None:
    before = contents(filled(store))
    with pytest.raises(sa.exc.IntegrityError, match="are final"):
        sql(store, statement)
    assert contents(store) == before


@pytest.mark.parametrize(
    ("table", "key", "values"),
    [
        ("bundles", "number", "number, bundle"),
        ("releases", "number", "number, round_id, release"),
        ("releases", "round_id", "round_id, release"),
    ],
)
def test_what_is_final_is_not_replaced_either(store: Store, table: str, key: str, values: str) -> None:
    before = contents(filled(store))
    same = f"INTO {table} ({values}) SELECT {values} FROM {table} WHERE true"  # noqa: S608  # our own names
    on_postgresql = f"INSERT {same} ON CONFLICT ({key}) DO UPDATE SET {key} = excluded.{key}"
    with pytest.raises(sa.exc.IntegrityError, match="are final"):
        sql(store, on_postgresql if store._engine.name == "postgresql" else f"INSERT OR REPLACE {same}")
    assert contents(store) == before


@ON_POSTGRESQL
def test_what_is_final_is_not_emptied_at_a_stroke(postgresql: Server) -> None:
    with closing(Store(postgresql.new_place())) as store:
        for table in ("releases", "bundles"):
            with pytest.raises(sa.exc.IntegrityError, match="are final"):
                sql(store, f"TRUNCATE {table}")


# ---- leases --------------------------------------------------------------------------------------------------------


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
    store.register(Registration(keys().tenant_id(0), 0, (RegisteredWorkload(ladder(3), named),)))
    by_tenant = {lease.tenant: lease.labels for lease in store.leases(*WEEK)}
    assert by_tenant == {
        keys().tenant_id(0): {"context": "c", **ladder(3).labels},
        keys().tenant_id(1): {"context": "c"},
    }
    store.register(Registration(TenantId(bytes(16)), 0, ()))
    assert {lease.tenant: lease.labels for lease in store.leases(*WEEK)} == by_tenant


# ---- opening -------------------------------------------------------------------------------------------------------


def test_the_schema_of_the_migrations_is_the_schema_of_the_code(store: Store) -> None:
    inspector = sa.inspect(store._engine)
    assert set(inspector.get_table_names()) == {*_metadata.tables, "alembic_version"}
    for table in _metadata.sorted_tables:
        made = {
            column["name"]: (column["type"]._type_affinity, column["nullable"])
            for column in inspector.get_columns(table.name)
        }
        assert made == {column.name: (column.type._type_affinity, column.nullable) for column in table.columns}
        assert {str(index["name"]) for index in inspector.get_indexes(table.name)} >= {i.name for i in table.indexes}


def test_threads_may_open_new_stores_at_once(place: NewPlace) -> None:
    where = [place(name) for name in ("first", "second", "first", "second")]
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(Store, where))
    stores[0].add_release(ROUND, b"release")
    assert [store.releases() for store in stores] == [[b"release"], [], [b"release"], []]
    for store in stores:
        store.close()


def test_processes_may_open_a_new_store_at_once(place: NewPlace) -> None:
    where = place("provider")
    source = "import sys; from provider_server.store import Store; Store(sys.argv[1]).close()"
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


def test_a_newer_database_is_refused_and_not_touched(store: Store, place: NewPlace) -> None:
    sql(store, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(NewerDatabase, match=r"'9999'.*'0002'"):
        Store(place("provider"))
    with store._engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == "9999"


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


def schema(file: Path) -> set[tuple[str, str, str]]:
    with closing(sqlite3.connect(file)) as database:
        listed = database.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master").fetchall()
    return {(kind, name, "".join(text.split())) for kind, name, text in listed}


def test_a_file_from_before_there_were_migrations_keeps_its_rows(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db")) as old:
        old.executescript(OLD_TABLES)
        old.execute("INSERT INTO releases VALUES (5, ?, ?)", (bytes(ROUND), b"release"))
        old.commit()
    with closing(Store(tmp_path / "old.db")) as adopted, closing(Store(tmp_path / "new.db")):
        assert adopted.releases() == [b"release"]
        with pytest.raises(sa.exc.IntegrityError, match="are final"):
            sql(adopted, "DELETE FROM releases")
    assert schema(tmp_path / "old.db") == schema(tmp_path / "new.db")


def test_a_step_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db")) as old:
        old.executescript(OLD_TABLES + "CREATE TRIGGER bundles_stay AFTER DELETE ON bundles BEGIN SELECT 1; END;")
    before = schema(tmp_path / "old.db")
    with pytest.raises(BadDatabase, match="bundles_stay already exists"):
        Store(tmp_path / "old.db")
    assert schema(tmp_path / "old.db") == before


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
    store.add_release(ROUND, b"one")
    with pytest.raises(sa.exc.IntegrityError) as caught:
        store.add_release(ROUND, CANARY.encode())
    assert CANARY not in str(caught.value)


def test_without_the_driver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(BadDatabase, match="driver") as caught:
        Store("postgresql://host/name")
    assert "pharoah[postgresql]" in caught.value.hint


@ON_POSTGRESQL
def test_a_store_survives_lost_connections(postgresql: Server) -> None:
    with closing(Store(postgresql.new_place() + "&application_name=lost")) as store:
        store.add_release(ROUND, b"release")
        postgresql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lost'")
        assert store.releases() == [b"release"]


def everything_said(error: BaseException | None) -> str:
    """What a log of this exception would show, causes included."""
    said = ""
    while error is not None:
        said += repr(error) + str(error) + getattr(error, "hint", "")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return said


# ---- backup and restore --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", BOTH)
@pytest.mark.parametrize("of", BOTH)
def test_a_backup_of_either_restores_into_both(
    of: str, to: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first, second = places(of, tmp_path, request)("first"), places(to, tmp_path, request)("second")
    with closing(Store(first)) as source, closing(Store(second)) as target:
        kept = backup(filled(source), tmp_path / "backup")
        assert kept == restore(tmp_path / "backup", target) == {"leases": 2, "releases": 3, "bundles": 2}
        assert contents(target) == contents(source)
        assert target.leases(*WEEK) == source.leases(*WEEK)
        target.add_release(ROUND, b"the next one")
        assert target.releases() == [*source.releases(), b"the next one"]
        backup(source, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "backup").read_bytes()
    assert stat.S_IMODE((tmp_path / "backup").stat().st_mode) == 0o600


def test_an_empty_store_may_be_kept_too(store: Store, place: NewPlace, tmp_path: Path) -> None:
    assert backup(store, tmp_path / "backup") == {}
    with closing(Store(place("second"))) as target:
        restore(tmp_path / "backup", target)
        target.add_release(ROUND, b"the first one")
        assert target.releases() == [b"the first one"]


def test_every_column_is_in_the_backup() -> None:
    kept = {table: [field.name for field in fields(kind)] for table, kind in backups.KINDS.items()}
    assert kept == {table.name: [column.name for column in table.columns] for table in _metadata.sorted_tables}


def test_a_backup_is_of_one_moment_while_others_write(store: Store, place: NewPlace, tmp_path: Path) -> None:
    before, releases_before = contents(filled(store)), store.releases()
    with closing(Store(place("provider"))) as other, closing(Store(place("second"))) as target:

        def write(_: object, __: object, statement: str, *___: object) -> None:
            if "SELECT" in statement and other.releases() == releases_before:
                other.add_leases([a_lease(1, 9)])
                other.add_release(ROUND, b"later")
                other.add_bundle(9, b"later")

        sa.event.listen(store._engine, "after_cursor_execute", write)
        backup(store, tmp_path / "backup")
        assert len(contents(store)) == len(before) + 3
        restore(tmp_path / "backup", target)
        assert contents(target) == before


def test_a_backup_is_read_while_another_process_has_the_store_locked(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "provider.db")) as store, closing(sqlite3.connect(tmp_path / "provider.db")) as other:
        before = contents(filled(store))
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO bundles VALUES (99, x'00')")
        assert backup(store, tmp_path / "backup").total() == len(before)


def test_only_an_empty_store_is_restored_into(store: Store, tmp_path: Path) -> None:
    backup(store, tmp_path / "backup")
    store.add_bundle(0, b"bundle")
    with pytest.raises(StoreNotEmpty):
        restore(tmp_path / "backup", store)
    assert contents(store) == [("bundles", {"number": 0, "bundle": b"bundle"})]


def test_a_backup_never_replaces_a_file_and_leaves_no_half_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Store(tmp_path / "provider.db")) as store:
        backup(filled(store), tmp_path / "backup")
        before = (tmp_path / "backup").read_bytes()
        with pytest.raises(BadBackup, match="File exists"):
            backup(store, tmp_path / "backup")
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(BadBackup, match="No space left"):
            backup(store, tmp_path / "second")
    assert (tmp_path / "backup").read_bytes() == before
    assert not (tmp_path / "second").exists()


@pytest.fixture(scope="module")
def a_backup(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """One row of each kind, so that every byte of it can be tried."""
    folder = tmp_path_factory.mktemp("backup")
    with closing(Store(folder / "provider.db")) as store:
        store.add_leases([replace(a_lease(0, 1), labels={"context": "c"})])
        store.add_release(ROUND, b"release")
        store.add_bundle(1, b"bundle")
        backup(store, folder / "backup")
    return (folder / "backup").read_bytes()


def test_a_backup_that_was_altered_in_any_byte_is_refused(a_backup: bytes, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    for position in range(len(a_backup)):
        altered = bytearray(a_backup)
        altered[position] ^= 1 << position % 8
        file.write_bytes(altered)
        with pytest.raises(BadBackup):
            verify(file)
    file.write_bytes(a_backup)
    assert verify(file).total() == 3


def test_a_backup_that_was_cut_short_or_lengthened_is_refused(a_backup: bytes, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    for other in (*(a_backup[:size] for size in range(len(a_backup))), a_backup + b"\0", a_backup * 2):
        file.write_bytes(other)
        with pytest.raises(BadBackup):
            verify(file)


def test_a_backup_that_is_refused_changes_nothing(
    store: Store, a_backup: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "backup"
    file.write_bytes(a_backup[:-1] + bytes([a_backup[-1] ^ 1]))
    monkeypatch.setattr(backups, "verify", lambda _: None)  # as if the file had changed after it was verified
    with pytest.raises(BadBackup):
        restore(file, store)
    assert contents(store) == []


def forged(*rows: tuple[int, bytes]) -> bytes:
    """A whole backup of any rows, by somebody who can count and digest."""
    frames = b"".join(bytes([kind]) + len(body).to_bytes(4, "big") + body for kind, body in rows)
    data = backups.MAGIC + frames + b"\0"
    return data + hashlib.sha256(data).digest()


LEASE = backups.LeaseRow(lease_id(0, 1), keys().tenant_id(0), 1, 0.0, 1.0, b"{}", None)


@pytest.mark.parametrize(
    "rows",
    [
        [(4, encode(LEASE))],
        [(2, encode(LEASE))],
        [(1, encode(replace(LEASE, start_h=float("inf"))))],
        [(1, b"")],
        [(3, encode(backups.BundleRow(0, b"bundle")))] * 2,
    ],
)
def test_a_whole_file_with_rows_that_do_not_fit_changes_nothing(
    store: Store, tmp_path: Path, rows: list[tuple[int, bytes]]
) -> None:
    (tmp_path / "backup").write_bytes(forged(*rows))
    with pytest.raises(BadBackup):
        restore(tmp_path / "backup", store)
    assert contents(store) == []


@pytest.mark.parametrize("labels", [b"", b"{", b"[]", b'{"a": 1}', b'{"a": "\xff"}', b"[" * 100_000])
def test_labels_that_are_no_labels_are_refused(labels: bytes) -> None:
    with pytest.raises(ValueError, match=r"labels|utf-8"):
        replace(LEASE, contexts=labels)
    with pytest.raises(ValueError, match=r"labels|utf-8"):
        replace(LEASE, ladder=labels)


# ---- the verbs -----------------------------------------------------------------------------------------------------


def called(*words: object, code: int = 0, **environment: str) -> str:
    """Output of a command that must end with `code`; an error must be told on the standard error only."""
    result = CliRunner().invoke(app, [str(word) for word in words], env=environment)
    assert result.exit_code == code, result.output
    assert not (code and result.stdout)
    return result.stdout if code == 0 else result.stderr


def test_verbs_take_a_home_or_a_url(place: NewPlace, tmp_path: Path) -> None:
    where, home = place("provider"), tmp_path / "new" / "home"
    url = f"sqlite:///{where}" if isinstance(where, Path) else where
    with closing(Store(where)) as store:
        filled(store)
    said = called("backup", tmp_path / "backup", "--json", "--database", url)
    counts = {"file": str(tmp_path / "backup"), "leases": 2, "releases": 3, "bundles": 2}
    assert json.loads(said) == [counts]
    said = called("restore", tmp_path / "backup", "--home", home)
    assert said == f"{tmp_path / 'backup'}: 2 leases, 3 releases, 2 bundles\n"
    called("backup", tmp_path / "again", PHAROAH_PROVIDER_HOME=str(home))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "backup").read_bytes()
    assert "is not empty" in called("restore", tmp_path / "backup", "--home", "x", code=2, PHAROAH_DATABASE=url)


def test_a_refused_backup_makes_no_store(a_backup: bytes, tmp_path: Path) -> None:
    (tmp_path / "backup").write_bytes(a_backup[:-1])
    assert "cut short" in called("restore", tmp_path / "backup", "--home", tmp_path / "home", code=2)
    assert not (tmp_path / "home").exists()


def test_verbs_say_what_is_wrong_without_secrets(tmp_path: Path) -> None:
    assert "--home or --database" in called("releases", code=2)
    assert "no such file" in called("releases", "--home", tmp_path, code=2)
    assert not list(tmp_path.iterdir())
    for url in (*WRONG[:-1], f"postgresql://provider:{CANARY}@/name?host=%2Fnowhere"):
        assert CANARY not in called("backup", tmp_path / "backup", code=2, PHAROAH_DATABASE=url)


def test_refusals_of_a_database_are_refusals() -> None:
    assert all(issubclass(kind, Refusal) for kind in (NewerDatabase, ForeignDatabase, NoStore, StoreNotEmpty))
    assert newest_version() == "0002"
