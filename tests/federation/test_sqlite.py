"""A database in a file: what is committed stays, whoever opens it meanwhile."""

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from federation.base.sqlite import NewerHome, create_file, open_database

SCHEMA = "CREATE TABLE IF NOT EXISTS notes (note TEXT NOT NULL);"
COUNT = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM notes').fetchone()[0])"


def counted_by_another_process(path: Path) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT, str(path)], capture_output=True, check=True, text=True)
    return int(done.stdout)


def test_a_second_opening_drops_no_lock_of_the_first(tmp_path: Path) -> None:
    """Else the reader takes the log for abandoned and deletes it, and what is committed later is in no file."""
    path = tmp_path / "notes.db"
    with closing(open_database(path, SCHEMA)) as first:
        first.execute("INSERT INTO notes VALUES ('one')")
        open_database(path, SCHEMA).close()
        assert counted_by_another_process(path) == 1
        first.execute("INSERT INTO notes VALUES ('two')")
        assert counted_by_another_process(path) == 2
    with closing(sqlite3.connect(path)) as later:
        assert later.execute("SELECT count(*) FROM notes").fetchone() == (2,)


def test_a_new_file_is_its_owners_alone_and_one_that_is_there_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    create_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"kept")
    create_file(path)
    assert path.read_bytes() == b"kept"


# ---- versions --------------------------------------------------------------------------------------------------------

LATER = "CREATE TABLE IF NOT EXISTS notes (note TEXT NOT NULL, loud INTEGER);"
STEPS = ("ALTER TABLE notes ADD COLUMN loud INTEGER; UPDATE notes SET loud = 1",)


def notes(path: Path, schema: str, steps: Sequence[str] = ()) -> list[tuple[object, ...]]:
    with closing(open_database(path, schema, steps)) as opened:
        return opened.execute("SELECT * FROM notes").fetchall()


def test_a_file_of_the_release_before_is_copied_and_upgraded_once_and_the_way_back_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    with closing(open_database(path, SCHEMA)) as old:
        old.execute("INSERT INTO notes VALUES ('one')")
    assert notes(path, LATER, STEPS) == notes(path, LATER, STEPS) == [("one", 1)]
    copy = tmp_path / "notes.db.version-1"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(NewerHome, match="version 2, this program knows up to 1"):
        open_database(path, SCHEMA)
    assert path.read_bytes() == before
    assert notes(copy, SCHEMA) == [("one",)]  # the way back


def test_who_dies_while_it_copies_leaves_no_half_copy_that_the_next_one_takes_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copy = tmp_path / "notes.db", tmp_path / "notes.db.version-1"
    with closing(open_database(path, SCHEMA)) as old:
        old.execute("INSERT INTO notes VALUES ('one')")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            open_database(path, LATER, STEPS)
    assert not copy.exists()
    assert notes(path, SCHEMA) == [("one",)]
    assert notes(path, LATER, STEPS) == [("one", 1)]
    assert notes(copy, SCHEMA) == [("one",)]


def test_a_new_file_needs_no_steps_and_a_step_that_fails_changes_nothing(tmp_path: Path) -> None:
    assert notes(tmp_path / "new.db", LATER, STEPS) == notes(tmp_path / "new.db", LATER, STEPS) == []
    assert not list(tmp_path.glob("*.version-*"))
    notes(tmp_path / "old.db", SCHEMA)
    with pytest.raises(sqlite3.OperationalError):
        open_database(tmp_path / "old.db", LATER, (f"{STEPS[0]}; NO SQL",))
    assert notes(tmp_path / "old.db", SCHEMA) == []
