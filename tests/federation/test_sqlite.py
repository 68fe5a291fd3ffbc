"""A database in a file: what is committed stays, whoever opens it meanwhile."""

import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from federation.base.sqlite import create_file, open_database

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
